"""A log under test, the model of what it promised, and the check of what a crash left."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from forebay.damage import Damage
from forebay.errors import ForebayError, NotAQueue
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.storage import inbox
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import write_all
from forebay.storage.tail import Tail
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handing_in import write_parts
from tests.crash.workload import PATH, Broken, Promise, SteppingClock


@dataclass
class Model:
    """What may be at each offset, where each reader may stand, and how far a reader has seen.

    An append that failed leaves its value as one that may be there; one that succeeded is the only
    one.
    """

    values: dict[int, list[bytes]] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)
    published: list[list[bytes]] = field(default_factory=list)
    dropping: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader saw before anything was recovered, and what the owner has afterwards.

    `seen` is None if there was no queue to read; `saved` are where consumers and cursors stand.
    """

    seen: dict[int, bytes] | None
    records: dict[int, bytes]
    begin: int
    end: int
    tail: Tail
    saved: dict[str, int]


class LogWorkload:
    """Operations on a log, each followed by its promise."""

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Model | None = None, **options: Any
    ) -> None:
        self.filesystem = filesystem
        self.random = Random(seed)
        self.options = {"segment_bytes": 1500, "staging_bytes": 4096, **options}
        self.model = model or Model(dropping=options.get("when_full") == "drop_oldest")
        self.clock = SteppingClock()
        self.batches = 0
        self.stored = 0
        self.log = self._open()

    def _open(self) -> Log:
        return Log(
            PATH,
            filesystem=self.filesystem,
            clock=self.clock,
            background=False,
            trim_interval_seconds=None,
            **self.options,
        )

    @property
    def always(self) -> bool:
        return bool(self.options.get("sync", "always") == "always")

    @property
    def trouble(self) -> ForebayError | None:
        return self.log._writer._error

    def append(self, size: int | None = None) -> None:
        value = self._value(size)
        self._submit([value])
        self._stored(self.log.append(value), [value])

    def append_many(self, count: int, size: int | None = None) -> None:
        values = [self._value(size) for _ in range(count)]
        self._submit(values)
        self._stored(self.log.append_many(values), values)

    def sync(self) -> None:
        self.log.sync()
        self.filesystem.acknowledge(Promise(end=self.log.end))

    def drain(self) -> None:
        self.clock.ms += 60
        self.log.maintain()

    def read_and_commit(self, name: str, count: int) -> None:
        self.model.positions.setdefault(name, []).append(self.log.begin)
        consumer = self.log.consumer(name)
        records = consumer.read(count) if self.log.begin <= consumer.position else []
        if records:
            self.model.positions[name].append(consumer.position)
        consumer.commit()
        self.filesystem.acknowledge(Promise(consumer=name, position=consumer.position))
        consumer.close()

    def move_cursor(self, name: str, offset: int) -> None:
        directory = self.filesystem.open_directory(PATH)
        cursor = Cursor.open(directory, name, start=0, incarnation=1)
        self.model.positions.setdefault("cursor " + name, [0]).append(offset)
        cursor.advance(offset, 1)
        self.filesystem.acknowledge(Promise(cursor=name, position=cursor.offset))
        cursor.close()
        directory.close()

    def trim(self) -> None:
        self.log.trim()

    def publish_batch(self, sizes: list[int], writer: str = "w") -> None:
        """Leaves a batch in the inbox, as another process does."""
        self.batches += 1
        stem = f"w-{self.batches}"
        queue = self.filesystem.open_directory(PATH)
        groups = [[self._value(None) for _ in range(count)] for count in sizes]
        parts = write_parts(self.filesystem, self.clock, queue, stem, groups)
        values = [value for group in groups for value in group]
        self._submit(values, start=self.log.end)
        self.model.published.append(values)
        inbox.publish(queue, stem, inbox.Manifest(writer, self.batches, parts))
        queue.close()

    def leave_orphan(self) -> None:
        """Leaves a part that nobody publishes, older than a day."""
        queue = self.filesystem.open_directory(PATH)
        work = queue.directory(inbox.DIRECTORY, create=True)
        made_ms = self.clock.now_ms() - inbox.ORPHAN_MS - 1000
        file = work.create(inbox.new_stem(made_ms) + inbox.PART)
        write_all(file, self._value(90), 0)
        file.close()
        work.close()
        queue.close()

    def adopt(self) -> None:
        self.log.adopt()
        self.stored = max(self.stored, self.log.end)
        self.filesystem.acknowledge(Promise(end=self.log.end))

    def reopen(self) -> None:
        self.log.close()
        self.filesystem.acknowledge(Promise(end=self.log.end))
        self.log = self._open()

    def kill(self) -> None:
        """Kills the process and opens the queue again: everything acknowledged must be there."""
        self.log._closed = True
        self.filesystem = self.filesystem.kill()
        self.log = self._open()
        if self.log.end < self.stored:
            raise Broken(f"kill -9: {self.stored} records acknowledged, {self.log.end} there")
        # What was recovered is served: from now on a power cut must not take it.
        self.filesystem.acknowledge(Promise(end=self.log.end))

    def forget(self) -> None:
        self.log._closed = True

    def go_on(self) -> None:
        value = b"the disk is well again"
        self.model.values[self.log.append(value)] = [value]

    def _submit(self, values: list[bytes], start: int | None = None) -> None:
        first = self.log.end if start is None else start
        for number, value in enumerate(values):
            self.model.values.setdefault(first + number, []).append(value)

    def _stored(self, first: int, values: list[bytes]) -> None:
        for number, value in enumerate(values):
            self.model.values[first + number] = [value]
        self.stored = max(self.stored, first + len(values))
        end = self.stored if self.always else 0
        incarnation = self.log._writer.publisher.tail.incarnation
        self.filesystem.acknowledge(Promise(end, seen=self.stored, incarnation=incarnation))

    def _value(self, size: int | None) -> bytes:
        size = self.random.choice((3, 20, 90, 200, 600)) if size is None else size
        return self.random.randbytes(size)


