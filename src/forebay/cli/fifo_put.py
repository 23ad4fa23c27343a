"""Puts entries into a fifo."""

from __future__ import annotations

from typing import Any

from forebay import Fifo
from forebay.cli.batch_put import BatchPutter
from forebay.cli.output import plural, talk, write_json
from forebay.formats.entry import SIZE_MAX
from forebay.kernels.entry import METADATA_BYTES


class FifoPutter(BatchPutter):
    """Collects entries and pushes them in batches."""

    noun = "entry"

    def __init__(self, fifo: Fifo) -> None:
        super().__init__(SIZE_MAX, METADATA_BYTES, fifo.options.max_bytes)
        self._fifo = fifo
        self._last_id: int | None = None

    def send(self, values: list[bytes]) -> None:
        """Pushes a batch."""
        self._last_id = self._fifo.push_many(values)

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
