"""A queue on a disk that another program fills; prints what became of it.

In a process of its own, because a store into a full disk may be the end of it. With the room back,
a new handle of the same process must find all that was acknowledged.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from forebay.errors import Closed
from tests.conformance.kinds import KINDS

LEFT_BYTES = 5 << 20
PUTS_MAX = 2_000
OPTIONS: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 1 << 20},
    "fifo": {"file_bytes": 1 << 20},
    # Not so small that it waits for runs, which find no room either.
    "deadline": {},
    "events": {"segment_bytes": 1 << 20, "retry_seconds": 0},
}


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
    os.sync()


def run(place: Path, name: str, sync: str) -> dict[str, object]:
    """Puts until the disk is full, closes, and opens again with room."""
    fill(place / "filler")
    kind, options = KINDS[name], OPTIONS[name]
    queue = kind.queue(place / "q", sync=sync, **options)
    acknowledged, refused = [], 0
    for number in range(PUTS_MAX):
        value = b"%08d" % number * (10 if number % 2 else 1_000)
        try:
            kind.put(queue, value)
            acknowledged.append(value)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            refused += 1
            if refused == 3:
                break
        except Closed:
            # Where the disk copies on write, even a mark that has its place finds none: the handle
            # ends, and says so.
            break
    closed = "closed"
    try:
        queue.close()
    except OSError as error:
        closed = errno.errorcode[error.errno or 0]
    (place / "filler").unlink()
    os.sync()
    with kind.queue(place / "q", sync=sync, **options) as queue:
        found = set(kind.drain(queue))
        while len(found) < len(acknowledged) and name == "events" and (more := kind.drain(queue)):
            found.update(more)
    lost = len(set(acknowledged) - found)
    return {"took": len(acknowledged), "refused": refused, "closed": closed, "lost": lost}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