def check_machine(
    machine: ForgetfulFilesystem,
    kept: list[Promise],
    model: Model,
    *,
    options: dict[str, Any],
    where: str,
    go_on: bool = False,
    killed: bool = False,
) -> Found:
    """Opens the log on a machine, and raises `Broken` if a promise does not hold."""
    # A reader that does not own the queue must see the same, before anything is recovered.
    seen = _read_only(machine)
    log = Log(
        PATH,
        filesystem=machine,
        clock=SteppingClock(),
        background=False,
        trim_interval_seconds=None,
        **options,
    )
    found = _look(log, seen, where)
    hold_promises(found, kept, model, where=where, killed=killed)
    if go_on:
        _check_going_on(log, machine, found.records, where, options)
    else:
        log._closed = True
    return found


def hold_promises(
    found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
) -> None:
    """Raises `Broken` if what was found does not keep a promise."""
    seen, records = found.seen, found.records
    published = {value for batch in model.published for value in batch}
    # The owner also adopts what is in the inbox.
    more = killed or not published.isdisjoint(records.values())
    same = seen is None or seen == records or (more and seen.items() <= records.items())
    if seen is not None and not same:
        raise Broken(f"{where}: a reader saw {len(seen)} records, the owner {len(records)}")
    _check_records(found, published, kept, model, where)
    _check_readers(found, kept, model, where)


def _read_only(machine: ForgetfulFilesystem) -> dict[int, bytes] | None:
    try:
        reader = LogReader(PATH, filesystem=machine)
    except (FileNotFoundError, NotAQueue):
        return None
    found: dict[int, bytes] = {}
    for item in reader.scan():
        if not isinstance(item, Damage):
            found.update(enumerate(item.values, item.offset))
    reader.close()
    return found


def _look(log: Log, seen: dict[int, bytes] | None, where: str) -> Found:
    records = _read_all(log, where)
    info = log.info()
    cursors = {f"cursor {name}": position for name, position in info["cursors"].items()}
    saved = {**info["consumers"], **cursors}
    return Found(seen, records, log.begin, log.end, log._writer.publisher.tail, saved)


def _read_all(log: Log, where: str) -> dict[int, bytes]:
    reader = LogReader(PATH, filesystem=log._filesystem)
    found: dict[int, bytes] = {}
    for item in reader.scan():
        if isinstance(item, Damage):
            raise Broken(f"{where}: damage after a crash: {item}")
        found.update(enumerate(item.values, item.offset))
    reader.close()
    if list(found) != list(range(log.begin, log.end)):
        raise Broken(f"{where}: offsets {list(found)[:3]}..., not {log.begin}..{log.end}")
    return found


def _check_records(
    found: Found, published: set[bytes], kept: list[Promise], model: Model, where: str
) -> None:
    adopted = [value for value in found.records.values() if value in published]
    taken = [batch for batch in model.published if batch[0] in adopted]
    if adopted != [value for batch in taken for value in batch]:
        raise Broken(f"{where}: a batch of the inbox is there in part, twice or out of order")
    for offset, value in found.records.items():
        # A batch in the inbox gets its offsets from whoever adopts it, behind what was left.
        if value not in model.values.get(offset, []) and value not in published:
            raise Broken(f"{where}: record {offset} is not what was put there")
    promised = max((promise.end for promise in kept), default=0)
    end = found.end
    if end < promised:
        raise Broken(f"{where}: {promised} records acknowledged, {end} there")
    for promise in kept:
        if promise.seen > end and not found.tail.lost_since(promise.incarnation, promise.seen):
            raise Broken(f"{where}: offsets from {end} on will be given out twice, unseen")


def _check_readers(found: Found, kept: list[Promise], model: Model, where: str) -> None:
    saved, begin = found.saved, found.begin
    for promise in kept:
        name = promise.consumer or (promise.cursor and f"cursor {promise.cursor}")
        if name is None:
            continue
        if name not in saved or saved[name] < promise.position:
            raise Broken(f"{where}: {name} was at {promise.position}, is at {saved.get(name)}")
    for name, offset in saved.items():
        if offset not in model.positions.get(name, [0]) and not model.dropping:
            raise Broken(f"{where}: {name} is at {offset}, where it never was")
        if begin > offset and not model.dropping:
            raise Broken(f"{where}: trimmed to {begin}, but {name} is at {offset}")
    if begin and not saved and not model.dropping:
        raise Broken(f"{where}: trimmed to {begin} without a consumer")


def _check_going_on(
    log: Log,
    machine: ForgetfulFilesystem,
    found: dict[int, bytes],
    where: str,
    options: dict[str, Any],
) -> None:
    """Appends, closes and opens again: the queue must be whole, and clean."""
    offset = log.append(b"after the crash")
    if offset != max(found, default=log.begin - 1) + 1:
        raise Broken(f"{where}: the next offset is {offset} behind {len(found)} records")
    log.close()
    with Log(PATH, filesystem=machine, background=False, **options) as again:
        expected = {**found, offset: b"after the crash"}
        there = _read_all(again, where)
        if any(there.get(at, b"") != expected[at] for at in expected if at >= again.begin):
            raise Broken(f"{where}: going on changed what was there")
