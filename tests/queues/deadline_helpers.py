"""What the tests of the deadline queue share: a small queue on a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.queues.deadline.item import DeadlineItem
from forebay.queues.deadline.queue import DeadlineQueue


def open_queue(path: Path, **options: Any) -> DeadlineQueue:
    """Opens a queue with no thread."""
    return DeadlineQueue(path, **{"background": False, **options})


def must(item: DeadlineItem | None) -> DeadlineItem:
    """Returns an item that has to be there."""
    assert item is not None
    return item


def values_of(items: list[DeadlineItem]) -> list[bytes]:
    return [item.value for item in items]


def files_of(path: Path, end: str) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.name.endswith(end))


def counts_of(queue: DeadlineQueue) -> tuple[int, int, int, int]:
    return queue.pending, queue.due, queue.working, queue.buried
