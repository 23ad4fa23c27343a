"""Rebuilds batches with the present definition, and replaces the old ones all at once.

A batch is the unit: a range of offsets or times is widened to the batches that touch it, and each
is rebuilt over the same offsets. With `deduplicate` the range is also extended to the last batch,
because the records that one batch keeps determine what later ones drop. During the rebuild readers
see the old tables; then each table is replaced by one commit of its format.

A batch is read from its queues again. If they no longer hold all its records, it is rebuilt from
`landed`, and its `landed` and `damage` are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, InvalidOption
from forebay.pipelines.ingest.building import SOURCE_COLUMNS, Builder, StagedFiles
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import (
    COMMIT_ORDER,
    DAMAGE,
    DECODED,
    LANDED,
    Intent,
    Manifest,
    Output,
    Share,
)
from forebay.spark.kinds import open_streamed
from forebay.spark.open_tables import table_frame
from forebay.spark.options import SourceOptions
from forebay.tables.protocol import BATCH, DataFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What a backfill may change. The rest determines which records there are, or how all tables are
# stored.
REBUILDABLE = ("decode", "schema", "sql", "deduplicate")


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets, or of times in ms: from `start` up to but not including `end`."""

    start: int | None
    end: int | None
    by_time: bool = False

    @classmethod
    def parse(cls, text: str) -> Span:
        """Parses "A..B", where either may be missing. Raises `InvalidOption`."""
        first, dots, last = (part.strip() for part in str(text).partition(".."))
        by_time = not all(one.isascii() and one.isdecimal() for one in (first, last) if one)
        convert = _time_ms if by_time else int
        try:
            if not dots:
                raise ValueError
            start = convert(first) if first else None
            return cls(start, convert(last) if last else None, by_time)
        except ValueError:
            raise InvalidOption(
                f"backfill = {text!r}: must be A..B, two offsets or two times such as "
                "2026-11-01T09:00:00Z; if one is missing, it means the beginning or the end"
            ) from None

    def touches(self, share: Share) -> bool:
        """Returns whether a queue's part of a batch touches the range; true if it has no times."""
        if not self.by_time:
            first, last = share.offsets.start, share.offsets.end - 1
        elif share.first_ms is None or share.last_ms is None:
            return True
        else:
            first, last = share.first_ms, share.last_ms
        return (self.start is None or last >= self.start) and (self.end is None or first < self.end)


def rebuild(
    spark: SparkSession,
    output: Output,
    builder: Builder,
    span: Span,
    key_file: str | None = None,
) -> Iterator[Manifest]:
    """Rebuilds the batches of a range and publishes them; yields the manifest of each."""
    document = output.document()
    manifests = {manifest.batch: manifest for manifest in output.manifests()}
    chosen = choose(manifests, builder.definition, span)
    everything = len(chosen) == len(manifests)
    check_change(builder, document, everything=everything)
    files: dict[str, dict[int, list[DataFile]]] = {table: {} for table in COMMIT_ORDER}
    for batch in chosen:
        old = manifests[batch]
        staged = builder.stage(spark, output, batch, rebuild=True)
        if not _land_again(spark, builder, staged, old.queues, key_file):
            if batch < document["landed_from"]:
                raise InvalidOption(
                    f"backfill: batch {batch} cannot be rebuilt: its queues no longer hold all its "
                    "records, and those in landed were old and are removed; begin the range later"
                )
            staged.discard()
            staged = builder.stage(spark, output, batch, rebuild=True)
            _keep_landed(spark, output, document, staged, batch)
        offsets = {queue: share.offsets for queue, share in old.queues.items()}
        manifest = builder.derive(staged, batch, offsets, _EarlierKeys(manifests, batch))
        # Earlier batches that were rebuilt count in their new form.
        manifests[batch] = replace(manifest, places=old.places)
        for table in COMMIT_ORDER:
            files[table][batch] = staged.files.get(table, [])
        yield manifests[batch]
    new = {**document, **document_of(builder, document["starts"])}
    new["generation"] = document["generation"] + 1
    output.publish(Intent(tuple(manifests[batch] for batch in chosen), files, new, everything))


