"""The part of `forebay doctor` that looks at Spark: versions, and what each executor has and sees.

Starts a session, or takes one that runs elsewhere, and asks its executors by a small job.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence

from forebay import __version__
from forebay.cli.doctor import BAD, GOOD, NOTE, Finding
from forebay.errors import NotInstalled
from forebay.spark.cluster import Executor, ask_executors
from forebay.spark.java import find_java
from forebay.spark.session import session

# One small job: a Java that starts fast is better than one that computes fast.
_FAST_START = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


def spark_findings(paths: Sequence[str], master: str | None) -> Iterator[Finding]:
    """Yields what there is to say about Spark, up to the first thing that stops it."""
    remote = master is not None and master.startswith("sc://")
    try:
        if not remote:
            java = find_java()
            yield Finding("java", f"{java.version} of {java.origin}")
        spark = session(master, app_name="forebay doctor", **({} if remote else _FAST_START))
    except NotInstalled as error:
        yield Finding("spark", str(error), BAD)
        return
    except _spark_errors() as error:
        yield Finding("spark", f"does not start: {reason_of(error)}", BAD)
        return
    places = [os.path.abspath(path) for path in paths]
    try:
        yield Finding("spark", f"{spark.version} at {spark.conf.get('spark.master')}")
        for number, executor in enumerate(ask_executors(spark, places), 1):
            yield from executor_findings(f"executor {number}", executor)
    except _spark_errors() as error:
        yield Finding("executors", reason_of(error), BAD)
    finally:
        spark.stop()


def _spark_errors() -> tuple[type[Exception], ...]:
    """Returns the roots of what Spark raises; only called when it is installed."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def executor_findings(name: str, executor: Executor) -> Iterator[Finding]:
    """Yields what one executor has and sees, compared with this process."""
    yield Finding(name, f"on {executor.host} in {executor.directory}")
    here = platform.python_version()
    same = executor.python == here
    yield Finding(
        f"{name}, python",
        executor.python if same else f"{executor.python}, here {here}",
        GOOD if same else NOTE,
    )
    yield from _package(name, executor)
    for path, found in executor.inodes.items():
        yield _visible(f"{name}, {path}", path, found)


def _package(name: str, executor: Executor) -> Iterator[Finding]:
    """Compares the Forebay of an executor with the one here."""
    if executor.forebay is None:
        remedy = "install Forebay there, or send forebay.spark.package_zip"
        yield Finding(f"{name}, forebay", f"{executor.problem}; {remedy}", BAD)
        return
    same = executor.forebay == __version__
    yield Finding(
        f"{name}, forebay",
        executor.forebay if same else f"{executor.forebay}, here {__version__}",
        GOOD if same else BAD,
    )
    kernels = "compiled" if executor.compiled else "plain Python, slower"
    yield Finding(f"{name}, kernels", kernels, GOOD if executor.compiled else NOTE)
    fast = executor.crc == "zlib-ng"
    yield Finding(
        f"{name}, CRC-32", f"{executor.crc}{'' if fast else ', slower'}", _note_if(not fast)
    )


def _visible(name: str, path: str, found: int | str) -> Finding:
    """Says whether an executor sees a path, and the same directory there as this process."""
    if isinstance(found, str):
        return Finding(name, f"not visible: {found}", BAD)
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino != found:
            return Finding(name, "visible, but another directory than here", NOTE)
    return Finding(name, "visible")


def reason_of(error: Exception) -> str:
    """Gives the line that says what was wrong: Java's begins with a colon, Python's comes last."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line[2:] for line in lines if line.startswith(": ")), lines[-1].strip())


def _note_if(notable: bool) -> str:
    return NOTE if notable else GOOD
