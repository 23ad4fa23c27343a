"""Deadline queues to tables: each ingest lands one snapshot of their live items, as one batch.

A stream cannot follow the items of a deadline queue, because they have no fixed order. A batch
holds all live items (pending, leased and buried) of every queue that has changed since its last
snapshot. Their number is known before anything lands, from the footers of the queue's runs and from
its logs. An ingest that finds no change lands nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forebay.errors import DataLoss, InvalidOption
from forebay.pipelines.ingest.building import SOURCE_COLUMNS, Builder, StagedFiles
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.micro_batches import publish
from forebay.pipelines.ingest.output import ITEM_COLUMNS, Manifest, Offsets, Output
from forebay.queues.deadline.slices import SnapshotReader
from forebay.queues.deadline.snapshot import Snapshot
from forebay.spark import paths
from forebay.spark.kinds import kind_at
from forebay.tables.protocol import DataFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# How often an owner may merge and remove files while they are being read, before this gives up.
_TRIES_MAX = 10
_COLUMNS = ",".join([SOURCE_COLUMNS, *ITEM_COLUMNS])


def are_wanted(source: Sequence[str]) -> bool:
    """Returns whether the queues at paths are deadline queues; raises if only some are."""
    kinds = {path: kind_at(path) for path in paths.find(source)}
    landed = [path for path, kind in kinds.items() if kind.lands_snapshots]
    others = [path for path, kind in kinds.items() if not kind.lands_snapshots]
    if landed and others:
        raise InvalidOption(
            f"source: {landed[0]} is {kinds[landed[0]].label}, of which each run lands a snapshot, "
            f"and {others[0]} is not: use a separate ingest for each"
        )
    return bool(landed)


def define(definition: Definition, limits: Mapping[str, object]) -> Definition:
    """Turns a definition into one of snapshots; rejects parameters that only streams have."""
    limits = {**limits, "starting": None if definition.starting == "earliest" else "given"}
    for name, given in limits.items():
        if given is not None:
            raise InvalidOption(
                f"{name}: the source is a deadline queue, of which each run lands a snapshot of "
                "all items; leave it out"
            )
    return replace(definition, snapshots=True)


def land(spark: SparkSession, output: Output, builder: Builder) -> Iterator[Manifest]:
    """Lands and publishes a snapshot of the changed queues; returns its manifest, or nothing."""
    from pyspark.errors import PySparkException

    for tries in range(1, _TRIES_MAX + 1):
        changed = _changed(output, builder.definition.source)
        if not changed:
            return
        batch = max(output.batches(), default=-1) + 1
        staged = builder.stage(spark, output, batch)
        try:
            _land(spark, builder, staged, changed)
        except PySparkException:
            if tries == _TRIES_MAX or all(one.is_held() for one in changed):
                raise
            # The queue was frozen or merged while it was being read: there is a newer snapshot.
            staged.discard()
            continue
        offsets = {one.path: one.offsets() for one in changed}
        manifest = builder.derive(staged, batch, offsets, _no_keys)
        publish(output, manifest, staged)
        yield manifest
        return


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot of one queue, and how many items it has."""

    path: str
    snapshot: Snapshot
    count: int

    def offsets(self) -> Offsets:
        """Returns the offsets for the manifest of a batch."""
        return Offsets(self.snapshot.queue_id, 0, 0, self.count, snapshot=self.snapshot.id)

    def is_held(self) -> bool:
        """Returns whether the files of the snapshot still exist."""
        try:
            SnapshotReader(self.path, self.snapshot.encode()).close()
        except DataLoss:
            return False
        return True


def _changed(output: Output, source: Sequence[str]) -> list[_Taken]:
    """Takes snapshots of the queues that have changed since they last landed."""
    last: dict[str, str | None] = {}
    for manifest in output.manifests():
        for queue, share in manifest.queues.items():
            last[queue] = share.offsets.snapshot
    found = []
    for path in paths.expand(source):
        with SnapshotReader(path) as reader:
            if reader.snapshot.id != last.get(reader.path):
                found.append(_Taken(reader.path, reader.snapshot, reader.count()))
    return found


def _land(
    spark: SparkSession, builder: Builder, staged: StagedFiles, changed: list[_Taken]
) -> None:
    options = {
        "paths": json.dumps([one.path for one in changed]),
        "snapshots": json.dumps({one.path: one.snapshot.encode() for one in changed}),
        "mode": "PERMISSIVE",
        "columns": _COLUMNS,
    }
    builder.land(spark.read.format("forebay").options(**options).load(), staged)


def _no_keys(first_us: int, last_us: int) -> list[DataFile]:
    return []
