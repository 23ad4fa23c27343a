"""Spark's checkpoint: what it records about a batch, and how it survives a power cut.

Spark writes an entry `offsets/N` before it runs batch N and `commits/N` after it, and syncs
neither. The pipeline syncs these entries before it publishes a batch, so a published batch always
has a durable `offsets/N`. An entry that a power cut left unfinished therefore belongs to a batch
that is not published, or is the commit of one that is published. In the first case the entry is
removed: Spark plans that batch again. In the second case it is written again: if Spark requested
that batch again, the source might have trimmed it by now.

Spark calls a `MicroBatches` for every micro-batch: it builds the batch in a staging directory, then
publishes it by one rename. It has no state except its definition. Under Spark Connect the server
runs a copy of it, in a separate process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.deduplication import KEYS
from forebay.pipelines.ingest.output import (
    MANIFEST,
    Offsets,
    Output,
    read_manifest,
    sync,
    sync_tree,
    write_file,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_OFFSETS = "offsets"
_COMMITS = "commits"
_METADATA = "metadata"
# After the version: the settings and the offsets of the source, or the watermark.
_OFFSETS_LINES = 2
_COMMITS_LINES = 1
_FIRST_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


def batch_offsets(checkpoint: str, batch: int, starts: dict[str, int]) -> dict[str, Offsets]:
    """Returns the range of each queue in a batch that Spark has planned; empty ones are left out.

    `starts` holds the start of queues that existed when the stream began. Other queues start at 0,
    so that records trimmed before the stream started count as trimmed. The same applies to a new
    queue at the path of one that is gone.
    """
    after = _places(checkpoint, batch)
    before = _places(checkpoint, batch - 1) if batch > 0 else {}
    found: dict[str, Offsets] = {}
    for queue, place in after.items():
        if queue in before and before[queue]["id"] in ("", place["id"]):
            start = place.get("from", before[queue]["offset"])
        else:
            start = starts.get(queue, 0) if batch == 0 else 0
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


def committed_batches(checkpoint: str) -> list[int]:
    """Lists the batches that Spark has committed, at least the newest hundred."""
    return _entries(os.path.join(checkpoint, _COMMITS))


def make_durable(checkpoint: str) -> None:
    """Makes everything durable that Spark has written so far."""
    sync_tree(checkpoint)
    sync(os.path.dirname(checkpoint))


def repair(checkpoint: str, published: Callable[[int], bool]) -> None:
    """Repairs a checkpoint after a crash; `published` returns whether a batch is published.

    Raises if the checkpoint is gone although there are published batches: a new stream would number
    its batches from 0 again.
    """
    if not _is_json(os.path.join(checkpoint, _METADATA)):
        if published(0):
            raise InvalidOption(
                f"{checkpoint} is missing or damaged, but the tables hold batches that were made "
                "with it: restore it from a backup, or start over with another out"
            )
        shutil.rmtree(checkpoint, ignore_errors=True)
        return
    _forget_checksum(checkpoint, _METADATA)
    planned = _whole_entries(os.path.join(checkpoint, _OFFSETS), _OFFSETS_LINES)
    committed = _whole_entries(os.path.join(checkpoint, _COMMITS), _COMMITS_LINES)
    if planned and planned[-1] not in committed and published(planned[-1]):
        _commit(os.path.join(checkpoint, _COMMITS), planned[-1], committed)


def _whole_entries(directory: str, lines: int) -> list[int]:
    """Lists the entries; removes unfinished ones at the end."""
    os.makedirs(directory, exist_ok=True)
    entries = _entries(directory)
    while entries:
        name = str(entries[-1])
        # The checksum file may be older or newer than the entry; without it Spark checks nothing.
        _forget_checksum(directory, name)
        if _is_whole(os.path.join(directory, name), lines):
            break
        os.unlink(os.path.join(directory, name))
        entries.pop()
    return entries


def _entries(directory: str) -> list[int]:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(int(name) for name in names if name.isdecimal())


def _commit(directory: str, batch: int, committed: list[int]) -> None:
    """Writes the entry that marks a batch as done, like the one before it."""
    text = _FIRST_COMMIT
    if committed:
        with open(os.path.join(directory, str(committed[-1])), "rb") as file:
            text = file.read()
    write_file(os.path.join(directory, str(batch)), text)
    sync(directory)


def _forget_checksum(directory: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, f".{name}.crc"))


def _places(checkpoint: str, batch: int) -> dict[str, Any]:
    with open(os.path.join(checkpoint, _OFFSETS, str(batch)), encoding="utf-8") as file:
        # One line with the version, one with settings, then one per source.
        places: dict[str, Any] = json.loads(file.read().splitlines()[2])["queues"]
    return places


def _is_whole(path: str, lines: int) -> bool:
    with open(path, "rb") as file:
        version, *found = file.read().splitlines() or [b""]
    return version.startswith(b"v") and len(found) >= lines and all(map(_parses, found))


def _is_json(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _parses(file.read())
    except FileNotFoundError:
        return False


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Writes the batches of one stream to one output."""

    output: Output
    builder: Builder
    # Where queues started that existed at the definition, unless at their beginning.
    starts: dict[str, int]

    def __call__(self, raw: DataFrame, batch: int) -> None:
        """Builds and publishes a batch; durable on return. A published batch is skipped."""
        if self.output.has(batch):
            return
        # The range of this batch must be known as long as the batch exists.
        make_durable(self.output.checkpoint)
        offsets = batch_offsets(self.output.checkpoint, batch, self.starts)
        staged = self.output.stage(batch)
        self.builder.land(raw, staged)
        earlier = functools.partial(keys_between, self.output.current().batches().values())
        manifest = self.builder.derive(raw.sparkSession, batch, staged, offsets, earlier)
        write_file(os.path.join(staged, MANIFEST), manifest.encode())
        self.output.publish(batch, staged)


def keys_between(directories: Iterable[str], first_us: int, last_us: int) -> list[str]:
    """Returns the key directories of the batches that kept keys between two times."""
    found = []
    for directory in directories:
        kept = _keys_us(directory)
        if kept is not None and kept[0] <= last_us and kept[1] >= first_us:
            found.append(os.path.join(directory, KEYS))
    return found


@functools.lru_cache(maxsize=1_000_000)
def _keys_us(directory: str) -> tuple[int, int] | None:
    """Reads a manifest once: a published batch never changes, and a new one has a new name."""
    return read_manifest(directory).keys_us
