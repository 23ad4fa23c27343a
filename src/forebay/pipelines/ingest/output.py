"""An output: the tables of one ingest, and the order in which a batch is committed to them.

    OUT/pipeline.json          the definition, the columns, and the number of rebuilds
    OUT/landed, decoded, …     a table each, in its format
    OUT/_batches/NUMBER.json   the manifest of a published batch
    OUT/_keys/                 the keys of the deduplication, in files that manifests name
    OUT/_intent.json           what is being committed
    OUT/_staging/              what is being written, if the format has no place of its own for it

The data files of a batch are written first; nothing names them yet. Then the intent is written: the
manifest and the list of files. From then on the batch will be in every table, whatever dies: each
table is asked whether it holds the batch, and gets it if not, `landed` last. Then the manifest is
written and the intent emptied. A run begins by finishing the intent that it finds, and by
removing the files of batches that have none.

A rebuild is the same, with the batches that it replaces and the new document in its intent.

An `Output` has no state except the address: a copy in another process behaves the same. Only the
process that holds the lock, or one that works for it, may change the output.

A manifest describes a batch: the range of offsets per queue, what became of each record, and the
places from which the next batch goes on. It is the source of truth for the ranges and the places;
the counts can be computed from the tables again, as `reconcile` does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from forebay.errors import InvalidOption, NotAQueue
from forebay.spark.open_tables import DOCUMENT, VERSION, read_document, schema_of, table_of
from forebay.spark.paths import absolute
from forebay.storage.filesystem import DiskFilesystem
from forebay.tables.protocol import BATCH, STAGING, DataFile, OpenTable
from forebay.tables.store import Store, is_remote, open_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_MANIFEST_VERSION = 2


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
    # The files of the keys.
    keys: tuple[DataFile, ...] = ()
    # Where each queue goes on: offsets of the source, with those of earlier batches.
    places: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> Counts:
        """Returns what became of the records of all queues."""
        return total(share.counts for share in self.queues.values())

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        return json.dumps(self.document(), indent=1).encode() + b"\n"

    def document(self) -> dict[str, Any]:
        """Returns a form for JSON."""
        return {"v": _MANIFEST_VERSION, **asdict(self)}

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Reads the result of `encode`."""
        return cls.from_document(json.loads(data))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Manifest:
        """Reads the result of `document`."""
        queues = {path: _share(plain) for path, plain in document["queues"].items()}
        keys_us = tuple(document["keys_us"]) if document["keys_us"] else None
        keys = tuple(DataFile(**one) for one in document["keys"])
        digest, places = document["definition"], document["places"]
        return cls(document["batch"], digest, queues, keys_us, keys, places)


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

# The column that names the table of a row, where tasks write several.
SIDE = "_side"

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


BATCHES = "_batches"
KEYS = "_keys"
INTENT = "_intent.json"
CHECKPOINT = "_staging/checkpoint"
# The order of the commits: whoever finds a batch in `landed` finds it in all tables.
COMMIT_ORDER = (DECODED, REJECTED, DROPPED, DAMAGE, LANDED)

# For each table the files of each batch.
Files = Mapping[str, Mapping[int, Sequence[DataFile]]]


