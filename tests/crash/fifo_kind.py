"""A fifo under test, the model of what it promised, and the check of what a crash left.

Values tell their own number in the order of pushing. A pop or a take that a crash interrupts may
have taken its entry or not; one that returned has.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forebay.damage import Damage
from forebay.errors import ForebayError, NotAQueue
from forebay.queues.fifo.queue import Fifo
from forebay.queues.fifo.reader import FifoReader
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import PATH, Broken, Promise, SteppingClock

AFTER = b"after the crash"
SIZES = (3, 20, 90, 200, 600, 1500)
# How many of the model's entries were begun to be taken, and how many are gone for good.
TRIED = "tried"
GONE = "gone"


@dataclass
class Model:
    """What was pushed, by number; `tried` were begun to be taken, `gone` are taken, in order.

    `stored` are the pushes that returned: those that failed may be there as well.
    """

    pushed: list[bytes] = field(default_factory=list)
    stored: set[int] = field(default_factory=set)
    tried: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    dropping: bool = False


class FifoWorkload:
    """Operations on a fifo, each followed by its promise."""

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Model | None = None, **options: Any
    ) -> None:
        self.filesystem = filesystem
        self.random = Random(seed)
        self.options = {"file_bytes": 1000, "staging_bytes": 4096, **options}
        self.model = model or Model(dropping=options.get("when_full") == "drop_oldest")
        self.clock = SteppingClock()
        self.stored = 0
        self.fifo = self._open()

    def _open(self) -> Fifo:
        return open_fifo(self.filesystem, self.options, self.clock)

    @property
    def trouble(self) -> ForebayError | None:
        return self.fifo._writer._error

    @property
    def always(self) -> bool:
        return bool(self.options.get("sync", "always") == "always")

    def append(self, size: int | None = None) -> None:
        value = self._value(size)
        self.fifo.push(value)
        self._stored([value])

    def append_many(self, count: int, size: int | None = None) -> None:
        values = [self._value(size) for _ in range(count)]
        self.fifo.push_many(values)
        self._stored(values)

    def sync(self) -> None:
        self.fifo.sync()
        self._promise_gone(durable=True)
        self.filesystem.acknowledge(Promise(end=self.stored))

    def drain(self) -> None:
        self.clock.ms += 2000
        self.fifo.maintain()

    def read_and_commit(self, name: str, count: int) -> None:
        """Pops, singly or at once; consumer "b" lends two out and gives the first one back."""
        if name == "b":
            with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
                first = self._take(stack)
                second = self._take(stack)
                if first is not None and second is not None and self.random.random() < 0.5:
                    raise KeyError
            return
        # The oldest of those that are left may be gone from now on, and any behind them.
        pushed = range(len(self.model.pushed))
        self._try([number for number in pushed if number not in self.model.gone])
        values = [self.fifo.pop()] if count == 1 else self.fifo.pop_many(count)
        self.model.gone += [number_of(value) for value in values if value is not None]
        self._promise_gone()

    def _take(self, stack: contextlib.ExitStack) -> bytes | None:
        if not self.fifo.size:
            return None
        taken = self.fifo.take()
        entry = taken.__enter__()
        number = number_of(entry.value)

        def leave(kind: Any, error: Any, traceback: Any) -> bool:
            if kind is None:
                # Before this, no crash may take what is only lent out.
                self._try([number])
            taken.__exit__(kind, error, traceback)
            if kind is None:
                self.model.gone.append(number)
                self._promise_gone()
            return False

        stack.push(leave)
        return entry.value

    def _try(self, numbers: list[int]) -> None:
        """Notes that entries are about to be taken: a crash may take them or not."""
        self.model.tried += numbers
        self.filesystem.acknowledge(Promise(cursor=TRIED, position=len(self.model.tried)))

    def _promise_gone(self, *, durable: bool = False) -> None:
        if self.always or durable:
            self.filesystem.acknowledge(Promise(consumer=GONE, position=len(self.model.gone)))

    def trim(self) -> None:
        """Popping has made room already."""

    def reopen(self) -> None:
        self.fifo.close()
        self._promise_gone(durable=True)
        self.filesystem.acknowledge(Promise(end=self.stored))
        self.fifo = self._open()

    def kill(self) -> None:
        """Kills the process and opens the queue again: everything acknowledged must be there."""
        self.forget()
        self.filesystem = self.filesystem.kill()
        self.fifo = self._open()
        with FifoReader(PATH, filesystem=self.filesystem) as reader:
            values = values_in(reader, "kill -9")
        found = {number_of(value) for value in values}
        missing = self.model.stored - found - set(self.model.gone)
        if missing and not self.model.dropping:
            raise Broken(f"kill -9: entries {sorted(missing)} are missing")
        again = found & set(self.model.gone)
        if again:
            raise Broken(f"kill -9: entries {sorted(again)} were popped and come again")
        # What was recovered is served: from now on a power cut must not take it.
        self.model.stored |= found
        self.stored = max(self.stored, max(found, default=-1) + 1)
        self.filesystem.acknowledge(Promise(end=self.stored))

    def forget(self) -> None:
        self.fifo._closed = True

    def go_on(self) -> None:
        self.append(20)

    def _value(self, size: int | None) -> bytes:
        size = self.random.choice(SIZES) if size is None else size
        number = len(self.model.pushed)
        value = number.to_bytes(4, "big") + self.random.randbytes(size)
        self.model.pushed.append(value)
        return value

    def _stored(self, values: list[bytes]) -> None:
        self.model.stored.update(number_of(value) for value in values)
        self.stored = max(self.stored, number_of(values[-1]) + 1)
        end = self.stored if self.always else 0
        self.filesystem.acknowledge(Promise(end, seen=self.stored))


def number_of(value: bytes) -> int:
    return int.from_bytes(value[:4], "big")


def open_fifo(
    machine: ForgetfulFilesystem, options: dict[str, Any], clock: SteppingClock | None = None
) -> Fifo:
    return Fifo(
        PATH, filesystem=machine, clock=clock or SteppingClock(), background=False, **options
    )


def values_in(reader: FifoReader, where: str) -> list[bytes]:
    values: list[bytes] = []
    for item in reader.scan():
        if isinstance(item, Damage):
            raise Broken(f"{where}: damage after a crash: {item}")
        values += item.values
    return values


@dataclass(frozen=True, slots=True)
class Found:
    """What a machine had: as a reader saw it (None: no queue), as its owner has it, its size."""

    seen: list[int] | None
    numbers: list[int]
    values: list[bytes]
    size: int


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
    """Opens the fifo on a machine, and raises `Broken` if a promise does not hold."""
    seen: list[int] | None = None
    with (
        contextlib.suppress(FileNotFoundError, NotAQueue),
        FifoReader(PATH, filesystem=machine) as reader,
    ):
        seen = [number_of(value) for value in values_in(reader, where)]
    fifo = open_fifo(machine, options)
    with FifoReader(PATH, filesystem=machine) as reader:
        values = values_in(reader, where)
    found = Found(seen, [number_of(value) for value in values], values, len(fifo))
    hold_promises(found, kept, model, where=where, killed=killed)
    if go_on:
        check_going_on(fifo, machine, values, options, where)
    else:
        fifo._closed = True
    return found


def hold_promises(
    found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
) -> None:
    """Raises `Broken` if what was found does not keep a promise."""
    seen, numbers = found.seen, found.numbers
    if seen is not None and seen != numbers and not (killed and set(seen) <= set(numbers)):
        raise Broken(f"{where}: a reader saw entries {seen}, the owner has {numbers}")
    if found.size != len(numbers):
        raise Broken(f"{where}: the size is {found.size}, there are {numbers}")
    check_entries(numbers, found.values, kept, model, where)


def check_entries(
    found: list[int], values: list[bytes], kept: list[Promise], model: Model, where: str
) -> None:
    if found != sorted(set(found)) or any(
        value != model.pushed[number_of(value)] for value in values
    ):
        raise Broken(f"{where}: entries {found} are doubled, out of order or altered")
    end = max((promise.end for promise in kept), default=0)
    tried = max((promise.position for promise in kept if promise.cursor == TRIED), default=0)
    promised = {number for number in model.stored if number < end}
    missing = promised - set(found) - set(model.tried[:tried])
    if model.dropping:
        # The oldest may have been dropped, whole files of them.
        missing = {number for number in missing if not found or number > found[0]}
    if missing:
        raise Broken(f"{where}: entries {sorted(missing)} were acknowledged and are missing")
    # What a power cut takes is a suffix: what was stored before an entry that is there, is there.
    last = found[-1] if found else -1
    inside = {number for number in model.stored if found and found[0] < number < last}
    holes = inside - set(found) - set(model.tried[:tried])
    if holes:
        raise Broken(f"{where}: entries {sorted(holes)} are missing in the middle")
    position = max((promise.position for promise in kept if promise.consumer == GONE), default=0)
    again = set(model.gone[:position]) & set(found)
    if again:
        raise Broken(f"{where}: entries {sorted(again)} were popped for good and come again")


def check_going_on(
    fifo: Fifo,
    machine: ForgetfulFilesystem,
    values: list[bytes],
    options: dict[str, Any],
    where: str,
) -> None:
    """Pushes, closes, opens again and pops everything: it must be whole, and then empty."""
    before = fifo._writer.last_ms << 16 | 0xFFFF
    entry_id = fifo.push(AFTER)
    if entry_id <= fifo._reading.popper.last_id or entry_id >> 16 < before >> 16:
        raise Broken(f"{where}: id {entry_id} is not above those before it")
    fifo.close()
    with open_fifo(machine, options) as again:
        there = again.pop_many(10_000)
        dropped = options.get("when_full") == "drop_oldest"
        expected = [*values, AFTER]
        if there != expected and not (dropped and expected[-len(there) :] == there):
            raise Broken(f"{where}: {len(values)} entries became {len(there) - 1}")
        if again.pop() is not None or len(again):
            raise Broken(f"{where}: a queue that was emptied is not empty")
