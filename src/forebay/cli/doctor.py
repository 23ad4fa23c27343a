"""`forebay doctor`: checks the installation, the disk of a present or future queue, and Spark."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import stat
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from forebay import __version__
from forebay.cli import exits
from forebay.cli.arguments import conf_option, json_option
from forebay.cli.output import plural, size_text, write_json, write_table
from forebay.errors import ForebayError, NotInstalled
from forebay.kernels import PLAIN_REASON
from forebay.kernels.buffers import LIBRARY
from forebay.queues.kinds import describe, kind_named
from forebay.queues.shared.reports import STATES

if TYPE_CHECKING:
    from forebay.spark.cluster import Executor

GOOD = "ok"
NOTE = "note"
BAD = "wrong"

_SYNCS = 20
_SYNC_SECONDS_SUSPICIOUS = 20e-6
_FREE_BYTES_MIN = 1_000_000_000
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")

# What each extra brings; the names are those of distributions.
_EXTRAS = {
    "beats": ("cbor2", "cryptography", "lz4"),
    "arrow": ("pyarrow",),
    "spark": ("pyspark",),
    "metrics": ("prometheus-client",),
    "forward": ("urllib3",),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
}

# For one small job it is better that Java starts fast than that it computes fast.
_FAST_START = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    what: str
    found: str
    verdict: str = GOOD


@click.command("doctor")
@click.argument("paths", metavar="[PATH]...", type=click.Path(readable=False), nargs=-1)
@click.option("--spark", is_flag=True, help="Start Spark, and ask its executors what they see.")
@click.option("--master", metavar="URL", help="Where Spark runs: local[*], spark://…, sc://…")
@conf_option
@json_option
def command(
    paths: tuple[str, ...],
    spark: bool,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> int:
    """Check the installation, and the disk at PATH (default: here). Code 1 if something is wrong.

    PATH may be a queue, a directory, or a directory that does not exist yet. Notes are
    informational and do not change the code. The command writes, syncs and removes one file, and
    changes nothing else.

    With --spark it also runs a small job, which reports the versions of Spark, Java and Python and,
    for each executor, its kernels, its CRC, and whether it sees each PATH.
    """
    if master is not None and not spark:
        raise click.UsageError("--master says where --spark runs; give both")
    if conf and not spark:
        raise click.UsageError("--conf is for --spark; give both")
    places = paths or (".",)
    findings = [*_installation(), *_places(places)]
    if spark:
        findings += spark_findings(places, master, conf)
    if as_json:
        for finding in findings:
            write_json({"what": finding.what, "found": finding.found, "verdict": finding.verdict})
    else:
        rows = [(finding.what, finding.found, finding.verdict) for finding in findings]
        write_table(("what", "found", "verdict"), rows)
    wrong = any(finding.verdict == BAD for finding in findings)
    return exits.ERROR if wrong else exits.OK


def _installation() -> Iterator[Finding]:
    yield Finding("forebay", __version__)
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    if PLAIN_REASON is None:
        yield Finding("kernels", "compiled: full speed")
    else:
        yield Finding("kernels", f"plain Python, 2 to 40 times slower: {PLAIN_REASON}", NOTE)
        yield _compiler()
    if LIBRARY == "zlib-ng":
        yield Finding("CRC-32", LIBRARY)
    else:
        yield Finding("CRC-32", f"{LIBRARY}, slower; install zlib-ng", NOTE)

    for name in ("click", "msgspec", "rich", "zlib-ng"):
        yield _library(name, NOTE if name == "zlib-ng" else BAD)
    for extra, names in _EXTRAS.items():
        for name in names:
            yield _library(name, GOOD, f'; for {extra}: pip install "forebay[{extra}]"')


def _compiler() -> Finding:
    """Says whether a new installation could compile."""
    program = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if program and os.path.exists(header):
        return Finding("C compiler", f"{program}: install Forebay again to use it", NOTE)
    return Finding("C compiler", "none: apt-get install gcc python3-dev, and install again", NOTE)


def _library(name: str, if_missing: str, remedy: str = "") -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, f"not installed{remedy}", if_missing)


def _places(paths: Sequence[str]) -> Iterator[Finding]:
    for path in paths:
        yield from _disk(_existing(path))
        yield from _queue(path)


def _existing(path: str) -> str:
    """Returns the path, or the existing directory that it would be created under."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _disk(directory: str) -> Iterator[Finding]:
    yield Finding("directory", directory)
    kind = _filesystem_type(directory)
    if kind in _MEMORY_FILE_SYSTEMS:
        yield Finding("file system", f"{kind}: memory, lost at a restart", NOTE)
    elif kind in _NETWORK_FILE_SYSTEMS:
        yield Finding("file system", f"{kind}: Forebay needs a local disk", BAD)
    else:
        yield Finding("file system", kind)
    free = shutil.disk_usage(directory).free
    verdict = GOOD if free >= _FREE_BYTES_MIN else NOTE
    yield Finding("free space", size_text(free), verdict if free else BAD)
    yield _sync_latency(directory)


