"""Puts items into a deadline queue."""

from __future__ import annotations

from typing import Any

from forebay import DeadlineQueue
from forebay.cli.batch_put import BatchPutter
from forebay.cli.output import plural, talk, write_json
from forebay.formats.deadline.items import VALUE_BYTES_MAX
from forebay.kernels.deadline import BATCH_BYTES, FRESH_BYTES


class DeadlinePutter(BatchPutter):
    """Collects items and enqueues them in batches, each due as the options say."""

    noun = "item"

    def __init__(self, queue: DeadlineQueue, delay: float | None, deadline: int | None) -> None:
        # An item alone is a batch of the log, with its head.
        super().__init__(VALUE_BYTES_MAX, BATCH_BYTES + FRESH_BYTES, queue.options.max_bytes)
        self._queue = queue
        self._delay = delay
        self._deadline = deadline
        self._first_id: int | None = None
        self._last_id: int | None = None

    def send(self, values: list[bytes]) -> None:
        """Enqueues a batch; a delay counts from now."""
        ids = self._queue.enqueue_many(values, delay=self._delay, deadline=self._deadline)
        if self._first_id is None:
            self._first_id = ids[0]
        self._last_id = ids[-1]

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
