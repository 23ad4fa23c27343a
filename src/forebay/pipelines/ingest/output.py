"""The directory of an output, and the one rename that publishes a batch with all its tables.

    OUT/current                        -> _sets/ID; replaced by one rename when tables are rebuilt
    OUT/landed, decoded, …             -> current/landed, …
    OUT/pipeline.json                  -> current/pipeline.json
    OUT/_sets/ID/pipeline.json         the definition of these tables
    OUT/_sets/ID/batches/NUMBER        -> ../../../_batches/NUMBER-ID
    OUT/_sets/ID/TABLE/batch=NUMBER    -> ../batches/NUMBER/TABLE
    OUT/_batches/NUMBER-ID/            one batch: TABLE/…, manifest.json
    OUT/_staging/                      what is being written
    OUT/_checkpoint/                   Spark's

The links of a batch are made, and durable, before its directory is renamed from `_staging` to
`_batches`: until then they lead nowhere, and readers skip such links. So all tables of a batch
appear at one moment, and a crash at any moment leaves the batch whole or absent. Batches have
Spark's numbers; batch -1 has no rows, only the columns, so that every table can be read.

An `Output` has no state except the path: a copy in another process behaves the same. Only the
process that holds the lock, or one that works for it, may change the output.

`manifest.json` describes a batch: the range of offsets per queue, and what became of each record.
It is in the directory of the batch and is published with its tables. It is the source of truth for
the ranges; the counts can be computed from the tables again, as `reconcile` does.

Spark itself syncs nothing, so this module makes its files durable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from forebay.errors import InvalidOption, NotAQueue
from forebay.spark.paths import absolute
from forebay.storage.filesystem import DiskFilesystem

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def sync_tree(path: str) -> None:
    """Makes a directory and everything in it durable; skips files that disappear meanwhile."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            file = os.path.join(directory, name)
            if not os.path.islink(file):
                with contextlib.suppress(FileNotFoundError):
                    sync(file)
        with contextlib.suppress(FileNotFoundError):
            sync(directory)


def sync(path: str) -> None:
    """Makes the content of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: str, data: bytes) -> None:
    """Writes a new file; its content is durable on return, its name once the directory is."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_link(target: str, path: str, aside: str) -> None:
    """Makes a symbolic link, replacing an existing one, in one step; durable once its directory is.

    It is made in the directory `aside` first, where a leftover of a crash does no harm.
    """
    temporary = os.path.join(aside, uuid.uuid4().hex)
    os.symlink(target, temporary)
    os.rename(temporary, path)


_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """Records lost to damage: `count` of them starting at `offset`; None where that is unknown."""

    offset: int | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of one queue that a batch covers: from `start` up to but not including `end`.

    `begin` is where the queue began when the batch was written. It is recorded only if offsets of
    the range were already gone: those missing below it were trimmed. `spans` are the parts of the
    range that have records, if there are gaps between them.

    For a snapshot, `snapshot` is its id, and the length of the range is the item count: it states
    how many items there are, not which ones.
    """

    id: str
    incarnation: int
    start: int
    end: int
    begin: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    snapshot: str | None = None

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Returns the parts of the range that have records."""
        return ((self.start, self.end),) if self.spans is None else self.spans

    @property
    def count(self) -> int:
        """Returns how many offsets the range has."""
        return sum(end - start for start, end in self.parts)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the records of one queue."""

    landed: int = 0
    decoded: int = 0
    rejected: int = 0
    deduplicated: int = 0
    filtered: int = 0
    damaged: int = 0
    trimmed: int = 0

    def __add__(self, other: Counts) -> Counts:
        sums = (getattr(self, name) + getattr(other, name) for name in COUNTED)
        return Counts(*sums)


COUNTED = tuple(one.name for one in fields(Counts))


@dataclass(frozen=True, slots=True)
class Share:
    """One queue's part of a batch."""

    offsets: Offsets
    counts: Counts
    # The times of the first and last record, if records have times.
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One batch."""

    batch: int
    definition: str
    queues: dict[str, Share] = field(default_factory=dict)
    # The first and the last time among the keys, in µs; None if no keys are kept.
    keys_us: tuple[int, int] | None = None

    @property
    def counts(self) -> Counts:
        """Returns what became of the records of all queues."""
        return total(share.counts for share in self.queues.values())

    def encode(self) -> bytes:
        """Returns the bytes of `manifest.json`."""
        return json.dumps({"v": _MANIFEST_VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Reads the result of `encode`."""
        document = json.loads(data)
        queues = {path: _share(plain) for path, plain in document["queues"].items()}
        keys_us = tuple(document["keys_us"]) if document["keys_us"] else None
        return cls(document["batch"], document["definition"], queues, keys_us)


