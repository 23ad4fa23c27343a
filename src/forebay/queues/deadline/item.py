"""An item of a deadline queue, as a user holds it."""

from __future__ import annotations

from forebay.formats.deadline.items import BURIED_BIT, Item, Key, Stats
from forebay.queues.deadline.schedule import DeadlineItem

__all__ = ["DeadlineItem", "as_item", "as_record"]


def as_item(item: Item, dequeue_count: int) -> DeadlineItem:
    """Makes the user's item from a stored item."""
    return DeadlineItem(
        item.key.id,
        item.value,
        item.key.deadline_ms & ~BURIED_BIT,
        item.stats.enqueue_ms,
        item.stats.requeue_ms,
        dequeue_count,
        item.buried,
        item.reason.decode(errors="replace"),
    )


def as_record(item: DeadlineItem) -> Item:
    """Makes a stored item from the user's item."""
    return Item(
        Key(*item.key),
        item.value,
        Stats(item.enqueue_ms, item.requeue_ms, item.dequeue_count),
        item.buried,
        item.reason.encode(),
    )
