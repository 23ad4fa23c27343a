"""Turns the contents of a range into Arrow record batches, and handles damage in it.

A kind of queue defines how a range is scanned and how a batch becomes columns (`Contents`); the
rest is the same for all kinds.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, Overtaken
from forebay.queues.shared.handle import Closing
from forebay.spark.planning import Range, ReadRequest

_CONSTANT = ("queue", "queue_id", "kind", "segment")
_REMEDY = "mode PERMISSIVE or DROPMALFORMED skips it, table=damage lists it"
_logger = logging.getLogger(__name__)


class Contents(Closing):
    """The contents of one queue, range by range. One thread at a time may use it."""

    @abstractmethod
    def scan(self, part: Range) -> Iterator[Any]:
        """Yields the contents of a range, batch by batch, and each damage in its place."""

    @abstractmethod
    def record_batch(self, rows: RangeRows, batch: Any) -> Any:
        """Returns a batch from `scan` as an Arrow record batch; None if nothing in it is wanted."""

    def is_harmless(self, damage: Damage) -> bool:
        """Returns whether damage costs no record; it is then only logged."""
        return False

    def mended(self, part: Range) -> Iterable[Damage]:
        """Returns damage of a range that only the table `damage` lists."""
        return ()

    def read(self, wanted: ReadRequest, part: Range) -> Iterator[Any]:
        """Yields the records of a range as Arrow record batches."""
        rows = RangeRows(wanted.schema, part)
        try:
            for item in self.scan(part):
                if not isinstance(item, Damage):
                    made = self.record_batch(rows, item)
                    if made is not None:
                        yield made
                elif wanted.mode == "FAILFAST" and not self.is_harmless(item):
                    raise Damaged(item, _REMEDY)
                elif wanted.shows_damage and not self.is_harmless(item):
                    yield rows.of_damage(item)
                else:
                    _logger.warning("%s, byte %s: %s", item.path, item.position, item.reason)
        except (DataLoss, Overtaken) as error:
            if wanted.fail_on_data_loss:
                raise
            _logger.warning("%s", error)

    def read_damage(self, part: Range) -> Iterator[Damage]:
        """Yields what does not verify in a range."""
        yield from self.mended(part)
        for item in self.scan(part):
            if isinstance(item, Damage):
                yield item


class RangeRows:
    """Builds the record batches of one range; constant columns are built once."""

    def __init__(self, schema: Any, part: Range) -> None:
        self.schema = schema
        self._part = part
        self._same: dict[tuple[str, str], Any] = {}

    def record_batch(
        self, count: int, segment: str, names: Iterable[str], column: Callable[[Any], Any]
    ) -> Any:
        """Returns a batch; `column` builds the columns with these names, each from its field."""
        columns = []
        for field in self.schema:
            if field.name in names:
                columns.append(column(field))
            elif field.name in _CONSTANT:
                columns.append(self._constant(field.name, count, segment))
            else:
                # The damage column, and columns that only other kinds have.
                columns.append(pyarrow.nulls(count, field.type))
        return pyarrow.record_batch(columns, schema=self.schema)

    def _constant(self, name: str, count: int, segment: str) -> Any:
        part = self._part
        text = {
            "queue": part.queue,
            "queue_id": part.queue_id,
            "kind": part.kind,
            "segment": segment,
        }[name]
        held = self._same.get((name, text))
        if held is None or len(held) < count:
            held = pyarrow.repeat(pyarrow.scalar(text, pyarrow.string()), count)
            self._same[name, text] = held
        return held.slice(0, count)

    def of_damage(self, damage: Damage) -> Any:
        """Returns a batch of one row that represents a damaged place."""
        row = {
            "queue": self._part.queue,
            "queue_id": self._part.queue_id,
            "kind": self._part.kind or None,
            "offset": damage.offset,
            "segment": os.path.basename(damage.path),
            "position": damage.position,
            "damage": {
                "path": damage.path,
                "position": damage.position,
                "length": damage.length,
                "reason": damage.reason,
                "torn": damage.torn,
                "count": damage.count,
            },
        }
        return pyarrow.RecordBatch.from_pylist([row], schema=self.schema)
