"""What the tests of the command line on deadline queues share: queues to run it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay import DeadlineItem, DeadlineReader
from tests.queues.deadline_helpers import open_queue

# Long past, so that it is due whatever the clock says, and never within the time of a test.
PAST_MS = 1_000_000
FUTURE_MS = 100_000_000_000_000
KEYS = [
    *("kind", "type", "id", "id_str", "deadline_ms", "enqueue_ms"),
    *("requeue_ms", "dequeue_count", "value", "value_b64"),
]


def make_queue(path: Path, values: list[bytes], *, frozen: bool = False, **options: Any) -> Path:
    """Makes a closed queue whose items are due, one second after the other."""
    with open_queue(path, **options) as queue:
        for number, value in enumerate(values):
            queue.enqueue(value, deadline_ms=PAST_MS + 1000 * number)
        if frozen:
            queue.freeze()
    return path


def make_worn_queue(path: Path) -> Path:
    """Makes a queue with every sort of file: items 3 to 19 pending, the third buried, one later."""
    with open_queue(path) as queue:
        for half in (range(10), range(10, 20)):
            for number in half:
                queue.enqueue(numbered_item(number), deadline_ms=PAST_MS + 1000 * number)
            queue.freeze()
        queue.release_many(queue.dequeue_many(2))
        (item,) = queue.dequeue_many(1)
        queue.bury(item, "no good")
        # Given out, and not finished with when the queue is closed.
        queue.dequeue_many(1)
        queue.freeze()
        queue.enqueue(b"later", deadline_ms=FUTURE_MS)
    return path


def numbered_item(number: int) -> bytes:
    """Returns a value that fills a third of a block, so that runs have several."""
    return (b"%08d" % number).ljust(10_000, b".")


def items_of(path: Path) -> list[DeadlineItem]:
    with DeadlineReader(path) as reader:
        return list(reader)


def values_of(path: Path) -> list[bytes]:
    return [item.value for item in items_of(path)]
