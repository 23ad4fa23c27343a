"""Puts items into a deadline queue."""

from __future__ import annotations

from typing import Any

from forebay import DeadlineQueue
from forebay.cli.framing import BadInput
from forebay.cli.output import plural, talk, write_json
from forebay.formats.deadline import VALUE_BYTES_MAX
from forebay.kernels.deadline_wal import BATCH_BYTES, FRESH_BYTES

_BATCH_ITEMS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
# A batch goes in whole or not at all: in a queue with a bound it is a small part of it.
_BATCH_PART = 8


class DeadlinePutter:
    """Collects items and enqueues them in batches, each due as the options say."""

    def __init__(self, queue: DeadlineQueue, delay: float | None, deadline: int | None) -> None:
        self._queue = queue
        self._delay = delay
        self._deadline = deadline
        self._pending: list[bytes] = []
        self._size = 0
        self._first_id: int | None = None
        self._last_id: int | None = None
        self.count = 0
        limit = queue.options.max_bytes
        self.record_bytes_max = VALUE_BYTES_MAX
        self._batch_bytes_max = _BATCH_BYTES_MAX
        if limit is not None:
            self.record_bytes_max = min(VALUE_BYTES_MAX, limit - BATCH_BYTES - FRESH_BYTES)
            self._batch_bytes_max = min(_BATCH_BYTES_MAX, limit // _BATCH_PART)

    def add(self, records: list[bytes], source: str) -> None:
        """Takes items; enqueues if there are enough."""
        for value in records:
            if len(value) > self.record_bytes_max:
                which = self.count + len(self._pending) + 1
                raise BadInput(
                    f"{source}: item {which} has {len(value)} bytes; the queue takes "
                    f"{self.record_bytes_max}; nothing from it on was put"
                )
            size = len(value) + FRESH_BYTES
            full = self._size + size > self._batch_bytes_max
            if full or len(self._pending) >= _BATCH_ITEMS_MAX:
                self.flush()
            self._pending.append(value)
            self._size += size

    def flush(self) -> None:
        """Enqueues what was collected; a delay counts from now."""
        if not self._pending:
            return
        pending, self._pending, self._size = self._pending, [], 0
        ids = self._queue.enqueue_many(pending, delay=self._delay, deadline=self._deadline)
        if self._first_id is None:
            self._first_id = ids[0]
        self._last_id = ids[-1]
        self.count += len(pending)

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells how many items were put, and their ids."""
        if as_json:
            ids = {"first_id": self._first_id, "last_id": self._last_id}
            write_json({"count": self.count, **ids})
        elif self.count:
            many = f"ids {self._first_id} to {self._last_id}"
            which = many if self.count > 1 else f"id {self._last_id}"
            talk(f"{prefix}{plural(self.count, 'item')}, {which}")
        else:
            talk(f"{prefix}no items")


def open_deadline(path: str, options: dict[str, Any]) -> DeadlineQueue:
    """Opens or makes a deadline queue; options that were not given are the queue's own."""
    given = {name: value for name, value in options.items() if value is not None}
    # To block would be to wait for ever: while this process owns the queue nobody takes anything.
    return DeadlineQueue(path, **{"when_full": "reject", **given})
