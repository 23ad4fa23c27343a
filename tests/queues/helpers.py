"""What the tests of the queues share: records, directories as others leave them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from forebay import Log
from forebay.formats.fflg import Frames, Header, parse_segment_name
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFilesystem, write_all
from tests.crash.forgetful import ForgetfulFilesystem
from tests.sources import ROOT
from tests.support.clocks import FakeClock
from tests.support.inside import drop
from tests.support.values import flip, numbered, values_of
from tests.support.waiting import wait_until

__all__ = ["FakeClock", "flip", "numbered", "values_of", "wait_until"]
SYNCS = ("always", "interval", "os")
# A version 2 segment of this size takes 8 records of 100 bytes: 34 + 8 × (12 + 100) = 930.
SEGMENT_BYTES = 1_000
PER_SEGMENT = 8
HEADER_BYTES = 34
FRAME_BYTES = 12


def segment_files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if parse_segment_name(file.name) is not None)


def snapshot(path: Path) -> dict[str, bytes]:
    """Returns all that is below a directory, to see that nothing changed."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def frame_position(index: int, size: int = 100) -> int:
    """Returns where the frame of a record is in its version 2 segment, all of one size."""
    return HEADER_BYTES + index * (FRAME_BYTES + size)


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def run_threads(count: int, work: Callable[[int], object]) -> None:
    """Runs `work(number)` in threads that start together; raises what one of them raised."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def open_files(path: Path) -> list[str]:
    """Lists what this process has open below a path; what others left open does not count."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The directory was open while it was listed.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [file for file in found if file.startswith(str(path))]


def kill(log: Log, filesystem: ForgetfulFilesystem) -> ForgetfulFilesystem:
    """Returns the machine after the owner's process died; its handle is only dropped."""
    drop(log)
    return filesystem.kill()


def write_part(
    path: Path, name: str, values: list[bytes], *, epoch_ms: int = 1, times: list[int] | None = None
) -> inbox.Part:
    """Writes a finished segment into `inbox/`, as another process does."""
    queue = DiskFilesystem().open_directory(str(path))
    work = queue.directory(inbox.DIRECTORY, create=True)
    header = Header(2, 0, os.urandom(8), epoch_ms)
    frames = Frames(header)
    _, size = frames.fit(values, 0, 2**40)
    buffer = bytearray(size)
    frames.encode(values, 0, len(values), buffer, 0, 1, times)
    file = work.create(name)
    write_all(file, header.encode() + bytes(buffer), 0)
    file.sync()
    file.close()
    work.close()
    queue.close()
    return inbox.Part(name, len(values), HEADER_BYTES + size)


def publish(
    path: Path,
    stem: str,
    batch: int,
    parts: list[inbox.Part],
    writer: str = "w",
    kind: str = "",
) -> None:
    """Hands parts in, under a manifest."""
    queue = DiskFilesystem().open_directory(str(path))
    inbox.publish(queue, stem, inbox.Manifest(writer, batch, parts, kind))
    queue.close()