def total(parts: Iterable[Counts]) -> Counts:
    """Adds up counts."""
    return sum(parts, Counts())


def account(
    offsets: Offsets, landed: int, landed_below_begin: int, damage: Iterable[Lost]
) -> tuple[int, int, int]:
    """Returns how many records of a range are damaged, trimmed, and unexplained.

    The last is negative if more records landed than the range holds.
    """
    known: list[tuple[int, int]] = []
    # How many records may be missing although it is unknown which ones.
    unknown = 0
    for lost in damage:
        if lost.count is None:
            unknown = offsets.count
        elif lost.offset is None:
            unknown += lost.count
        else:
            known.append((lost.offset, lost.offset + lost.count))
    damaged = sum(_covered(known, start, end) for start, end in offsets.parts)
    trimmed = 0
    if offsets.begin is not None:
        trimmed = -landed_below_begin
        for start, end in offsets.parts:
            stop = min(max(offsets.begin, start), end)
            trimmed += stop - start - _covered(known, start, stop)
    missing = offsets.count - landed - damaged - trimmed
    explained = max(0, min(missing, unknown))
    return damaged + explained, trimmed, missing - explained


def _covered(ranges: list[tuple[int, int]], start: int, end: int) -> int:
    """Counts the offsets from `start` to `end` that are in any of the ranges."""
    count, reached = 0, start
    for first, last in sorted(ranges):
        stop = min(last, end)
        if stop > max(first, reached):
            count += stop - max(first, reached)
            reached = stop
    return count


def _share(plain: dict[str, Any]) -> Share:
    offsets = dict(plain["offsets"])
    if offsets.get("spans") is not None:
        offsets["spans"] = tuple((start, end) for start, end in offsets["spans"])
    return Share(
        Offsets(**offsets),
        Counts(**plain["counts"]),
        plain["first_ms"],
        plain["last_ms"],
    )


LANDED = "landed"
DECODED = "decoded"
REJECTED = "rejected"
DAMAGE = "damage"
DROPPED = "dropped"
TABLES = (LANDED, DECODED, REJECTED, DAMAGE, DROPPED)

# Why a record is in `dropped`.
DUPLICATE = "duplicate"
FILTERED = "filtered"

LANDED_DDL = (
    "queue STRING, kind STRING, offset BIGINT, timestamp TIMESTAMP, value BINARY, "
    "segment STRING, position BIGINT, queue_id STRING"
)
# The additional columns for a snapshot of a deadline queue.
ITEM_COLUMNS = {
    "deadline": "TIMESTAMP",
    "type": "STRING",
    "requeue_time": "TIMESTAMP",
    "dequeue_count": "BIGINT",
}
DAMAGE_DDL = (
    "queue STRING, kind STRING, segment STRING, position BIGINT, length BIGINT, reason STRING, "
    "torn BOOLEAN, offset BIGINT, count BIGINT"
)
DROPPED_DDL = "queue STRING, offset BIGINT, timestamp TIMESTAMP, why STRING"


def ddls(*, snapshots: bool) -> dict[str, str]:
    """Returns the columns of all tables except `decoded`, for streams or for snapshots."""
    added = "".join(f", {name} {kind}" for name, kind in ITEM_COLUMNS.items() if snapshots)
    landed = LANDED_DDL + added
    return {
        LANDED: landed,
        REJECTED: f"{landed}, reason STRING",
        DAMAGE: DAMAGE_DDL,
        DROPPED: DROPPED_DDL,
    }


def columns_of(text: str) -> StructType:
    """Returns columns in Spark's types, from DDL or from Spark's JSON."""
    from pyspark.sql.types import StructType

    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


COLUMNS_ONLY = -1
DOCUMENT = "pipeline.json"
MANIFEST = "manifest.json"
# A reader that resolved the link before the tables were replaced may still read the old ones.
REPLACED_KEPT_SECONDS = 3600
_CURRENT = "current"
_SETS = "_sets"
_POOL = "_batches"
_STAGING = "_staging"
_INDEX = "batches"
_VERSION = 1


