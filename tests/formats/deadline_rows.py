"""Turns our entries into the tuples that the second decoders give."""

from __future__ import annotations

from forebay.formats.deadline.items import Entry, Tombstone
from tests.formats.deadline_independent import Row


def row_of(entry: Entry) -> Row:
    key = (entry.key.deadline_ms, entry.key.id)
    if isinstance(entry, Tombstone):
        return (*key, "tombstone")
    stats = (entry.stats.enqueue_ms, entry.stats.requeue_ms, entry.stats.dequeue_count)
    return (*key, "pending", *stats, entry.value, entry.buried, entry.reason)
