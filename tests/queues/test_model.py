"""A log against a plain list, with kills and power cuts among its operations."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from forebay import Consumer, Log, LogReader, Overtaken
from tests.counting import Count
from tests.queues.helpers import values_of
from tests.queues.model import PATH, QueueModel, chances, check_model, check_model_for_long
from tests.support.clocks import SteppingClock

NAMES = ("first", "second")

names = st.sampled_from(NAMES)
sizes = st.sampled_from((0, 3, 20, 100, 400, 900))


class LogAgainstAList(QueueModel[Log]):
    """`values` is what was acknowledged; each consumer has a place, and a saved one."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SteppingClock()
        self.values: list[bytes] = []
        self.durable = 0
        self.begin = 0
        self.saved = dict.fromkeys(NAMES, 0)
        self.consumers: dict[str, Consumer] = {}
        self.places: dict[str, int] = {}

    def make(self) -> Log:
        return Log(
            PATH,
            filesystem=self.filesystem,
            clock=self.clock,
            background=False,
            trim_interval_seconds=None,
            sync=self.sync_policy,
            segment_bytes=1_500,
            staging_bytes=4_096,
        )

    def open(self) -> None:
        """Opens the log; consumers stand where they last committed."""
        super().open()
        self.consumers = {name: self.queue.consumer(name) for name in NAMES}
        self.places = dict(self.saved)
        assert {name: c.position for name, c in self.consumers.items()} == self.places

    @rule(size=sizes)
    def append(self, size: int) -> None:
        value = self.random.randbytes(size)

        assert self.queue.append(value) == len(self.values)
        self.values.append(value)

    @rule(batch=st.lists(sizes, max_size=8))
    def append_many(self, batch: list[int]) -> None:
        values = [self.random.randbytes(size) for size in batch]

        assert self.queue.append_many(values) == len(self.values)
        self.values += values

    @rule(name=names, count=st.integers(1, 12))
    def read(self, name: str, count: int) -> None:
        place = self.places[name]
        if place < self.queue.begin:
            with pytest.raises(Overtaken) as caught:
                self.consumers[name].read(count)
            assert caught.value.lost == self.queue.begin - place
            self.places[name] = place = self.queue.begin

        records = self.consumers[name].read(count)

        assert values_of(records) == self.values[place : place + count]
        assert [record.offset for record in records] == list(range(place, place + len(records)))
        self.places[name] = place + len(records)

    @rule(name=names)
    def commit(self, name: str) -> None:
        self.consumers[name].commit()

        self.saved[name] = self.places[name]
        self.durable = max(self.durable, self.saved[name])

    @rule(name=names, part=st.floats(0, 1))
    def seek(self, name: str, part: float) -> None:
        offset = round(part * len(self.values))

        self.consumers[name].seek(offset)

        self.places[name] = max(offset, self.queue.begin)

    @rule()
    def trim(self) -> None:
        removed = self.queue.trim()

        assert self.queue.begin == self.begin + removed
        assert self.queue.begin <= min(self.saved.values())
        self.begin = self.queue.begin

    @rule()
    def sync(self) -> None:
        self.queue.sync()

        self.durable = len(self.values)
        assert self.queue.durable == self.durable

    @rule(ms=st.sampled_from((1, 60, 200, 2_000)))
    def maintain(self, ms: int) -> None:
        self.clock.ms += ms
        self.queue.maintain()

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.durable = len(self.values)
        self.open()

    @rule()
    def kill(self) -> None:
        self.die()
        self.open()

        # Recovery makes durable what it serves.
        self.durable = len(self.values)
        self.check_content()

    @rule(choice=chances, seed=chances)
    def cut_the_power(self, choice: int, seed: int) -> None:
        promised = len(self.values) if self.sync_policy == "always" else self.durable
        self.lose_power(choice, seed)
        with LogReader(PATH, filesystem=self.filesystem) as reader:
            left = reader.end

        assert promised <= left <= len(self.values)
        del self.values[left:]
        self.durable = left
        self.open()
        self.check_content()

    def check_content(self) -> None:
        with LogReader(PATH, filesystem=self.filesystem) as reader:
            assert (reader.begin, reader.end) == (self.begin, len(self.values))
            assert list(reader.values()) == self.values[self.begin :]
            times = [record.time_ms or 0 for record in reader]
        assert times == sorted(times)

    @invariant()
    def offsets_agree(self) -> None:
        if self.opened is not None:
            assert (self.queue.begin, self.queue.end) == (self.begin, len(self.values))
            assert self.durable <= self.queue.durable <= len(self.values)
            lags = {name: consumer.lag for name, consumer in self.consumers.items()}
            assert lags == {name: len(self.values) - self.saved[name] for name in NAMES}

    def teardown(self) -> None:
        if self.opened is not None:
            self.queue.close()
            self.check_content()


@pytest.mark.slow
def test_a_log_does_what_a_list_does_whatever_happens_to_its_process_and_power() -> None:
    check_model(LogAgainstAList, examples=60, steps=30)


@pytest.mark.full
def test_the_model_holds_for_as_long_as_it_may_take(record_property: Count) -> None:
    check_model_for_long(LogAgainstAList, "log", steps=30, count=record_property)
