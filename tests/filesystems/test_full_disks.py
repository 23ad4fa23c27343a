"""A disk that runs full under a queue: an error, never the end of the process; nothing is lost.

Each case has a process of its own, because a store into a full disk may be the end of it. With the
room back, a new handle must find all that was acknowledged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import Closed
from tests.kinds import KINDS
from tests.queues.helpers import SYNCS
from tests.support.children import run_each

LEFT_BYTES = 5 << 20
PUTS_MAX = 2_000
OPTIONS: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 1 << 20},
    "fifo": {"file_bytes": 1 << 20},
    # Not so small that it waits for runs, which find no room either.
    "deadline": {},
    "beats": {"segment_bytes": 1 << 20, "retry_seconds": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_ends_no_process_and_costs_nothing_acknowledged(
    small_disk: Path, kind: str, sync: str
) -> None:
    try:
        ((_, problem),) = run_each([sync], lambda sync: fill_up(small_disk, kind, sync))
    finally:
        shutil.rmtree(small_disk)

    assert problem is None, problem


def fill_up(place: Path, kind: str, sync: str) -> None:
    """Puts until the disk is full, closes, and opens again with room."""
    fill(place / "filler")
    queue = KINDS[kind].queue(place / "q", sync=sync, **OPTIONS[kind])
    acknowledged, refused = put_until_refused(kind, queue)
    with refusals():
        queue.close()
    (place / "filler").unlink()
    sync_disk(place)
    with KINDS[kind].queue(place / "q", sync=sync, **OPTIONS[kind]) as queue:
        found = set(KINDS[kind].drain(queue))

    assert refused >= 1
    assert len(acknowledged) > 100
    assert set(acknowledged) <= found


def fill(path: Path) -> None:
    """Takes all space but a few megabytes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    size = 0
    for step in (1 << 24, 1 << 20, 1 << 14, 1 << 12):
        with contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(descriptor, size, step)
                size += step
    os.ftruncate(descriptor, max(0, size - LEFT_BYTES))
    os.close(descriptor)
    sync_disk(path.parent)


def sync_disk(place: Path) -> None:
    """Lets a file system settle what is free, and not the others of the machine."""
    descriptor = os.open(place, os.O_RDONLY)
    ctypes.CDLL(None).syncfs(descriptor)
    os.close(descriptor)


def put_until_refused(kind: str, queue: Any) -> tuple[list[bytes], int]:
    """Returns what was acknowledged, and how often the disk was full."""
    acknowledged, refused = [], 0
    # Where the disk copies on write, even a mark that has its place finds none: the handle ends,
    # and says so.
    with contextlib.suppress(Closed):
        for number in range(PUTS_MAX):
            value = b"%08d" % number * (10 if number % 2 else 1_000)
            with refusals() as told:
                KINDS[kind].put(queue, value)
                acknowledged.append(value)
            refused += len(told)
            if refused == 3:
                break
    return acknowledged, refused


@contextlib.contextmanager
def refusals() -> Iterator[list[OSError]]:
    """Collects what a full disk refuses, and lets no other error pass."""
    told: list[OSError] = []
    try:
        yield told
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        told.append(error)
