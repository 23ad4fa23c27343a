"""Clusters: sends Forebay to executors that lack it, and queries what every executor has.

After `send(spark)` the workers need only pyspark and pyarrow. The kernels are sent as plain Python:
correct, but slow. If possible, install Forebay on every machine instead; Spark then finds the
source without registration.

The query of the executors is a function that is sent by value and imports nothing of Forebay, so
that an executor without Forebay can answer too. It uses only DataFrames, so it works under Spark
Connect.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forebay.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PACKAGES = ("forebay", "pyspark_forebay")


def package_zip(target: str | os.PathLike[str]) -> str:
    """Writes a zip file of the sources, replacing an old one, and returns its absolute path."""
    path = os.path.abspath(target)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            directory = _directory(package)
            for file in sorted(directory.rglob("*.py")):
                archive.write(file, Path(package, file.relative_to(directory)))
    return path


def send(spark: forebay.spark.SparkSession) -> str:
    """Sends the sources to the executors of a session and registers the format there.

    Returns the path of the zip file of the sources, in a temporary directory that the streams of
    this session use as long as it runs. A Spark Connect server whose machine lacks Forebay can read
    and write, but not stream.
    """
    from forebay.spark.source import ForebaySource

    path = package_zip(os.path.join(tempfile.mkdtemp(prefix="forebay-"), "forebay.zip"))
    if _is_remote(spark):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
        # The process of a stream runs beside the driver, and gets none of the files that were sent.
        environment = spark.sparkContext.environment
        python_path = [path, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(python_path)
    spark.dataSource.register(ForebaySource)
    return path


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _directory(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    return Path(spec.origin).parent


# Long enough that no executor takes the task of another one that is still busy with its first.
_TASK_SECONDS = 0.3
_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Executor:
    """One process that runs tasks, as it describes itself.

    `forebay` is the version there, or None if it cannot be imported; `problem` then says why.
    `inodes` maps each requested path to its inode number, or to a text that says what is wrong.
    """

    host: str
    directory: str
    python: str
    forebay: str | None
    problem: str | None
    compiled: bool
    crc: str | None
    inodes: dict[str, int | str]


def ask_executors(spark: SparkSession, paths: Iterable[str]) -> list[Executor]:
    """Returns the answers of the executors, grouped by host.

    Repeats the query until a round finds no new executor: under Connect, Spark does not list its
    executors, and those of a cluster start one after another.
    """
    question = _question(list(paths), _TASK_SECONDS)
    found: dict[tuple[str, str], Executor] = {}
    for _ in range(_ROUNDS_MAX):
        known = len(found)
        # As many tasks as there are cores, which is Spark's default.
        rows = spark.range(1 << 16).mapInArrow(question, "answer string").collect()
        for row in rows:
            executor = Executor(**json.loads(row["answer"]))
            found[executor.host, executor.directory] = executor
        if len(found) == known:
            break
    return [found[key] for key in sorted(found)]


def _question(paths: list[str], seconds: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the function that runs in the tasks; it imports everything that it uses there."""

    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        import json
        import os
        import platform
        import socket
        import time

        import pyarrow

        for _ in batches:
            pass
        facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "directory": os.getcwd(),
            "python": platform.python_version(),
            "forebay": None,
            "problem": None,
            "compiled": False,
            "crc": None,
            "inodes": {},
        }
        try:
            import forebay
            from forebay.kernels.buffers import LIBRARY

            facts["forebay"] = forebay.__version__
            facts["compiled"] = forebay.compiled
            facts["crc"] = LIBRARY
        except ImportError as error:
            facts["problem"] = str(error)
        for path in paths:
            try:
                os.listdir(path)
                facts["inodes"][path] = os.stat(path).st_ino
            except OSError as error:
                facts["inodes"][path] = error.strerror or str(error)
        time.sleep(seconds)
        yield pyarrow.RecordBatch.from_pydict({"answer": [json.dumps(facts)]})

    return answer
