"""The worker of the tour's deadline queue, a process of its own, so that it can be killed.

Fills the queue and works it off, at an even pace, and tells its parent on stdout how many steps are
durable: one line a count. One that is started again goes on where the queue says that it was.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time

from forebay import DeadlineItem, DeadlineQueue
from forebay.cli.tour_jobs import BURIED, KEPT, RELEASED, REQUEUED, Jobs, fate_of, job, number_of
from forebay.cli.tour_producer import TICK_SECONDS, acknowledge

_STEPS_AT_ONCE = 100
# So small that there are runs, tombstones and merges.
_SEGMENT_ITEMS = 500
_TOMORROW_SECONDS = 86_400.0
_LEASE_SECONDS = 3_600.0
_FIRST_MS = 1_700_000_000_000


def work(path: str, steps: int, count: int, steps_per_second: float) -> None:
    """Does what is left to do, at an even pace; each line that it prints is a promise."""
    jobs = Jobs(count)
    with DeadlineQueue(path, segment_items=_SEGMENT_ITEMS, lease_seconds=_LEASE_SECONDS) as queue:
        held = queue.browse(count)
        found = {
            number_of(item.value): fate_of(requeued=item.requeue_ms > 0, buried=item.buried)
            for item in held
        }
        enqueued, done = jobs.progress(found)
        acknowledge(done)
        first, started = done, time.monotonic()
        while done < steps:
            due = first + round((time.monotonic() - started) * steps_per_second)
            some = min(max(due - done, 1), _STEPS_AT_ONCE)
            if enqueued < count:
                end = min(enqueued + some, count)
                # Long ago, so that they are due, and in the order of their numbers.
                values = [job(number) for number in range(enqueued, end)]
                queue.enqueue_many(values, deadline=_FIRST_MS + enqueued)
                done, enqueued = done + end - enqueued, end
            else:
                done += _work_off(queue, jobs, some)
            acknowledge(done)
            time.sleep(TICK_SECONDS)


def _work_off(queue: DeadlineQueue, jobs: Jobs, count: int) -> int:
    """Has some jobs given out and does to them what is to be done; gives how many that was."""
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


if __name__ == "__main__":
    # Ctrl-C goes to the whole group; the parent decides what becomes of the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