@dataclass(frozen=True, slots=True)
class Intent:
    """What is being committed: one new batch, or with a document the batches of a rebuild."""

    manifests: tuple[Manifest, ...]
    files: Files
    document: dict[str, Any] | None = None
    # Whether a rebuild replaces all rows, so that the columns may change.
    everything: bool = False

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        files = {
            table: {batch: [one.document() for one in those] for batch, those in batches.items()}
            for table, batches in self.files.items()
        }
        manifests = [manifest.document() for manifest in self.manifests]
        plain = {"v": VERSION, "manifests": manifests, "files": files}
        return json.dumps(
            {**plain, "document": self.document, "everything": self.everything}
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Intent:
        """Reads the result of `encode`."""
        plain = json.loads(data)
        files = {
            table: {
                int(batch): [DataFile(**one) for one in those] for batch, those in found.items()
            }
            for table, found in plain["files"].items()
        }
        manifests = tuple(map(Manifest.from_document, plain["manifests"]))
        return cls(manifests, files, plain["document"], plain["everything"])


@dataclass(frozen=True, slots=True)
class Output:
    """The tables of one ingest."""

    path: str

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Output:
        """Returns the output at a path or an address, whether it exists or not."""
        text = os.fspath(path)
        return cls(text.rstrip("/") if is_remote(text) else absolute(text))

    @property
    def store(self) -> Store:
        """The place of everything."""
        return open_store(self.path)

    @property
    def exists(self) -> bool:
        """Returns whether the output was created completely; raises if it is of version 0.1."""
        return read_document(self.path) is not None

    def document(self) -> dict[str, Any]:
        """Returns the document stored with the tables; raises `NotAQueue` if there is none."""
        document = read_document(self.path)
        if document is None:
            raise NotAQueue(f"{self.path} holds no tables: it has no {DOCUMENT}")
        return document

    def tables(self, document: Mapping[str, Any] | None = None) -> dict[str, OpenTable]:
        """Returns the tables, in the order of their commits."""
        known = self.document() if document is None else document
        return {name: table_of(self.path, known, name) for name in COMMIT_ORDER}

    def batches(self) -> list[int]:
        """Lists the published batches."""
        names = (name.removesuffix(".json") for name in self.store.names(BATCHES))
        return sorted(int(name) for name in names if name.isdecimal())

    def has(self, batch: int) -> bool:
        """Returns whether a batch is published."""
        return self.store.read(_manifest_name(batch)) is not None

    def manifest(self, batch: int) -> Manifest:
        """Returns the manifest of a published batch."""
        data = self.store.read(_manifest_name(batch))
        if data is None:
            raise NotAQueue(f"{self.path}: batch {batch} is not published")
        return Manifest.decode(data)

    def manifests(self) -> list[Manifest]:
        """Returns the manifests of all published batches, in order."""
        return [self.manifest(batch) for batch in self.batches()]

    def intent(self) -> Intent | None:
        """Returns what is being committed, or was when a process died."""
        data = self.store.read(INTENT)
        return Intent.decode(data) if data else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from changing it; raises `Locked`. Creates the directory.

        An object store has no locks: there the processes of this machine and user exclude one
        another.
        """
        path = self.path
        if is_remote(path):
            name = hashlib.sha256(path.encode()).hexdigest()[:16]
            path = os.path.join(tempfile.gettempdir(), f"forebay-{os.getuid()}-{name}")
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, mode=0o700 if is_remote(self.path) else 0o777)
        try:
            directory = DiskFilesystem().open_directory(path)
        except NotAQueue:
            raise InvalidOption(f"out = {self.path!r}: is a file; must be a directory") from None
        try:
            directory.lock()
            yield
        finally:
            directory.close()

    def make(self, document: Mapping[str, Any]) -> None:
        """Creates an output without batches; its document comes last."""
        if self.batches():
            raise InvalidOption(
                f"out = {self.path!r}: holds batches, but {DOCUMENT} is missing; restore it, or "
                "give a new directory"
            )
        known = {*TABLES, STAGING, BATCHES, KEYS, "catalog.db", "catalog.db-journal"}
        strangers = [name for name in self.store.names("") if name not in known]
        if strangers:
            raise InvalidOption(
                f"out = {self.path!r}: holds {strangers[0]!r} but no {DOCUMENT}; give a new or an "
                "empty directory"
            )
        whole = {"v": VERSION, "id": uuid.uuid4().hex, **document}
        for name, table in self.tables(whole).items():
            table.create(schema_of(whole, name))
        self.write_document(whole)

    def write_document(self, document: Mapping[str, Any]) -> None:
        """Replaces the document."""
        text = json.dumps({**document, "v": VERSION}, indent=2)
        self.store.write(DOCUMENT, text.encode() + b"\n")

    def publish(self, intent: Intent) -> None:
        """Commits batches to all tables; durable on return. Their files must be written."""
        self.store.write(INTENT, intent.encode())
        self._finish(intent)

    def finish(self) -> None:
        """Completes what a process was committing when it died."""
        intent = self.intent()
        if intent is not None:
            self._finish(intent)

    def clean(self) -> None:
        """Completes what was being committed, and removes files of batches that were not."""
        self.finish()
        store = self.store
        store.remove(STAGING)
        last, generation = max(self.batches(), default=-1), self.document()["generation"]
        for parent in (*TABLES, KEYS):
            for name in store.names(parent):
                batch, attempt = attempt_of(name)
                if batch is not None and (batch > last or attempt > generation):
                    store.remove(f"{parent}/{name}")

    def _finish(self, intent: Intent) -> None:
        for name, table in self.tables(intent.document).items():
            files = intent.files.get(name, {})
            if intent.document is not None:
                self._replace(name, table, intent, files)
            for manifest in intent.manifests if intent.document is None else ():
                # Nothing is looked up for a table that gets nothing.
                if files.get(manifest.batch) and not table.holds(manifest.batch):
                    table.append(manifest.batch, files[manifest.batch])
        for manifest in intent.manifests:
            self.store.write(_manifest_name(manifest.batch), manifest.encode())
        if intent.document is not None:
            self.write_document(intent.document)
        # Emptied, not removed: both are one step, and it is written again soon.
        self.store.write(INTENT, b"")

    def _replace(
        self, name: str, table: OpenTable, intent: Intent, files: Mapping[int, Sequence[DataFile]]
    ) -> None:
        assert intent.document is not None
        generation = intent.document["generation"]
        if not table.is_rebuilt(generation):
            batches = {one.batch: files.get(one.batch, ()) for one in intent.manifests}
            schema = schema_of(intent.document, name) if intent.everything else None
            table.replace(generation, batches, schema)


def new_directory(batch: int, generation: int) -> str:
    """Returns the name of a directory for the files of an attempt to write a batch."""
    return f"{BATCH}={batch}-{generation}-{uuid.uuid4().hex[:8]}"


def attempt_of(name: str) -> tuple[int | None, int]:
    """Returns batch and generation of a directory; None for another one."""
    batch, _, rest = name.removeprefix(f"{BATCH}=").partition("-")
    generation = rest.partition("-")[0]
    if name.startswith(f"{BATCH}=") and batch.isdecimal() and generation.isdecimal():
        return int(batch), int(generation)
    return None, 0


def _manifest_name(batch: int) -> str:
    return f"{BATCHES}/{batch}.json"


@functools.lru_cache(maxsize=1_000_000)
def keys_of_batch(
    output: Output, batch: int, generation: int
) -> tuple[tuple[int, int] | None, tuple[DataFile, ...]]:
    """Returns the times and the files of the keys of a batch; read once between two rebuilds."""
    manifest = output.manifest(batch)
    return manifest.keys_us, manifest.keys
