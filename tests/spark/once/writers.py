"""Those who write the queues of a stream and are killed in the middle, in processes of their own.

Run as `python -m tests.spark.once.writers ROLE PATH POINTS`. A *producer* appends in all ways there
are; the content of a record is a function of its offset. An *owner* adopts what others leave in the
inbox. Both trim. They tell where they are (`points.py`), and the producer what was acknowledged.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forebay.queues.log.queue import Log
from tests.spark.once.points import Points
from tests.support.killing import end_with_parent
from tests.support.values import value_at

OPENING = "opening"
ACKNOWLEDGED = "acknowledged"
_PAUSE_SECONDS = 0.4
_ADOPTING_SECONDS = 0.05
_SINGLES = 40
_MANY = 10


def append_singly(log: Log) -> None:
    for _ in range(_SINGLES):
        log.append(value_at(log.end))


def append_many(log: Log) -> None:
    for _ in range(_MANY):
        first = log.end
        log.append_many([value_at(first + number) for number in range(_MANY)])


def sync(log: Log) -> None:
    for _ in range(_MANY):
        log.append(value_at(log.end))
        log.sync()


def trim(log: Log) -> None:
    for _ in range(_MANY):
        log.trim()


def adopt(log: Log) -> None:
    deadline = time.monotonic() + _ADOPTING_SECONDS
    while time.monotonic() < deadline:
        log.adopt()


ROLES: dict[str, dict[str, Callable[[Log], None]]] = {
    "producer": {
        "appending singly": append_singly,
        "appending many": append_many,
        "syncing": sync,
        "trimming": trim,
    },
    "owner": {"adopting": adopt, "trimming": trim},
}


def main() -> None:
    role, path, points = sys.argv[1], Path(sys.argv[2]), Points(Path(sys.argv[3]))
    end_with_parent()
    draw = random.Random()
    points.tell(OPENING)
    with Log(path, sync="interval", sync_interval_seconds=0.02, segment_bytes=20_000) as log:
        while True:
            phase, work = draw.choice(list(ROLES[role].items()))
            points.tell(phase)
            work(log)
            if role == "producer":
                (points.directory / ACKNOWLEDGED).write_text(f"{log.end:020d}")
            time.sleep(draw.uniform(0, _PAUSE_SECONDS))


if __name__ == "__main__":
    main()