def _filesystem_type(directory: str) -> str:
    """Returns the file system type of a directory: that of the longest mount point above it."""
    best, kind = "", "unknown"
    real = os.path.realpath(directory)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return kind
    for point, name in mounts:
        place = point.replace("\\040", " ")
        under = real == place or real.startswith(place.rstrip("/") + "/")
        if under and len(place) >= len(best):
            best, kind = place, name
    return kind


def _sync_latency(directory: str) -> Finding:
    """Writes and syncs a small file. A sync that takes no time does not reach a disk."""
    times = []
    try:
        with tempfile.TemporaryFile(prefix=".forebay-doctor-", dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
            os.fsync(file.fileno())
            for number in range(_SYNCS):
                started = time.perf_counter()
                os.pwrite(file.fileno(), b"x" * 512, number * 4096)
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - started)
    except OSError as error:
        return Finding("write and sync", f"not possible: {error.strerror}", BAD)
    middle = statistics.median(times)
    found = f"{middle * 1000:.2f} ms (median of {_SYNCS}), slowest {max(times) * 1000:.2f} ms"
    if middle < _SYNC_SECONDS_SUSPICIOUS:
        return Finding("write and sync", f"{found}: too fast to reach a disk", NOTE)
    return Finding("write and sync", found)


def _queue(path: str) -> Iterator[Finding]:
    if not os.path.isdir(path):
        if os.path.exists(path):
            yield Finding("queue", f"{path} is a file; a queue is a directory", BAD)
        return
    status = os.stat(path)
    try:
        facts = describe(path)
        records = plural(facts.records, kind_named(facts.kind).record)
        found = f"{facts.kind} of {records}, {STATES[facts.state]}"
    except (ForebayError, OSError) as error:
        empty = os.access(path, os.R_OK) and not _has_queue_files(path)
        yield Finding(
            "queue", "none here" if empty else exits.message_of(error), _bad_if(not empty)
        )
        return
    yield Finding("queue", found)
    mode = stat.S_IMODE(status.st_mode)
    yield Finding("mode", f"{mode:04o}", _bad_if(bool(mode & 0o022)))
    mine = status.st_uid == os.geteuid()
    owner = "this user" if mine else f"user {status.st_uid}; only that user may open it"
    yield Finding("belongs to", owner, GOOD if mine else NOTE)


def _has_queue_files(path: str) -> bool:
    return "tail" in os.listdir(path)


def _bad_if(wrong: bool) -> str:
    return BAD if wrong else GOOD


def spark_findings(
    paths: Sequence[str], master: str | None, conf: Mapping[str, str]
) -> Iterator[Finding]:
    """Yields the findings about Spark, up to the first problem that stops it.

    A session that this process has already is used, and left running.
    """
    from forebay.spark.cluster import ask_executors
    from forebay.spark.java import find_java
    from forebay.spark.session import is_running, session

    remote = master is not None and master.startswith("sc://")
    ours = not is_running()
    try:
        if not remote:
            java = find_java()
            yield Finding("java", f"{java.version} of {java.origin}")
        settings = {**(_FAST_START if ours and not remote else {}), **conf}
        spark = session(master, app_name="forebay doctor", **settings)
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
        if ours:
            spark.stop()


def _spark_errors() -> tuple[type[Exception], ...]:
    """Returns the base classes of Spark's errors; call it only if Spark is installed."""
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
    """Compares the Forebay of an executor with the local one."""
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
    """Checks whether an executor sees a path, and whether it is the directory seen here."""
    if isinstance(found, str):
        return Finding(name, f"not visible: {found}", BAD)
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino != found:
            return Finding(name, "visible, but a different directory than here", NOTE)
    return Finding(name, "visible")


def reason_of(error: Exception) -> str:
    """Returns the line with the cause: Java's starts with a colon, Python's is the last."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line[2:] for line in lines if line.startswith(": ")), lines[-1].strip())


def _note_if(notable: bool) -> str:
    return NOTE if notable else GOOD
