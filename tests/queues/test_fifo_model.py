"""A fifo against a plain list, with kills, power cuts and clock steps among its operations."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from forebay import Fifo, FifoReader
from tests.counting import Count
from tests.queues.model import PATH, TimedModel, chances, check_model, check_model_for_long

sizes = st.sampled_from((0, 3, 20, 100, 400, 1_500))
ttls = st.sampled_from((0, 0, 1, 60, 100_000))


class Pushed(NamedTuple):
    """What the model knows of an entry."""

    value: bytes
    id: int
    ttl: int


class FifoAgainstAList(TimedModel[Fifo]):
    """`entries` is all that was pushed, by number; those below `head` have left."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Pushed] = []
        self.head = 0
        self.durable = 0
        self.durable_head = 0

    def make(self) -> Fifo:
        return Fifo(
            PATH,
            filesystem=self.filesystem,
            clock=self.clock,
            background=False,
            sync=self.sync_policy,
            file_bytes=1_000,
            staging_bytes=4_096,
        )

    def is_alive(self, entry: Pushed) -> bool:
        expires = (entry.id >> 16) + entry.ttl * 1000
        return entry.ttl == 0 or expires > self.now_ms

    def take_from_model(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        while len(values) < count and self.head < len(self.entries):
            entry = self.entries[self.head]
            self.head += 1
            if self.is_alive(entry):
                values.append(entry.value)
        return values

    @rule(size=sizes, ttl=ttls)
    def push(self, size: int, ttl: int) -> None:
        value = self.random.randbytes(size)

        entry_id = self.queue.push(value, ttl_seconds=ttl)

        assert not self.entries or entry_id > self.entries[-1].id
        assert entry_id & 0xFFFF == len(self.entries)
        self.entries.append(Pushed(value, entry_id, ttl))

    @rule(batch=st.lists(sizes, min_size=1, max_size=8), ttl=ttls)
    def push_many(self, batch: list[int], ttl: int) -> None:
        values = [self.random.randbytes(size) for size in batch]

        last = self.queue.push_many(values, ttl_seconds=ttl)

        assert last is not None
        self.entries += [
            Pushed(value, (last >> 16 << 16) | len(self.entries) + number, ttl)
            for number, value in enumerate(values)
        ]

    @rule()
    def pop(self) -> None:
        found = self.queue.pop()

        assert found == next(iter(self.take_from_model(1)), None)

    @rule(count=st.integers(1, 12))
    def pop_many(self, count: int) -> None:
        assert self.queue.pop_many(count) == self.take_from_model(count)

    @rule(fails=st.booleans())
    def take(self, fails: bool) -> None:
        before = self.head
        expected = self.take_from_model(1)
        if not expected:
            assert self.queue.pop() is None
            return
        taken = self.queue.take()
        assert taken.__enter__().value == expected[0]
        if not fails:
            taken.__exit__(None, None, None)
            return
        assert not taken.__exit__(KeyError, KeyError(), None)
        # It is at the front again, and what had expired before it is gone.
        self.head = max(before, self.head - 1)
        assert self.queue.pop() == expected[0]
        self.head += 1

    @rule()
    def peek(self) -> None:
        alive = [entry for entry in self.entries[self.head :] if self.is_alive(entry)]
        found = self.queue.peek()
        seen: list[tuple[bytes, int, int]] = []
        while found is not None and len(seen) < 20:
            seen.append((found.value, found.id, found.ttl_seconds))
            found = self.queue.peek(after=found.id)

        assert seen == [tuple(entry) for entry in alive[:20]]

    @rule()
    def sync(self) -> None:
        self.queue.sync()
        self.settle()

    def settle(self) -> None:
        self.durable, self.durable_head = len(self.entries), self.head

    @rule(ms=st.sampled_from((1, 60, 200, 2_000, 60_000)))
    def wait(self, ms: int) -> None:
        self.clock.pass_time(ms)
        self.queue.maintain()

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.settle()
        self.open()

    @rule(lent=st.booleans())
    def kill(self, lent: bool) -> None:
        if lent and self.queue.peek() is not None:
            # A crash gives back what is lent out; what had expired before it has left.
            expected = self.take_from_model(1)
            assert self.queue.take().__enter__().value == expected[0]
            self.head -= 1
        self.die()
        self.open()

        # Recovery makes durable what it serves; what had left may come again.
        self.durable = len(self.entries)
        self.check_content()

    @rule(choice=chances, seed=chances)
    def cut_the_power(self, choice: int, seed: int) -> None:
        if self.sync_policy == "always":
            self.settle()
        self.lose_power(choice, seed)
        with FifoReader(PATH, filesystem=self.filesystem) as reader:
            begin, end = reader.begin - len(reader.lent), reader.end

        assert self.durable_head <= begin <= self.head
        assert max(self.durable, begin) <= end <= len(self.entries)
        self.head = begin
        del self.entries[end:]
        self.open()
        self.settle()
        self.check_content()

    def check_content(self) -> None:
        with FifoReader(PATH, filesystem=self.filesystem) as reader:
            found = [(entry.value, entry.id, entry.ttl_seconds) for entry in reader]
        assert found == [tuple(entry) for entry in self.entries[self.head :]]

    @invariant()
    def sizes_agree(self) -> None:
        if self.opened is not None:
            assert len(self.opened) == len(self.entries) - self.head

    def teardown(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.check_content()


@pytest.mark.slow
def test_a_fifo_does_what_a_list_does_whatever_happens_to_its_process_power_and_clock() -> None:
    check_model(FifoAgainstAList, examples=150, steps=50)


@pytest.mark.full
def test_the_model_holds_for_as_long_as_it_may_take(record_property: Count) -> None:
    check_model_for_long(FifoAgainstAList, "fifo", steps=50, count=record_property)
