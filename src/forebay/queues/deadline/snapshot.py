"""A deadline queue at one moment: which of its files count and up to where, and what is in them.

A snapshot is small, has a text form, and can be read by another process later, without the queue's
lock, in parts of any size: a part needs the entries between two keys, and finds them by the sparse
indexes of the runs. Its files never change below what it names: runs are written once, logs only
grow. An owner that freezes or merges removes them: whoever opens them then gets `DataLoss`, and has
to take another snapshot. Damage is a value.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Final

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, NotAQueue
from forebay.formats.deadline.items import (
    FileKind,
    Item,
    Key,
    KeyTuple,
    Tombstone,
    file_name,
    parse_file_name,
)
from forebay.formats.deadline.manifest import NAME, decode_manifest
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Header, Note, Record, decode_header, scan_all
from forebay.kernels.deadline import IS_BURIED, IS_TOMBSTONE, Block
from forebay.queues.deadline.bytes import read_whole
from forebay.queues.deadline.names import is_deadline_queue
from forebay.queues.deadline.picture import Picture, look, read_manifest
from forebay.queues.deadline.replay import with_staged
from forebay.queues.deadline.runs import open_run
from forebay.storage import atomic
from forebay.storage.filesystem import Directory, DiskFilesystem, File
from forebay.storage.staging import Staged, read_staged


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run; `size` is -1 if it is lost. Items below `low_water` are dead."""

    name: str
    size: int
    low_water: KeyTuple = (0, 0)

    @property
    def kind(self) -> FileKind:
        """What it holds."""
        parsed = parse_file_name(self.name)
        assert parsed is not None
        return parsed[1]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log up to the last batch that counts, which may be in the staging buffer yet.

    `header` is its header in hex, whatever is left of it in the file. Of one that is lost the size
    is 0.
    """

    name: str
    size: int
    header: str = ""


@dataclass(frozen=True, slots=True)
class LostPart:
    """Damage that was found when the snapshot was taken; bad blocks are found when they are read.

    `count` is how many items it costs, None if nobody can tell.
    """

    name: str
    position: int
    length: int
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a queue at one moment, the oldest first, and what is lost."""

    queue_id: str
    runs: tuple[RunPart, ...]
    logs: tuple[LogPart, ...]
    lost: tuple[LostPart, ...] = ()
    # Copies of items that only came back because their tombstones are lost.
    hidden: tuple[KeyTuple, ...] = ()
    # Damage that costs nothing: what it took is known from elsewhere.
    mended: tuple[LostPart, ...] = ()

    @property
    def id(self) -> str:
        """Tells snapshots apart, in few letters; the same as long as nothing was written."""
        return hashlib.sha256(self.encode().encode()).hexdigest()[:16]

    def encode(self) -> str:
        """Returns its text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Snapshot:
        """Reads what `encode` gave."""
        plain = json.loads(text)
        runs = (
            RunPart(run["name"], run["size"], (run["low_water"][0], run["low_water"][1]))
            for run in plain["runs"]
        )
        logs = tuple(LogPart(**log) for log in plain["logs"])
        lost = tuple(LostPart(**each) for each in plain.get("lost", ()))
        hidden = tuple((key[0], key[1]) for key in plain.get("hidden", ()))
        mended = tuple(LostPart(**each) for each in plain.get("mended", ()))
        return cls(plain["queue_id"], tuple(runs), logs, lost, hidden, mended)


def take_snapshot(directory: Directory, boot_id: bytes | None = None) -> Snapshot:
    """Looks at a queue; raises `NotAQueue`."""
    picture = look(directory, DiskFilesystem().boot_id() if boot_id is None else boot_id)
    try:
        return snapshot_of(picture)
    finally:
        picture.close()


def snapshot_of(picture: Picture) -> Snapshot:
    """Returns the snapshot that a picture is."""
    runs = []
    for each in picture.sets:
        for kind, file in sorted(each.files.items()):
            low = each.low_water if kind is FileKind.PENDING_RUN else (0, 0)
            runs.append(RunPart(file_name(each.number, kind), file.size, low))
        runs += [RunPart(lost.name, -1) for lost in each.lost]
    lost = tuple(_lost(damage) for damage in picture.damage)
    names = {each.name for each in lost}
    logs = []
    for log in picture.logs:
        if log.header is not None and not log.gone:
            size = min(log.end, len(log.data))
            logs.append(LogPart(log.name, size, log.header.encode().hex()))
        elif log.name in names:
            logs.append(LogPart(log.name, 0))
    mended = [*picture.mended]
    if picture.manifest_damage is not None:
        mended.append(picture.manifest_damage)
    return Snapshot(
        picture.manifest.queue_id.hex(),
        tuple(runs),
        tuple(logs),
        lost,
        tuple(picture.revived),
        tuple(map(_lost, mended)),
    )


def _lost(damage: Damage) -> LostPart:
    name = damage.path.rpartition("/")[2]
    return LostPart(name, damage.position, damage.length, damage.reason, damage.count)


# What an entry says, beside the attributes of a block: how often an item elsewhere was given out.
DEQUEUED = 4
# No key is above it.
LAST_KEY = (1 << 48, 0)
# deadline, id, attributes, the two times, count, reason, value, file, where in it or None
Row = tuple[int, int, int, int, int, int, bytes, bytes, str, int | None]
_COUNT: Final = 5
VALUE: Final = 7


class SnapshotFiles:
    """The open files of a snapshot. One thread at a time may use it.

    Raises `DataLoss` if they are not there any more: once it is made, nothing is lost.
    """

    def __init__(self, directory: Directory, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._directory = directory
        self._files: dict[str, File] = {}
        self._runs: dict[str, Run | Damage] = {}
        self._log_data: dict[str, bytes] = {}
        self._logs: _Logs | None = None
        try:
            self._check_queue()
            # What leaves the staging buffer after this is in the logs that are opened later.
            staged = read_staged(directory)
            for run in snapshot.runs:
                if run.size >= 0:
                    self._files[run.name] = self._open(run)
            for log in snapshot.logs:
                self._log_data[log.name] = self._read_log(log, staged)
        except BaseException:
            self.close()
            raise

    def run(self, part: RunPart) -> Run | Damage:
        """Opens a run, by its blocks if need be; a Damage if nothing of it can be read."""
        if part.name not in self._runs:
            self._runs[part.name] = self._open_run(part)
        return self._runs[part.name]

    def live(self, start: KeyTuple, end: KeyTuple, *, leads: bool) -> Iterator[list[Row] | Damage]:
        """Yields the live items from a key up to another, sorted, and before them what is damaged.

        Without `leads`, a bad block that begins before `start` is somebody else's to tell.
        """
        found: dict[KeyTuple, Row] = {}
        dead: set[KeyTuple] = set(self.snapshot.hidden)
        marks: dict[KeyTuple, int] = {}
        for part in self.snapshot.runs:
            kind = part.kind
            for block in self._blocks(part, start, end, leads=leads):
                if isinstance(block, Damage):
                    yield block
                elif kind is FileKind.TOMBSTONE_RUN:
                    dead.update(_keys(block))
                elif kind is FileKind.DEQUEUED_RUN:
                    _note(marks, _rows(block, part.name))
                else:
                    found.update((row[:2], row) for row in _rows(block, part.name))
        logs = self._log_content()
        if leads:
            told = {(each.name, each.position) for each in self.snapshot.lost}
            yield from (self._damage(each) for each in self.snapshot.lost)
            for damage in logs.damage:
                if (damage.path.rpartition("/")[2], damage.position) not in told:
                    yield damage
        logs.gather(start, end, found, dead, marks)
        # As they were found, file by file: that is almost sorted already.
        live = sorted([key for key in found if key not in dead])
        if not marks:
            yield [found[key] for key in live]
            return
        yield [_marked(found[key], marks.get(key, 0)) for key in live]

    def mended(self) -> Iterator[Damage]:
        """Yields the damage that costs nothing."""
        return (self._damage(each) for each in self.snapshot.mended)

    def blocks(self, part: RunPart, first: int, end: int) -> Iterator[list[Row] | Damage]:
        """Yields the entries of blocks of a run, block by block, and what is damaged."""
        run = self.run(part)
        if isinstance(run, Damage):
            yield self._told(run)
            return
        yield from map(self._told, run.damage) if first == 0 else ()
        for number in range(first, min(end, len(run.places))):
            block = run.load(number)
            if isinstance(block, Damage):
                yield _of_nobody(block)
            else:
                rows = _rows(_Slice(block, 0, block.count, run.places[number].position), part.name)
                dequeued = part.kind is FileKind.DEQUEUED_RUN
                yield [(*row[:2], DEQUEUED, *row[3:]) for row in rows] if dequeued else rows

    def records(self, part: LogPart) -> Iterator[Row | Damage]:
        """Yields the records of a log in the order of writing, and what is damaged."""
        path = f"{self._directory.path}/{part.name}"
        if not part.size:
            yield from (self._damage(each) for each in self.snapshot.lost if each.name == part.name)
            return
        for record in _scan(self._log_data[part.name], part, path):
            if isinstance(record, Damage):
                yield self._told(record)
            else:
                yield _row_of(record, part.name)

    def log_weights(self) -> Iterator[tuple[KeyTuple, int]]:
        """Returns the keys that logs tell of, and about what each takes."""
        return self._log_content().weights()

    def count(self) -> int:
        """Returns how many items are alive: all that there are, less those that tombstones take."""
        count = self._log_content().count()
        for part in self.snapshot.runs:
            run = self.run(part)
            if isinstance(run, Damage) or part.kind is FileKind.DEQUEUED_RUN:
                continue
            entries = run.footer.count
            count += -entries if part.kind is FileKind.TOMBSTONE_RUN else entries
        return count

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> SnapshotFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _damage(self, lost: LostPart) -> Damage:
        path = f"{self._directory.path}/{lost.name}"
        return Damage(path, lost.position, lost.length, lost.reason, count=lost.count)

    def _told(self, damage: Damage) -> Damage:
        """Returns damage with the count that the snapshot knows."""
        name = damage.path.rpartition("/")[2]
        for lost in self.snapshot.lost:
            if (lost.name, lost.position) == (name, damage.position):
                return self._damage(lost)
        return damage

    def _check_queue(self) -> None:
        data = read_manifest(self._directory)
        if isinstance(data, Damage) and not is_deadline_queue(self._directory.names()):
            raise DataLoss(
                f"{self._directory.path} is no deadline queue; there was one when the query was "
                "planned"
            )
        try:
            assert isinstance(data, bytes)
            found = decode_manifest(data, f"{self._directory.path}/{NAME}").queue_id.hex()
        except (AssertionError, Damaged):
            # A queue that has lost its manifest is read by its files.
            return
        if found != self.snapshot.queue_id:
            raise DataLoss(f"{self._directory.path} is another queue than the one that was planned")

    def _open(self, part: RunPart) -> File:
        try:
            file = self._directory.open(part.name)
        except FileNotFoundError:
            raise self._gone(part) from None
        if file.size() < part.size:
            file.close()
            raise self._gone(part)
        return file

    def _read_log(self, part: LogPart, staged: Staged | None) -> bytes:
        names = [part.name]
        if part.name.endswith(atomic.TEMPORARY):
            # A recovery has given it its name meanwhile.
            names.append(part.name.removesuffix(atomic.TEMPORARY))
        if not part.size:
            return b""
        for name in names:
            try:
                data = read_whole(self._directory, name)[0]
            except (FileNotFoundError, Damaged):
                continue
            header = _header(part, data)
            if header is not None:
                whole = with_staged(data, header, staged)
                if len(whole) < part.size:
                    whole = with_staged(data, header, staged, holes=True)
                data = whole
            if len(data) >= part.size:
                return data[: part.size]
        raise self._gone(part)

    def _gone(self, part: RunPart | LogPart) -> DataLoss:
        return DataLoss(
            f"{self._directory.path}: {part.name} is gone: the owner froze or merged it after the "
            "query was planned; run the query again"
        )

    def _open_run(self, part: RunPart) -> Run | Damage:
        path = f"{self._directory.path}/{part.name}"
        file = self._files.get(part.name)
        if file is None:
            return Damage(path, 0, 0, "the file is missing")
        try:
            return open_run(file, path)
        except (Damaged, NotAQueue) as error:
            reason = error.damage.reason if isinstance(error, Damaged) else str(error)
            return Damage(path, 0, part.size, reason)

    def _blocks(
        self, part: RunPart, start: KeyTuple, end: KeyTuple, *, leads: bool
    ) -> Iterator[_Slice | Damage]:
        """Yields what of the blocks of a run lies between two keys."""
        run = self.run(part)
        if isinstance(run, Damage):
            # The snapshot tells.
            return
        low = max(start, part.low_water)
        for number in range(run.row_of(Key(*low)), len(run.places)):
            place = run.places[number]
            first = (place.key.deadline_ms, place.key.id)
            if first >= end:
                return
            block = run.load(number)
            if isinstance(block, Damage):
                if leads or first >= start:
                    yield _of_nobody(block)
                continue
            at = 0 if first >= low else block.search(*low)
            yield _Slice(block, at, block.search(*end), place.position)

    def _log_content(self) -> _Logs:
        if self._logs is None:
            records = (row for part in self.snapshot.logs for row in self.records(part))
            self._logs = _Logs(records)
        return self._logs


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some entries of a block."""

    block: Block
    first: int
    stop: int
    position: int


