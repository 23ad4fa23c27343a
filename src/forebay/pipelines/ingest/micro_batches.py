"""The batches of one run of a stream.

The tables say where a run begins: the manifest of the last batch has the places of all queues. So a
run has a checkpoint of its own, which Spark writes, which is read to learn what a batch covers, and
which nobody needs afterwards. Nothing of it has to survive a crash: a batch without an intent is
planned again, over whatever the queues then have.

Spark calls a `MicroBatches` for every micro-batch. It has no state except its definition. Under
Spark Connect the server runs a copy of it, in a separate process.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forebay.pipelines.ingest.building import Builder, StagedFiles
from forebay.pipelines.ingest.output import (
    COMMIT_ORDER,
    Intent,
    Manifest,
    Offsets,
    Output,
    keys_of_batch,
)
from forebay.tables.protocol import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_OFFSETS = "offsets"


def places_in(checkpoint: str, batch: int) -> dict[str, Any]:
    """Returns the places after a batch that Spark has planned."""
    with open(os.path.join(checkpoint, _OFFSETS, str(batch)), encoding="utf-8") as file:
        # One line with the version, one with settings, then one per source.
        places: dict[str, Any] = json.loads(file.read().splitlines()[2])["queues"]
    return places


def batch_offsets(
    before: Mapping[str, Any], after: Mapping[str, Any], starts: Mapping[str, int]
) -> dict[str, Offsets]:
    """Returns the range of each queue between two places; empty ones are left out.

    `starts` holds the start of queues that existed at the definition, for the first batch. Other
    queues start at 0, so that records trimmed before the stream saw them count as trimmed. The same
    applies to a new queue at the path of one that is gone.
    """
    found: dict[str, Offsets] = {}
    for queue, place in after.items():
        if queue in before and before[queue]["id"] in ("", place["id"]):
            start = place.get("from", before[queue]["offset"])
        else:
            start = 0 if before else starts.get(queue, 0)
        if place["offset"] > start:
            spans = place.get("spans")
            found[queue] = Offsets(
                place["id"],
                place["incarnation"],
                start,
                place["offset"],
                spans=None if spans is None else tuple((first, end) for first, end in spans),
            )
    return found


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Writes the batches of one run to one output."""

    output: Output
    builder: Builder
    checkpoint: str
    # The number of the first batch of this run, and the places before it.
    first: int
    places: dict[str, Any]
    # Where queues started that existed at the definition, unless at their beginning.
    starts: dict[str, int]

    def __call__(self, raw: DataFrame, number: int) -> None:
        """Builds and publishes a batch, the run's own number `number`; durable on return."""
        before = self.places
        if number > 0:
            before = {**before, **places_in(self.checkpoint, number - 1)}
        after = places_in(self.checkpoint, number)
        batch = self.first + number
        staged = self.builder.stage(raw.sparkSession, self.output, batch)
        self.builder.land(raw, staged)
        offsets = batch_offsets(before, after, self.starts)
        earlier = functools.partial(earlier_keys, self.output, range(batch))
        manifest = self.builder.derive(staged, batch, offsets, earlier)
        publish(self.output, replace(manifest, places={**before, **after}), staged)


def publish(output: Output, manifest: Manifest, staged: StagedFiles) -> None:
    """Commits one new batch."""
    files = {table: {manifest.batch: staged.files.get(table, [])} for table in COMMIT_ORDER}
    output.publish(Intent((manifest,), files))


def earlier_keys(
    output: Output, batches: Sequence[int], first_us: int, last_us: int
) -> list[DataFile]:
    """Returns the files of the keys that batches kept between two times."""
    generation = output.document()["generation"]
    found: list[DataFile] = []
    for batch in batches:
        kept, files = keys_of_batch(output, batch, generation)
        if kept is not None and kept[0] <= last_us and kept[1] >= first_us:
            found += files
    return found
