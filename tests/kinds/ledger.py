"""What a queue was given and what it gave back: the sum of the values.

`Ledger.check` compares what was promised with what a later open finds:

* given out + told lost = what was there: what was promised is there, unless somebody took it;
* nothing that was never put, nothing twice, each writer's values in their order;
* what was taken for good, durably, does not come again.

Values tell who put them and in which order: `b"w3-000017..."`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

VALUE_BYTES = 100


@dataclass
class Ledger:
    """What a queue was given, has promised and gave back. Any thread may write it."""

    offered: dict[bytes, None] = field(default_factory=dict)
    put: dict[bytes, None] = field(default_factory=dict)
    durable: dict[bytes, None] = field(default_factory=dict)
    # Somebody has begun to take these for good, has done so, and that is durable.
    taking: dict[bytes, None] = field(default_factory=dict)
    taken: dict[bytes, None] = field(default_factory=dict)
    gone: dict[bytes, None] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def make(self, writer: int, count: int) -> list[bytes]:
        """Makes values that nobody has put yet, and notes that they may be there from now on."""
        with self.mutex:
            first = self.numbers.get(writer, 0)
            self.numbers[writer] = first + count
            values = [value_of(writer, number) for number in range(first, first + count)]
            self.offered.update(dict.fromkeys(values))
            return values

    def note_put(self, values: list[bytes], *, durable: bool) -> None:
        with self.mutex:
            self.put.update(dict.fromkeys(values))
            if durable:
                self.durable.update(dict.fromkeys(values))

    def note_taking(self, values: list[bytes]) -> None:
        with self.mutex:
            self.taking.update(dict.fromkeys(values))

    def note_back(self, values: list[bytes]) -> None:
        """Notes that the queue took values back: they have to come again."""
        with self.mutex:
            for value in values:
                self.taking.pop(value, None)

    def note_taken(self, values: list[bytes], *, durable: bool) -> None:
        with self.mutex:
            self.taking.update(dict.fromkeys(values))
            self.taken.update(dict.fromkeys(values))
            if durable:
                self.gone.update(dict.fromkeys(values))

    def snapshot(self) -> tuple[dict[bytes, None], dict[bytes, None]]:
        with self.mutex:
            return dict(self.put), dict(self.taken)

    def note_synced(self, before: tuple[dict[bytes, None], dict[bytes, None]]) -> None:
        with self.mutex:
            self.durable.update(before[0])
            self.gone.update(before[1])

    def promises(self, *, power_cut: bool) -> Promises:
        """Returns what a crash from now on must keep; to be asked for before the crash."""
        with self.mutex:
            there = self.durable if power_cut else self.put
            gone = self.gone if power_cut else self.taken
            return Promises(dict(there), dict(gone))

    def check(
        self,
        found: Found,
        promises: Promises,
        *,
        ordered: bool,
        once: bool = True,
        patience: float = 0.0,
    ) -> None:
        """Takes the sum of what is there after a crash, or after a clean close.

        `once`: what was taken for good must not come again. `patience`: how many seconds a value
        that is missing may take to be noted, by the thread that was just taking it.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and self._missing(found, promises):
            time.sleep(0.005)
        promised, gone = promises.there, promises.gone
        missing = self._missing(found, promises)
        with self.mutex:
            there = dict.fromkeys(found.values)
            phantom = [v for v in there if v not in self.offered]
            again = [v for v in gone if v in there] if once else []
            problems = [f"told: {text}" for text in found.told]
            if len(there) != len(found.values):
                twice = sorted({v for v in found.values if found.values.count(v) > 1})
                problems.append(f"{len(twice)} came twice: {_short(twice)}")
            if missing:
                problems.append(f"{len(missing)} of {len(promised)} are lost: {_short(missing)}")
            if phantom:
                problems.append(f"{len(phantom)} were never put: {_short(phantom)}")
            if again:
                problems.append(f"{len(again)} that were taken came again: {_short(again)}")
            if ordered:
                problems += _out_of_order(found.values)
        if problems:
            raise AssertionError("; ".join(problems))

    def _missing(self, found: Found, promises: Promises) -> list[bytes]:
        there = dict.fromkeys(found.values)
        with self.mutex:
            return [v for v in promises.there if v not in there and v not in self.taking]


@dataclass(frozen=True, slots=True)
class Promises:
    """What has to be there, unless somebody has begun to take it, and what must not be."""

    there: dict[bytes, None]
    gone: dict[bytes, None]


def _short(values: list[bytes]) -> str:
    names = [value.rstrip(b".").decode(errors="replace") for value in values[:4]]
    return ", ".join(names) + (", ..." if len(values) > 4 else "")


def _out_of_order(values: list[bytes]) -> list[str]:
    last: dict[bytes, bytes] = {}
    for value in values:
        writer = value.partition(b"-")[0]
        if value < last.get(writer, b""):
            return [f"out of order: {_short([last[writer], value])}"]
        last[writer] = value
    return []


def value_of(writer: int, number: int) -> bytes:
    return (b"w%d-%06d" % (writer, number)).ljust(VALUE_BYTES, b".")


@dataclass(frozen=True, slots=True)
class Found:
    """What an open queue gave: its values in order, and what it said of damage."""

    values: list[bytes]
    told: list[str]