@dataclass(frozen=True, slots=True)
class _EarlierKeys:
    """The keys of the batches before one."""

    manifests: dict[int, Manifest]
    batch: int

    def __call__(self, first_us: int, last_us: int) -> list[DataFile]:
        """Returns the files with keys between two times."""
        return [
            file
            for manifest in self.manifests.values()
            if manifest.batch < self.batch and manifest.keys_us is not None
            if manifest.keys_us[0] <= last_us and manifest.keys_us[1] >= first_us
            for file in manifest.keys
        ]


def document_of(builder: Builder, starts: dict[str, int]) -> dict[str, Any]:
    """Returns the part of the document that the definition determines."""
    tables = {name: builder.tables()[name].json() for name in COMMIT_ORDER}
    return {"definition": builder.definition.document(), "tables": tables, "starts": starts}


def choose(manifests: dict[int, Manifest], definition: Definition, span: Span) -> list[int]:
    """Returns the batches that must be rebuilt for a range."""
    touched = [
        batch
        for batch, manifest in manifests.items()
        if any(map(span.touches, manifest.queues.values()))
    ]
    if touched and definition.deduplicate is not None:
        return [batch for batch in manifests if batch >= touched[0]]
    return touched


def check_change(builder: Builder, document: dict[str, Any], *, everything: bool) -> None:
    """Rejects a change that would contradict the batches that are not rebuilt."""
    old = Definition.from_document(document["definition"])
    changed = builder.definition.differences(old)
    if set(old.source) <= set(builder.definition.source):
        changed = [name for name in changed if name != "source"]
    for name in changed:
        if name not in REBUILDABLE:
            raise InvalidOption(f"backfill: {name} cannot be changed; use another out")
    if everything:
        return
    if builder.columns != document["tables"][DECODED]:
        raise InvalidOption(
            "backfill: the columns of decoded change, so every batch must be rebuilt: use '..'"
        )
    if "deduplicate" in changed:
        raise InvalidOption(
            "backfill: deduplicate changes, so every batch must be rebuilt: use '..'"
        )


def _land_again(
    spark: SparkSession,
    builder: Builder,
    staged: StagedFiles,
    shares: dict[str, Share],
    key_file: str | None,
) -> bool:
    """Lands a batch from its queues; returns False if they no longer hold all its records."""
    from pyspark.errors import PySparkException

    if not _are_held(shares):
        return False
    bounds = {
        "startingOffsets": {queue: _first(share) for queue, share in shares.items()},
        "endingOffsets": {queue: share.offsets.end for queue, share in shares.items()},
    }
    options = {name: json.dumps(places) for name, places in bounds.items()}
    if key_file is not None:
        options["keyFile"] = key_file
    options |= {"mode": "PERMISSIVE", "columns": SOURCE_COLUMNS, "paths": json.dumps([*shares])}
    try:
        builder.land(spark.read.format("forebay").options(**options).load(), staged)
    except PySparkException:
        if _are_held(shares):
            raise
        # It was trimmed while being read.
        return False
    return True


def _keep_landed(
    spark: SparkSession,
    output: Output,
    document: dict[str, Any],
    staged: StagedFiles,
    batch: int,
) -> None:
    """Writes what landed first again."""
    for table in (LANDED, DAMAGE):
        rows = table_frame(spark, output.path, document, table).where(f"{BATCH} = {batch}")
        staged.write(rows.drop(BATCH), table)


def _are_held(shares: dict[str, Share]) -> bool:
    return all(_is_held(queue, share) for queue, share in shares.items())


def _is_held(queue: str, share: Share) -> bool:
    """Returns whether a queue still has the records that a batch landed."""
    offsets = share.offsets
    if offsets.snapshot is not None:
        # The files of a snapshot exist only as long as the queue does not change: the landed table
        # is the safer source.
        return False
    if offsets.begin is not None and _first(share) - offsets.start != share.counts.trimmed:
        # Some of the records that are trimmed now had landed earlier.
        return False
    try:
        kind, reader = open_streamed(queue, SourceOptions((queue,)))
        with reader:
            if kind.queue_id(reader) != offsets.id or kind.begin(reader) > _first(share):
                return False
            return kind.holds(reader, offsets.incarnation, offsets.end)
    except (OSError, ForebayError):
        return False


def _first(share: Share) -> int:
    """Returns the first offset of a range that was not yet trimmed when it landed."""
    offsets = share.offsets
    start = offsets.parts[0][0] if offsets.parts else offsets.start
    if offsets.begin is None:
        return start
    return min(max(offsets.begin, start), offsets.end)


def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
