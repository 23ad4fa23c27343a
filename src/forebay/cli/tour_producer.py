"""A producer of the tour, a process of its own, so that it can be killed.

Appends the events of one queue from the log's end on, at an even pace, and tells its parent on
stdout after each batch what is acknowledged: one line an offset. Every batch is on the disk before
it says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from forebay import Log
from forebay.cli.tour_events import event

TICK_SECONDS = 0.02
_TRIM_INTERVAL_SECONDS = 2.0


def produce(path: str, count: int, events_per_second: float, segment_bytes: int) -> None:
    """Writes up to `count` events; each line that it prints is a promise that the log has kept."""
    queue = os.path.basename(path)
    with Log(
        path, segment_bytes=segment_bytes, trim_interval_seconds=_TRIM_INTERVAL_SECONDS
    ) as log:
        first = offset = log.end
        _acknowledge(offset)
        started = time.monotonic()
        while offset < count:
            due = first + round((time.monotonic() - started) * events_per_second)
            end = min(max(due, offset + 1), count)
            log.append_many([event(queue, number) for number in range(offset, end)])
            offset = end
            _acknowledge(offset)
            time.sleep(TICK_SECONDS)


def _acknowledge(offset: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % offset)


if __name__ == "__main__":
    # Ctrl-C goes to the whole group; the parent decides what becomes of the producer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
