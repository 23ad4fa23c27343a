"""`forebay doctor`: checks the installation, the disk that a queue is or would be on, and Spark."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from forebay import LogReader, __version__, compiled
from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.inspection import STATES, owner_of, state_of
from forebay.cli.output import size_text, write_json, write_table
from forebay.errors import ForebayError
from forebay.kernels.buffers import LIBRARY

GOOD = "ok"
NOTE = "note"
BAD = "wrong"

_SYNCS = 20
_SYNC_SECONDS_SUSPICIOUS = 20e-6
_FREE_BYTES_MIN = 1_000_000_000
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    verdict: str = GOOD


@click.command("doctor")
@click.argument("paths", metavar="[PATH]...", type=click.Path(), nargs=-1)
@click.option("--spark", is_flag=True, help="Start Spark, and ask its executors what they see.")
@click.option("--master", metavar="URL", help="Where Spark runs: local[*], spark://…, sc://…")
@json_option
def command(paths: tuple[str, ...], spark: bool, master: str | None, as_json: bool) -> int:
    """Check the installation, and the disk at PATH (default: here); code 1 if something is wrong.

    PATH may be a queue, a directory, or one that is not there yet. A note is worth to know and is
    not wrong. Besides a file that is written, synced and removed, nothing is changed.

    With --spark a small job runs as well: it tells the versions of Spark, Java and Python, and for
    each executor which kernels and CRC it has, and whether it sees the PATHs.
    """
    if master is not None and not spark:
        raise click.UsageError("--master says where --spark runs: give both")
    places = paths or (".",)
    findings = [*_installation(), *_places(places)]
    if spark:
        from forebay.cli.doctor_spark import spark_findings

        findings += spark_findings(places, master)
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
    for name in ("cbor2", "click", "rich", "zlib-ng"):
        yield _library(name)
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiled:
        yield Finding("kernels", "compiled")
    elif os.environ.get("FOREBAY_PURE") == "1":
        yield Finding("kernels", "plain Python, because FOREBAY_PURE=1 is set", NOTE)
    else:
        yield Finding("kernels", "plain Python, slower; reinstall with a C compiler", NOTE)
    if compiler is None:
        yield Finding("C compiler", "none", GOOD if compiled else NOTE)
    else:
        yield Finding("C compiler", compiler)
    if LIBRARY == "zlib-ng":
        yield Finding("CRC-32", LIBRARY)
    else:
        yield Finding("CRC-32", f"{LIBRARY}, slower; install zlib-ng", NOTE)


def _library(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", NOTE if name == "zlib-ng" else BAD)


def _places(paths: Sequence[str]) -> Iterator[Finding]:
    for path in paths:
        yield from _disk(_existing(path))
        yield from _queue(path)


def _existing(path: str) -> str:
    """Returns the path, or the directory that it would be made in."""
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
    """Finds the mount that a directory is on: the longest one that it lies under."""
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
    """Writes and syncs a small file; a sync that takes no time reaches no disk."""
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
        with LogReader(path) as reader:
            found = (
                f"log of {len(reader):,} records, {STATES[state_of(reader, owner_of(reader.path))]}"
            )
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
