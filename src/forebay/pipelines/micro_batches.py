"""What Spark calls for every micro-batch: build it aside, then publish it by one rename.

A `MicroBatches` has no state but what defines it. Under Spark Connect the server runs a copy of it,
in a process of its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.pipelines import checkpoint
from forebay.pipelines.building import Builder
from forebay.pipelines.deduplication import KEYS
from forebay.pipelines.durability import write_file
from forebay.pipelines.output import MANIFEST, Output, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Writes the batches of one stream to one output."""

    output: Output
    builder: Builder
    # Where queues began that were there when the stream was defined, unless at their beginning.
    starts: dict[str, int]

    def __call__(self, raw: DataFrame, batch: int) -> None:
        """Builds and publishes a batch; durable on return. One that is published is skipped."""
        if self.output.has(batch):
            return
        # What this batch covers must be known as long as the batch is.
        checkpoint.make_durable(self.output.checkpoint)
        offsets = checkpoint.batch_offsets(self.output.checkpoint, batch, self.starts)
        staged = self.output.stage(batch)
        self.builder.land(raw, staged)
        earlier = functools.partial(keys_between, self.output.current().batches().values())
        manifest = self.builder.derive(raw.sparkSession, batch, staged, offsets, earlier)
        write_file(os.path.join(staged, MANIFEST), manifest.encode())
        self.output.publish(batch, staged)


def keys_between(directories: Iterable[str], first_us: int, last_us: int) -> list[str]:
    """Returns where batches have their keys, of those that kept some between two times."""
    found = []
    for directory in directories:
        kept = _keys_us(directory)
        if kept is not None and kept[0] <= last_us and kept[1] >= first_us:
            found.append(os.path.join(directory, KEYS))
    return found


@functools.lru_cache(maxsize=1_000_000)
def _keys_us(directory: str) -> tuple[int, int] | None:
    """Reads a manifest once: a published batch never changes, another one has another name."""
    return read_manifest(directory).keys_us
