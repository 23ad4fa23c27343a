"""A log under test, the model of what it promised, and the check of what a crash left."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forebay.damage import Damage
from forebay.storage import inbox
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import write_all
from forebay.storage.tail import Tail
from tests.crash.handing_in import write_parts
from tests.crash.workload import PATH, Promise, Scene, Workload
from tests.support.inside import writer_of
from tests.support.planting import Broken


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


class LogWorkload(Workload):
    """Operations on a log, each followed by its promise."""

    kind = "log"
    small = MappingProxyType(
        {"segment_bytes": 1500, "staging_bytes": 4096, "trim_interval_seconds": None}
    )
    # None is as large as a segment.
    sizes = (3, 20, 90, 200, 600)
    batches = 0

    def read_and_commit(self, name: str, count: int) -> None:
        self.model.positions.setdefault(name, []).append(self.queue.begin)
        consumer = self.queue.consumer(name)
        records = consumer.read(count) if self.queue.begin <= consumer.position else []
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
        self.queue.trim()

    def publish_batch(self, sizes: list[int], writer: str = "w") -> None:
        """Leaves a batch in the inbox, as another process does."""
        self.batches += 1
        stem = f"w-{self.batches}"
        queue = self.filesystem.open_directory(PATH)
        groups = [[self._value(None) for _ in range(count)] for count in sizes]
        parts = write_parts(self.filesystem, self.clock, queue, stem, groups)
        values = [value for group in groups for value in group]
        self._submit(values)
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
        self.queue.adopt()
        self.stored = max(self.stored, self.queue.end)
        self._promise_synced()

    def _new_model(self) -> Model:
        return Model(dropping=self.options.get("when_full") == "drop_oldest")

    def _value(self, size: int | None) -> bytes:
        return self.random.randbytes(self._size(size))

    def _submit(self, values: list[bytes]) -> None:
        for offset, value in enumerate(values, self.queue.end):
            self.model.values.setdefault(offset, []).append(value)

    def _put(self, values: list[bytes], *, many: bool) -> None:
        self._submit(values)
        first: int = self._call_put(values, many=many)
        for offset, value in enumerate(values, first):
            self.model.values[offset] = [value]
        self.stored = max(self.stored, first + len(values))
        end = self.stored if self.always else 0
        incarnation = writer_of(self.queue).mark.last.incarnation
        self.filesystem.acknowledge(Promise(end, seen=self.stored, incarnation=incarnation))

    def _promise_synced(self) -> None:
        self.filesystem.acknowledge(Promise(end=self.queue.end))

    def _check_kill(self) -> None:
        if self.queue.end < self.stored:
            raise Broken(f"kill -9: {self.stored} records acknowledged, {self.queue.end} there")
        self._promise_synced()

    @classmethod
    def content_of(cls, reader: Any, where: str) -> dict[int, bytes]:
        # An unfinished end is left to the owner.
        batches = [item for item in reader.scan() if not isinstance(item, Damage)]
        return {batch.offset + n: v for batch in batches for n, v in enumerate(batch.values)}

    @classmethod
    def _look(cls, queue: Any, seen: Any, scene: Scene) -> Found:
        records = cls._read_all(queue, scene)
        info = queue.info()
        cursors = {f"cursor {name}": place["offset"] for name, place in info.cursors.items()}
        saved = {**info.positions, **cursors}
        return Found(seen, records, queue.begin, queue.end, writer_of(queue).mark.last, saved)

    @classmethod
    def _read_all(cls, log: Any, scene: Scene) -> dict[int, bytes]:
        with cls.read_on(scene.machine, scene.options) as reader:
            found: dict[int, bytes] = {}
            for item in reader.scan():
                if isinstance(item, Damage):
                    raise Broken(f"{scene.where}: damage after a crash: {item}")
                found.update(enumerate(item.values, item.offset))
        if list(found) != list(range(log.begin, log.end)):
            raise Broken(f"{scene.where}: offsets {list(found)[:3]}..., not {log.begin}..{log.end}")
        return found

    @classmethod
    def hold(
        cls, found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
    ) -> None:
        seen, records = found.seen, found.records
        published = {value for batch in model.published for value in batch}
        # The owner also adopts what is in the inbox.
        more = killed or not published.isdisjoint(records.values())
        same = seen is None or seen == records or (more and seen.items() <= records.items())
        if seen is not None and not same:
            raise Broken(f"{where}: a reader saw {len(seen)} records, the owner {len(records)}")
        _check_records(found, published, kept, model, where)
        _check_readers(found, kept, model, where)

    @classmethod
    def _check_going_on(cls, queue: Any, found: Found, scene: Scene) -> None:
        offset = queue.append(b"after the crash")
        if offset != max(found.records, default=queue.begin - 1) + 1:
            raise Broken(
                f"{scene.where}: the next offset is {offset} after {len(found.records)} records"
            )
        queue.close()
        with cls.open_on(scene.machine, scene.options) as again:
            expected = {**found.records, offset: b"after the crash"}
            there = cls._read_all(again, scene)
            if any(there.get(at, b"") != expected[at] for at in expected if at >= again.begin):
                raise Broken(f"{scene.where}: going on changed what was there")


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
