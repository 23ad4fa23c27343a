"""Installs the oldest PySpark that the package supports, beside the newest: `-m tools.older_spark`.

It goes into a directory of its own, which a program sees when `PYTHONPATH` names it. A key in it
records what was installed: if it is current, nothing is fetched.
"""

from __future__ import annotations

import shutil
import sys

from tools.boot import ROOT, VENV, digest, holds, packages_of, pip, say

VERSION = "4.2"
LOCK = ROOT / "requirements-spark42.lock"
PLACE = VENV / "spark42"
KEY = PLACE / "packages.key"
DOWNLOAD_MB = 450
INSTALLED_MB = 490


def main() -> None:
    """Installs it, if that is not done yet."""
    key = digest([LOCK], [sys.version])
    if holds(KEY, key):
        return
    say(
        f"installing PySpark {VERSION} of {LOCK.name} into {PLACE.relative_to(ROOT)} "
        f"(about {DOWNLOAD_MB} MB to download, {INSTALLED_MB} MB on disk)"
    )
    shutil.rmtree(PLACE, ignore_errors=True)
    # All that it is built with is there already.
    problem = f"could not install PySpark {VERSION}"
    pip(packages_of(LOCK), "--no-build-isolation", "--target", str(PLACE), problem=problem)
    KEY.write_text(key)


if __name__ == "__main__":
    main()
