"""A Beats queue under test: an event tells its number as its time."""

from __future__ import annotations

import functools
import os
import struct
import tempfile
from types import MappingProxyType
from typing import Any

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.beats.events import Event, decode_event
from forebay.formats.beats.versions import LAYOUTS, parse_segment_name
from forebay.queues.beats.batch import EventBatch
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.numbered import Found, NumberedWorkload
from tests.crash.workload import PATH, Scene
from tests.formats.beats_independent import KEY, read_segment
from tests.kinds import KINDS
from tests.support.planting import Broken

AFTER = 10**9


@functools.cache
def key_file() -> str:
    """Makes the file of the tests' key, once."""
    descriptor, path = tempfile.mkstemp(prefix="forebay-key-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(KEY)
    return path


def key_for(options: dict[str, Any]) -> str | None:
    """Returns the key to those versions that need one: with it, more is tried at every open."""
    return key_file() if LAYOUTS[options["version"]].encrypted else None


class BeatsWorkload(NumberedWorkload):
    """Operations on a Beats queue, each followed by its promise."""

    kind = "beats"
    small = MappingProxyType({"segment_bytes": 1500, "retry_seconds": 0})
    # None is as large as a segment.
    sizes = (3, 20, 90, 200, 600)

    def _open(self) -> Any:
        # Whether each event that was handed out is acknowledged.
        self.delivered: dict[int, bool] = {}
        return super()._open()

    @classmethod
    def open_on(
        cls, machine: ForgetfulFilesystem, options: dict[str, Any], clock: Any = None
    ) -> Any:
        return super().open_on(machine, {"key_file": key_for(options), **options}, clock)

    @classmethod
    def read_on(cls, machine: ForgetfulFilesystem, options: dict[str, Any]) -> Any:
        return KINDS[cls.kind].record.open_reader(
            PATH, filesystem=machine, key_file=key_for(options)
        )

    def read_and_commit(self, name: str, count: int) -> None:
        """Reads and acknowledges; consumer "b" settles two batches, the second one first."""
        first = self._read(count)
        if name == "b":
            second = self._read(1)
            self._settle(second, ack=True)
            self._settle(first, ack=self.random.random() < 0.7)
        else:
            self._settle(first, ack=True)

    def _read(self, count: int) -> EventBatch:
        try:
            batch: EventBatch = self.queue.read(count)
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
        self._try(numbers)
        batch.ack()
        self.delivered.update(dict.fromkeys(numbers, True))
        # What nothing before it holds up is gone for good.
        for number in sorted(self.delivered):
            if not self.delivered[number]:
                break
            self.model.gone.append(number)
            del self.delivered[number]
        self._promise_gone()

    def _value(self, size: int | None) -> Event:
        number = len(self.model.put)
        event = Event(number, 0, {}, {"data": self.random.randbytes(self._size(size))})
        self.model.put.append(event)
        return event

    @classmethod
    def number_of(cls, record: Event) -> int:
        return record.timestamp_ns

    @classmethod
    def content_of(cls, reader: Any, where: str) -> list[Event]:
        """Returns the events that are not acknowledged; an unfinished end is none."""
        events: list[Event] = []
        for item in reader.scan(unread=True):
            if not isinstance(item, Damage):
                events += [decode_event(payload) for payload in item.payloads]
            elif not item.torn:
                raise Broken(f"{where}: damage after a crash: {item}")
        return events

    @classmethod
    def _look(cls, queue: Any, seen: Any, scene: Scene) -> Found:
        events: list[Event] = []
        while batch := queue.read(7):
            events += batch
        return Found(seen, events)

    @classmethod
    def check(cls, machine: ForgetfulFilesystem, *arguments: Any, **options: Any) -> Found:
        check_state_file(machine, options["where"])
        found: Found = super().check(machine, *arguments, **options)
        check_state_file(machine, options["where"])
        return found

    @classmethod
    def _check_going_on(cls, queue: Any, found: Found, scene: Scene) -> None:
        before = segment_ids(scene.machine.files())
        queue.put(Event(AFTER))
        new = max(segment_ids(scene.machine.files()), default=-1)
        if new <= max(before, default=-1):
            raise Broken(f"{scene.where}: segment {new} is not above {before}")
        queue.close()
        check_state_file(scene.machine, scene.where)
        cls._check_segments(scene.machine, scene.options, scene.where)
        with cls.open_on(scene.machine, scene.options) as again:
            there = []
            while batch := again.read(1000):
                there += [event.timestamp_ns for event in batch]
                batch.ack()
            dropped = again.options.when_full == "drop_oldest"
            expected = [*(event.timestamp_ns for event in found.records), AFTER]
            if there != expected and not (dropped and expected[-len(there) :] == there):
                raise Broken(f"{scene.where}: {expected} became {there}")
        with cls.read_on(scene.machine, scene.options) as reader:
            if cls.content_of(reader, scene.where):
                raise Broken(f"{scene.where}: events were done with and are not")

    @classmethod
    def _check_segments(
        cls, machine: ForgetfulFilesystem, options: dict[str, Any], where: str
    ) -> None:
        """Reads finished segments with the tests' own decoder, and holds their counts to it."""
        with cls.read_on(machine, options) as reader:
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