def _rows(part: _Slice, name: str) -> list[Row]:
    """Returns entries one by one: all work that is done for each row of a run is done here."""
    row, place = part.block.row, (name, part.position)
    return [row(at) + place for at in range(part.first, part.stop)]


def _keys(part: _Slice) -> Iterable[KeyTuple]:
    deadline, id = part.block.deadline, part.block.id
    return ((deadline(at), id(at)) for at in range(part.first, part.stop))


def _marked(row: Row, count: int) -> Row:
    return (*row[:5], count, *row[6:]) if count > row[_COUNT] else row


def _note(marks: dict[KeyTuple, int], rows: Iterable[Row]) -> None:
    for row in rows:
        marks[row[:2]] = max(marks.get(row[:2], 0), row[_COUNT])


def _of_nobody(damage: Damage) -> Damage:
    """Leaves out which entry of its file is the first one: that is the number of no item."""
    return Damage(
        damage.path, damage.position, damage.length, damage.reason, damage.torn, None, damage.count
    )


class _Logs:
    """What all logs of a snapshot say, by key.

    A key is used for one item only, so what happened to it needs no order.
    """

    def __init__(self, records: Iterable[Row | Damage]) -> None:
        self._items: dict[KeyTuple, Row] = {}
        self._dead: set[KeyTuple] = set()
        self._marks: dict[KeyTuple, int] = {}
        self.damage: list[Damage] = []
        for row in records:
            if isinstance(row, Damage):
                self.damage.append(row)
            elif row[2] == IS_TOMBSTONE:
                self._dead.add(row[:2])
            elif row[2] == DEQUEUED:
                _note(self._marks, [row])
            else:
                self._items[row[:2]] = row
        self._keys = sorted(self._items.keys() | self._dead | self._marks.keys())

    def gather(
        self,
        start: KeyTuple,
        end: KeyTuple,
        items: dict[KeyTuple, Row],
        dead: set[KeyTuple],
        marks: dict[KeyTuple, int],
    ) -> None:
        """Adds what it knows of keys between two."""
        for key in self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]:
            if key in self._items:
                items[key] = self._items[key]
            if key in self._dead:
                dead.add(key)
            if key in self._marks:
                marks[key] = max(marks.get(key, 0), self._marks[key])

    def weights(self) -> Iterator[tuple[KeyTuple, int]]:
        """Yields the keys, and about what each takes."""
        for key in self._keys:
            item = self._items.get(key)
            yield key, 0 if item is None else len(item[VALUE])

    def count(self) -> int:
        """Returns how many items it adds to what is in the runs; negative if it takes some."""
        return len(self._items) - len(self._dead)


