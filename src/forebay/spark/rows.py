"""Arrow record batches of one range: what is the same in every row, and rows of damage."""

from __future__ import annotations

import os
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.spark.planning import Range

CONSTANT = ("queue", "queue_id", "kind", "segment")


class Rows:
    """Makes columns of one range; those that are the same in every row are made once."""

    def __init__(self, schema: Any, part: Range) -> None:
        self.schema = schema
        self._part = part
        self._same: dict[tuple[str, str], Any] = {}

    def constant(self, name: str, count: int, segment: str) -> Any:
        """Returns a column that has one value."""
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
        """Returns a batch of one row that stands for a damaged place."""
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
