"""The producers and the worker of the tour, each a separate process, so that it can be killed.

    python -m examples.tour.actors ROLE PATH COUNT PER_SECOND SIZE

They work at an even pace, and print how much is acknowledged, one count per line. Everything
counted is on the disk before its line is printed. A process that is started again continues from
the state that it finds in its queue.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from examples.tour.events import EVENT_QUEUE, event
from examples.tour.jobs import BURIED, KEPT, RELEASED, REQUEUED, Jobs, fate_of, job, number_of
from forebay import BeatsQueue, BeatsReader, Damage, DeadlineItem, DeadlineQueue, Log

_TICK_SECONDS = 0.02
_TRIM_INTERVAL_SECONDS = 2.0
_STEPS_AT_ONCE = 100
# Small enough to produce runs, tombstones and merges.
_SEGMENT_ITEMS = 500
_TOMORROW_SECONDS = 86_400.0
_LEASE_SECONDS = 3_600.0
_FIRST_MS = 1_700_000_000_000

# Appends values to a queue.
Append = Callable[[list[bytes]], object]


def produce(path: str, count: int, per_second: float, segment_bytes: int) -> None:
    """Writes events until there are `count`."""
    name = os.path.basename(path)
    opened = _beats_queue if name == EVENT_QUEUE else _log
    with opened(path, segment_bytes) as (first, append):
        done = first
        _acknowledge(done)
        for due in _paced(first, per_second):
            if done >= count:
                return
            end = min(max(due, done + 1), count)
            append([event(name, number) for number in range(done, end)])
            done = end
            _acknowledge(done)


@contextlib.contextmanager
def _log(path: str, segment_bytes: int) -> Iterator[tuple[int, Append]]:
    with Log(
        path, segment_bytes=segment_bytes, trim_interval_seconds=_TRIM_INTERVAL_SECONDS
    ) as log:
        yield log.end, log.append_many


@contextlib.contextmanager
def _beats_queue(path: str, segment_bytes: int) -> Iterator[tuple[int, Append]]:
    def append(values: list[bytes]) -> None:
        queue.put_many(map(json.loads, values))

    with BeatsQueue(path, segment_bytes=segment_bytes) as queue, BeatsReader(path) as reader:
        found = [item for item in reader.scan() if not isinstance(item, Damage)]
        yield sum(len(item.payloads) for item in found), append


def work(path: str, steps: int, per_second: float, jobs_count: int) -> None:
    """Fills a deadline queue with jobs and processes them, until `steps` steps are done."""
    jobs = Jobs(jobs_count)
    with DeadlineQueue(path, segment_items=_SEGMENT_ITEMS, lease_seconds=_LEASE_SECONDS) as queue:
        found = {
            number_of(item.value): fate_of(requeued=item.requeue_ms > 0, buried=item.buried)
            for item in queue.browse(jobs.count)
        }
        enqueued, done = jobs.progress(found)
        _acknowledge(done)
        for due in _paced(done, per_second):
            if done >= steps:
                return
            some = min(max(due - done, 1), _STEPS_AT_ONCE)
            if enqueued < jobs.count:
                end = min(enqueued + some, jobs.count)
                # The deadlines are long past, so that the jobs are due, in the order of numbers.
                values = [job(number) for number in range(enqueued, end)]
                queue.enqueue_many(values, deadline_ms=_FIRST_MS + enqueued)
                done, enqueued = done + end - enqueued, end
            else:
                done += _work_on(queue, jobs, some)
            _acknowledge(done)


def _work_on(queue: DeadlineQueue, jobs: Jobs, count: int) -> int:
    """Dequeues some jobs and does what their fate says; returns the number of steps."""
    done = 0
    released: list[DeadlineItem] = []
    for item in queue.dequeue_many(count):
        fate = jobs.fate(number_of(item.value))
        done += fate != KEPT
        if fate == RELEASED:
            released.append(item)
        elif fate == REQUEUED:
            queue.requeue(item, delay=_TOMORROW_SECONDS)
        elif fate == BURIED:
            queue.bury(item, "nobody answers")
    queue.release_many(released)
    return done


def _paced(first: int, per_second: float) -> Iterator[int]:
    """Yields at every tick how much is due by now."""
    started = time.monotonic()
    while True:
        yield first + round((time.monotonic() - started) * per_second)
        time.sleep(_TICK_SECONDS)


def _acknowledge(count: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % count)


ROLES = {"producer": produce, "worker": work}

if __name__ == "__main__":
    # Ctrl-C goes to the whole process group; the parent decides what happens to this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        _, role, path, count, per_second, size = sys.argv
        ROLES[role](path, int(count), float(per_second), int(size))