def _scan(data: bytes, part: LogPart, path: str) -> Iterator[Record | Damage]:
    header = _header(part, data)
    if header is None:
        yield Damage(path, 0, len(data), "the header of the log does not verify")
        return
    for record in scan_all(data, path, header):
        if not isinstance(record, Note):
            yield record


def _header(part: LogPart, data: bytes) -> Header | None:
    """Returns the header of a log, as the snapshot knows it; None if it cannot be read."""
    try:
        return decode_header(bytes.fromhex(part.header) or data, part.name)
    except (Damaged, NotAQueue):
        return None


def _row_of(record: Record, name: str) -> Row:
    deadline_ms, id = record.key.deadline_ms, record.key.id
    if isinstance(record, Tombstone):
        return (deadline_ms, id, IS_TOMBSTONE, 0, 0, 0, b"", b"", name, None)
    if isinstance(record, Item):
        stats = record.stats
        times = (stats.enqueue_ms, stats.requeue_ms, stats.dequeue_count)
        attributes = IS_BURIED if record.buried else 0
        return (deadline_ms, id, attributes, *times, record.reason, record.value, name, None)
    return (
        deadline_ms,
        id,
        DEQUEUED,
        record.time_ms,
        0,
        record.dequeue_count,
        b"",
        b"",
        name,
        None,
    )
