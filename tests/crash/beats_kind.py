"""A Beats queue under test, the model of what it promised, and the check of what a crash left.

Events are numbered in the order in which they are put; an event tells its number as its time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import tempfile
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.beats.events import Event, decode_event
from forebay.formats.beats.versions import LAYOUTS, parse_segment_name
from forebay.queues.beats.batch import EventBatch
from forebay.queues.beats.queue import BeatsQueue
from forebay.queues.beats.reader import BeatsReader
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import PATH, Broken, Promise, SteppingClock
from tests.formats.beats_independent import KEY, read_segment

AFTER = 10**9
# How many of the model's acknowledgements were begun, and how many have returned.
TRIED = "tried"
ACKED = "acked"


@functools.cache
def key_file() -> str:
    """Makes the file of the tests' key, once."""
    descriptor, path = tempfile.mkstemp(prefix="forebay-key-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(KEY)
    return path


@dataclass
class Model:
    """What was put and acknowledged, by number.

    `stored` are the puts that returned: those that failed may be there as well. `acked` are the
    acknowledgements that returned and that nothing before them held up, in their order; `tried` are
    all that were begun. `told` says that events were reported as damaged: the disk failed when they
    were read.
    """

    put: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    acked: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    dropping: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader saw before anything was recovered, and what the owner has afterwards.

    Numbers of events; `seen` is None if there was no queue to read.
    """

    seen: list[int] | None
    numbers: list[int]


class EventWorkload:
    """Operations on a Beats queue, each followed by its promise."""

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Model | None = None, **options: Any
    ) -> None:
        self.filesystem = filesystem
        self.random = Random(seed)
        self.options = {"segment_bytes": 1500, "retry_seconds": 0, **options}
        self.model = model or Model(dropping=options.get("when_full") == "drop_oldest")
        self.clock = SteppingClock()
        self.stored = 0
        self.delivered: dict[int, bool] = {}
        self.queue = self._open()

    def _open(self) -> BeatsQueue:
        self.delivered.clear()
        return open_queue(self.filesystem, self.options, self.clock)

    @property
    def trouble(self) -> ForebayError | None:
        return self.queue._writer._error

    @property
    def always(self) -> bool:
        return bool(self.options.get("sync", "always") == "always")

    def append(self, size: int | None = None) -> None:
        event = self._event(size)
        self.queue.put(event)
        self._stored([event])

    def append_many(self, count: int, size: int | None = None) -> None:
        events = [self._event(size) for _ in range(count)]
        self.queue.put_many(events)
        self._stored(events)

    def sync(self) -> None:
        self.queue.sync()
        self.filesystem.acknowledge(Promise(end=self.stored))

    def drain(self) -> None:
        self.clock.ms += 2000
        self.queue.maintain()

    def read_and_commit(self, name: str, count: int) -> None:
        """Reads and acknowledges; consumer "b" settles two batches, the second one first."""
        first = self._read(count)
        if name == "b":
            second = self._read(1)
            self._settle(second, ack=True)
            self._settle(first, ack=self.random.random() < 0.7)
        else:
            self._settle(first, ack=True)

    def trim(self) -> None:
        """Acknowledging has trimmed already."""

    def reopen(self) -> None:
        self.queue.close()
        self.filesystem.acknowledge(Promise(end=self.stored))
        self.queue = self._open()

    def kill(self) -> None:
        """Kills the process and opens the queue again: everything acknowledged must be there."""
        self.forget()
        self.filesystem = self.filesystem.kill()
        self.queue = self._open()
        with reader_of(self.filesystem, self.options) as reader:
            found = set(numbers_of(reader, "kill -9"))
        missing = self.model.stored - found - set(self.model.tried)
        if missing and not self.model.dropping:
            raise Broken(f"kill -9: events {sorted(missing)} are missing")
        # What was recovered is served: from now on a power cut must not take it.
        self.model.stored |= found
        self.stored = max(self.stored, max(found, default=-1) + 1)
        self.filesystem.acknowledge(Promise(end=self.stored))

    def forget(self) -> None:
        self.queue._closed = True

    def go_on(self) -> None:
        self.append(20)

    def _read(self, count: int) -> EventBatch:
        try:
            batch = self.queue.read(count)
        except Damaged as error:
            self.model.told = error.damage.reason.startswith("cannot be read")
            raise
        self.delivered.update({event.timestamp_ns: False for event in batch})
        return batch

    def _settle(self, batch: EventBatch, *, ack: bool) -> None:
        numbers = [event.timestamp_ns for event in batch]
        if not ack:
            batch.nack()
            return
        self.model.tried += numbers
        self.filesystem.acknowledge(Promise(cursor=TRIED, position=len(self.model.tried)))
        batch.ack()
        self.delivered.update(dict.fromkeys(numbers, True))
        for number in sorted(self.delivered):
            if not self.delivered[number]:
                break
            self.model.acked.append(number)
            del self.delivered[number]
        self.filesystem.acknowledge(Promise(consumer=ACKED, position=len(self.model.acked)))

    def _event(self, size: int | None) -> Event:
        size = self.random.choice((3, 20, 90, 200, 600)) if size is None else size
        number = len(self.model.put)
        self.model.put.add(number)
        return Event(number, 0, {}, {"data": self.random.randbytes(size)})

    def _stored(self, events: list[Event]) -> None:
        self.model.stored.update(event.timestamp_ns for event in events)
        self.stored = max(self.stored, events[-1].timestamp_ns + 1)
        end = self.stored if self.always else 0
        self.filesystem.acknowledge(Promise(end, seen=self.stored))


def open_queue(
    machine: ForgetfulFilesystem, options: dict[str, Any], clock: SteppingClock | None = None
) -> BeatsQueue:
    return BeatsQueue(
        PATH,
        filesystem=machine,
        clock=clock or SteppingClock(),
        background=False,
        key_file=key_for(options),
        **options,
    )


def reader_of(machine: ForgetfulFilesystem, options: dict[str, Any]) -> BeatsReader:
    return BeatsReader(PATH, filesystem=machine, key_file=key_for(options))


def key_for(options: dict[str, Any]) -> str | None:
    """Returns the key to those versions that need one: with it, more is tried at every open."""
    return key_file() if LAYOUTS[options["version"]].encrypted else None


def numbers_of(reader: BeatsReader, where: str) -> list[int]:
    """Returns the numbers of the events that are not acknowledged; an unfinished end is none."""
    numbers: list[int] = []
    for item in reader.scan(unread=True):
        if not isinstance(item, Damage):
            numbers += [decode_event(payload).timestamp_ns for payload in item.payloads]
        elif not item.torn:
            raise Broken(f"{where}: damage after a crash: {item}")
    return numbers


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
    """Opens the queue on a machine, and raises `Broken` if a promise does not hold."""
    check_state_file(machine, where)
    seen: list[int] | None = None
    with contextlib.suppress(FileNotFoundError, NotAQueue), reader_of(machine, options) as reader:
        seen = numbers_of(reader, where)
    queue = open_queue(machine, options)
    check_state_file(machine, where)
    numbers = []
    while batch := queue.read(7):
        numbers += [event.timestamp_ns for event in batch]
    found = Found(seen, numbers)
    hold_promises(found, kept, model, where=where, killed=killed)
    if go_on:
        check_going_on(queue, machine, numbers, options, where)
    else:
        queue._closed = True
    return found


def hold_promises(
    found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
) -> None:
    """Raises `Broken` if what was found does not keep a promise."""
    seen, numbers = found.seen, found.numbers
    if seen is not None and seen != numbers and not (killed and set(seen) <= set(numbers)):
        raise Broken(f"{where}: a reader saw events {seen}, the owner {numbers}")
    check_numbers(numbers, kept, model, where)


def check_numbers(found: list[int], kept: list[Promise], model: Model, where: str) -> None:
    if found != sorted(set(found)) or not set(found) <= model.put:
        raise Broken(f"{where}: events {found} are doubled, out of order or nobody's")
    end = max((promise.end for promise in kept), default=0)
    promised = {number for number in model.stored if number < end}
    tried = max((promise.position for promise in kept if promise.cursor == TRIED), default=0)
    missing = promised - set(found) - set(model.tried[:tried])
    if model.dropping:
        # The oldest may have been dropped, whole segments of them.
        missing = {number for number in missing if not found or number > found[0]}
    if missing and not model.told:
        raise Broken(f"{where}: events {sorted(missing)} were acknowledged and are missing")
    # What a power cut takes is a suffix: what was stored before an event that is there, is there.
    last = found[-1] if found else -1
    holes = {number for number in model.stored if found and found[0] < number < last} - set(found)
    if holes:
        raise Broken(f"{where}: events {sorted(holes)} are missing in the middle")
    position = max((promise.position for promise in kept if promise.consumer == ACKED), default=0)
    again = set(model.acked[:position]) & set(found)
    if again:
        raise Broken(f"{where}: events {sorted(again)} were done with and come again")


def check_going_on(
    queue: BeatsQueue,
    machine: ForgetfulFilesystem,
    found: list[int],
    options: dict[str, Any],
    where: str,
) -> None:
    """Puts, closes and opens again: the queue must be whole, clean, and as Beats wants it."""
    before = segment_ids(machine.files())
    queue.put(Event(AFTER))
    new = max(segment_ids(machine.files()), default=-1)
    if new <= max(before, default=-1):
        raise Broken(f"{where}: segment {new} is not above {before}")
    queue.close()
    check_state_file(machine, where)
    check_segments(machine, options, where)
    with open_queue(machine, options) as again:
        there = []
        while batch := again.read(1000):
            there += [event.timestamp_ns for event in batch]
            batch.ack()
        dropped = again.options.when_full == "drop_oldest"
        if there != [*found, AFTER] and not (dropped and [*found, AFTER][-len(there) :] == there):
            raise Broken(f"{where}: {found} became {there}")
    check_state_file(machine, where)
    with reader_of(machine, options) as reader:
        if numbers_of(reader, where):
            raise Broken(f"{where}: events were done with and are not")


def segment_ids(files: dict[str, bytes]) -> list[int]:
    names = [path.removeprefix(f"{PATH}/") for path in files]
    numbers = [parse_segment_name(name) for name in names]
    return [number for number in numbers if number is not None]


def check_state_file(machine: ForgetfulFilesystem, where: str) -> None:
    """Beats deletes everything if its state names a segment above the newest file."""
    files = machine.files()
    state = files.get(f"{PATH}/state.dat", b"")
    if not state:
        return
    if len(state) != 28:
        raise Broken(f"{where}: state.dat is torn")
    version, segment, position, index = struct.unpack("<IQQQ", state)
    newest = max(segment_ids(files), default=-1)
    if version != 1 or segment > newest or (index == 0) != (position == 0):
        raise Broken(f"{where}: state.dat names {segment}, {position}, {index} of {newest}")


def check_segments(machine: ForgetfulFilesystem, options: dict[str, Any], where: str) -> None:
    """Reads finished segments with the tests' own decoder, and holds their counts against it."""
    with reader_of(machine, options) as reader:
        for segment_id, name in reader.segments.names.items():
            segment = reader.open_segment(segment_id)
            if segment is None or isinstance(segment, Damage):
                raise Broken(f"{where}: {name} cannot be opened: {segment}")
            segment.close()
            layout = segment.header.layout
            frames = read_segment(layout.name, machine.read_file(f"{PATH}/{name}"), KEY)
            if LAYOUTS[layout.name].counted and segment.header.count != len(frames):
                count = segment.header.count
                raise Broken(f"{where}: {name} counts {count} frames, it has {len(frames)}")
