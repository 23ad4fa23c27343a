"""A producer of the tour, a process of its own, so that it can be killed.

Appends the events of one queue from its end on, at an even pace, and tells its parent on stdout
after each batch what is acknowledged: one line a count. Every batch is on the disk before it says
so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from forebay import BeatsQueue, BeatsReader, Log
from forebay.cli.tour_events import EVENT_QUEUE, event
from forebay.damage import Damage

TICK_SECONDS = 0.02
_TRIM_INTERVAL_SECONDS = 2.0


# Takes the values from one number up to another.
Append = Callable[[list[bytes]], object]


def produce(path: str, count: int, events_per_second: float, segment_bytes: int) -> None:
    """Writes up to `count` events; each line that it prints is a promise that the queue has kept.

    It goes on behind those that are there.
    """
    name = os.path.basename(path)
    opened = _event_queue if name == EVENT_QUEUE else _log
    with opened(path, segment_bytes) as (first, append):
        done = first
        acknowledge(done)
        started = time.monotonic()
        while done < count:
            due = first + round((time.monotonic() - started) * events_per_second)
            end = min(max(due, done + 1), count)
            append([event(name, number) for number in range(done, end)])
            done = end
            acknowledge(done)
            time.sleep(TICK_SECONDS)


@contextlib.contextmanager
def _log(path: str, segment_bytes: int) -> Iterator[tuple[int, Append]]:
    with Log(
        path, segment_bytes=segment_bytes, trim_interval_seconds=_TRIM_INTERVAL_SECONDS
    ) as log:
        yield log.end, log.append_many


@contextlib.contextmanager
def _event_queue(path: str, segment_bytes: int) -> Iterator[tuple[int, Append]]:
    def append(values: list[bytes]) -> None:
        queue.put_many(map(json.loads, values))

    with BeatsQueue(path, segment_bytes=segment_bytes) as queue, BeatsReader(path) as reader:
        found = [item for item in reader.scan() if not isinstance(item, Damage)]
        yield sum(len(item.payloads) for item in found), append


def acknowledge(count: int) -> None:
    """Tells the parent how much is on the disk."""
    os.write(sys.stdout.fileno(), b"%d\n" % count)


if __name__ == "__main__":
    # Ctrl-C goes to the whole group; the parent decides what becomes of the producer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