def batch_name(batch: int) -> str:
    """Returns the number of a batch as it appears in names: their text order is their order."""
    return f"{batch:012d}"


@dataclass(frozen=True, slots=True)
class Output:
    """The tables of one ingest."""

    path: str

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Output:
        """Returns the output at a path, whether it exists or not."""
        return cls(absolute(os.fspath(path)))

    @property
    def checkpoint(self) -> str:
        """Returns the directory of Spark's checkpoint."""
        return self._inner("_checkpoint")

    @property
    def exists(self) -> bool:
        """Returns whether the output was created completely."""
        return os.path.exists(self._inner(_CURRENT, DOCUMENT))

    def current(self) -> TableSet:
        """Returns the present tables; raises `NotAQueue` if there are none."""
        if not self.exists:
            raise NotAQueue(f"{self.path} holds no tables: it has no {DOCUMENT}")
        return TableSet(os.path.realpath(self._inner(_CURRENT)), self._inner(_POOL))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps all other processes from changing it; raises `Locked`. Creates the directory."""
        with contextlib.suppress(FileExistsError):
            os.makedirs(self.path)
        try:
            directory = DiskFilesystem().open_directory(self.path)
        except NotAQueue:
            raise InvalidOption(f"out = {self.path!r}: is a file; must be a directory") from None
        try:
            directory.lock()
            yield
        finally:
            directory.close()

    def make(self, document: Mapping[str, Any], columns_only: str) -> None:
        """Creates an output without batches; `columns_only` is a staged one without rows."""
        strangers = sorted(set(os.listdir(self.path)) - {_SETS, _POOL, _STAGING, "_checkpoint"})
        strangers = [name for name in strangers if name not in (*TABLES, DOCUMENT)]
        if strangers:
            raise InvalidOption(
                f"out = {self.path!r}: holds {strangers[0]!r} but no {DOCUMENT}; give a new or an "
                "empty directory"
            )
        held = os.listdir(self._inner(_POOL)) if os.path.isdir(self._inner(_POOL)) else []
        if any(not name.startswith(batch_name(COLUMNS_ONLY)) for name in held):
            raise InvalidOption(
                f"out = {self.path!r}: holds batches, but the link {_CURRENT!r} to its tables is "
                "missing; restore it, or give a new directory"
            )
        # An unfinished creation may have left the checkpoint of a stream without tables.
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for name in (_SETS, _POOL):
            os.makedirs(self._inner(name), exist_ok=True)
        for name in (*TABLES, DOCUMENT):
            with contextlib.suppress(FileExistsError):
                os.symlink(f"{_CURRENT}/{name}", self._inner(name))
        self.replace({COLUMNS_ONLY: self.settle(columns_only)}, document)
        sync(os.path.dirname(self.path))

    def stage(self, batch: int) -> str:
        """Creates a new directory to write a batch to."""
        path = self._inner(_STAGING, f"{batch_name(batch)}-{uuid.uuid4().hex[:8]}")
        os.makedirs(path)
        return path

    def publish(self, batch: int, staged: str) -> None:
        """Makes all tables of a staged batch appear at once; durable on return."""
        name = os.path.basename(staged)
        sync_tree(staged)
        current = os.path.realpath(self._inner(_CURRENT))
        self._link(current, batch, name, _tables_in(staged))
        # Links before the rename: after a crash a batch must not exist for one table only.
        for table in (*TABLES, _INDEX):
            sync(os.path.join(current, table))
        self._move_to_pool(staged)

    def settle(self, staged: str) -> str:
        """Moves a staged batch to the batches, not linked yet; returns its name there."""
        sync_tree(staged)
        self._move_to_pool(staged)
        return os.path.basename(staged)

    def replace(self, changed: Mapping[int, str], document: Mapping[str, Any]) -> None:
        """Replaces the batches with the same numbers by settled ones, all by one rename."""
        name = uuid.uuid4().hex[:8]
        unfinished = self._inner(_STAGING, name)
        for table in (*TABLES, _INDEX):
            os.makedirs(os.path.join(unfinished, table))
        text = json.dumps({"v": _VERSION, **document}, indent=2)
        write_file(os.path.join(unfinished, DOCUMENT), text.encode() + b"\n")
        old = self.current().names() if self.exists else {}
        for batch, directory in {**old, **changed}.items():
            tables = _tables_in(self.settled(directory))
            self._link(unfinished, batch, directory, tables)
        sync_tree(unfinished)
        os.rename(unfinished, self._inner(_SETS, name))
        sync(self._inner(_SETS))
        replace_link(f"{_SETS}/{name}", self._inner(_CURRENT), self._inner(_STAGING))
        sync(self.path)

    def settled(self, name: str) -> str:
        """Returns the directory of a settled batch."""
        return self._inner(_POOL, name)

    def has(self, batch: int) -> bool:
        """Returns whether a batch is published."""
        return os.path.exists(self._inner(_CURRENT, _INDEX, batch_name(batch)))

    def clean(self) -> None:
        """Removes what a crash left, and tables that were replaced a while ago."""
        shutil.rmtree(self._inner(_STAGING), ignore_errors=True)
        current = os.path.basename(os.path.realpath(self._inner(_CURRENT)))
        age = time.time() - os.lstat(self._inner(_CURRENT)).st_mtime
        for name in os.listdir(self._inner(_SETS)):
            if name != current and age > REPLACED_KEPT_SECONDS:
                shutil.rmtree(self._inner(_SETS, name))
        linked = {
            os.path.basename(os.readlink(link.path))
            for name in os.listdir(self._inner(_SETS))
            for link in os.scandir(self._inner(_SETS, name, _INDEX))
        }
        for name in set(os.listdir(self._inner(_POOL))) - linked:
            shutil.rmtree(self._inner(_POOL, name))

    def _move_to_pool(self, staged: str) -> None:
        os.rename(staged, self._inner(_POOL, os.path.basename(staged)))
        # One sync covers both names: a rename is durable as a whole or not at all.
        sync(self._inner(_POOL))

    def _link(self, table_set: str, batch: int, directory: str, tables: list[str]) -> None:
        """Makes the links of a batch in a set of tables; they lead nowhere until it is settled."""
        name = batch_name(batch)
        index = os.path.join(table_set, _INDEX, name)
        replace_link(f"../../../{_POOL}/{directory}", index, self._inner(_STAGING))
        for table in tables:
            # The text of the link is always the same: an existing link is correct.
            with contextlib.suppress(FileExistsError):
                os.symlink(
                    f"../{_INDEX}/{name}/{table}", os.path.join(table_set, table, f"batch={name}")
                )

    def _inner(self, *names: str) -> str:
        return os.path.join(self.path, *names)


@dataclass(frozen=True, slots=True)
class TableSet:
    """Tables that belong together; batches may be added, but none is replaced."""

    path: str
    pool: str

    def table(self, name: str) -> str:
        """Returns the directory of a table."""
        return os.path.join(self.path, name)

    def document(self) -> dict[str, Any]:
        """Returns the document stored with the tables: their definition and their columns."""
        path = os.path.join(self.path, DOCUMENT)
        with open(path, encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
        if document.get("v") != _VERSION:
            found = document.get("v")
            raise InvalidOption(f"{path} has version {found!r}, this program reads {_VERSION}")
        return document

    def batches(self) -> dict[int, str]:
        """Returns the published batches in order, with their directories."""
        names = sorted(self.names().items())
        return {
            batch: os.path.join(self.pool, name) for batch, name in names if batch != COLUMNS_ONLY
        }

    def batch(self, batch: int) -> str:
        """Returns the directory of a published batch."""
        return os.path.join(self.path, _INDEX, batch_name(batch))

    def names(self) -> dict[int, str]:
        """Returns the published batches, including the one for the columns, by their pool names."""
        found: dict[int, str] = {}
        with os.scandir(os.path.join(self.path, _INDEX)) as links:
            for link in links:
                if os.path.exists(link.path):
                    found[int(link.name)] = os.path.basename(os.readlink(link.path))
        return found


def read_manifest(directory: str) -> Manifest:
    """Returns the manifest of a batch."""
    with open(os.path.join(directory, MANIFEST), "rb") as file:
        return Manifest.decode(file.read())


def _tables_in(directory: str) -> list[str]:
    return [table for table in TABLES if os.path.isdir(os.path.join(directory, table))]
