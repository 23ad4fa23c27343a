"""Packs Forebay's Python sources, for a cluster that does not have it installed.

    spark.sparkContext.addPyFile(package_zip("forebay.zip"))             # classic
    spark.addArtifacts(package_zip("forebay.zip"), pyfile=True)          # Spark Connect
    spark.dataSource.register(ForebaySource)

The workers then need pyspark and pyarrow only. The kernels travel as plain Python: correct, but
slow. Installing Forebay on every machine is better where that is possible; it is then found
without being registered.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

PACKAGES = ("forebay", "pyspark_forebay")


def package_zip(target: str | os.PathLike[str]) -> str:
    """Writes a zip file of the sources, over one that is there, and gives its absolute path."""
    path = os.path.abspath(target)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            directory = _directory(package)
            for file in sorted(directory.rglob("*.py")):
                archive.write(file, Path(package, file.relative_to(directory)))
    return path


def _directory(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    return Path(spec.origin).parent
