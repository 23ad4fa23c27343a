"""Puts entries into a fifo."""

from __future__ import annotations

from typing import Any

from forebay import Fifo
from forebay.cli.framing import BadInput
from forebay.cli.output import plural, talk, write_json
from forebay.formats.entry import SIZE_MAX
from forebay.kernels.entry import METADATA_BYTES

_BATCH_ENTRIES_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
# A batch goes in whole or not at all: in a queue with a bound it is a small part of it.
_BATCH_PART = 8


class FifoPutter:
    """Collects entries and pushes them in batches."""

    def __init__(self, fifo: Fifo) -> None:
        self._fifo = fifo
        self._pending: list[bytes] = []
        self._size = 0
        self._last_id: int | None = None
        self.count = 0
        limit = fifo.options.max_bytes
        self.record_bytes_max = SIZE_MAX
        self._batch_bytes_max = _BATCH_BYTES_MAX
        if limit is not None:
            self.record_bytes_max = min(SIZE_MAX, limit - METADATA_BYTES)
            self._batch_bytes_max = min(_BATCH_BYTES_MAX, limit // _BATCH_PART)

    def add(self, records: list[bytes], source: str) -> None:
        """Takes entries; pushes if there are enough."""
        for value in records:
            if len(value) > self.record_bytes_max:
                which = self.count + len(self._pending) + 1
                raise BadInput(
                    f"{source}: entry {which} has {len(value)} bytes; the queue takes "
                    f"{self.record_bytes_max}; nothing from it on was put"
                )
            size = len(value) + METADATA_BYTES
            full = self._size + size > self._batch_bytes_max
            if full or len(self._pending) >= _BATCH_ENTRIES_MAX:
                self.flush()
            self._pending.append(value)
            self._size += size

    def flush(self) -> None:
        """Pushes what was collected."""
        if self._pending:
            pending, self._pending, self._size = self._pending, [], 0
            self._last_id = self._fifo.push_many(pending)
            self.count += len(pending)

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells how many entries were put, and the id of the last."""
        if as_json:
            write_json({"count": self.count, "last_id": self._last_id})
        elif self.count:
            talk(f"{prefix}{plural(self.count, 'entry')}, the last with id {self._last_id}")
        else:
            talk(f"{prefix}no entries")


def open_fifo(path: str, options: dict[str, Any]) -> Fifo:
    """Opens or makes a fifo; options that were not given are the queue's own."""
    given = {name: value for name, value in options.items() if value is not None}
    # To block would be to wait for ever: while this process owns the queue nobody takes anything.
    return Fifo(path, **{"when_full": "reject", **given})
