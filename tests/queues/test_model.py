"""A log against a plain list, with kills and power cuts among its operations."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from forebay import Consumer, Log, LogReader, Overtaken
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import SteppingClock
from tests.queues.helpers import SYNCS, values_of

EXAMPLES = 1_000 if os.environ.get("FOREBAY_FULL") == "1" else 60
NAMES = ("first", "second")

names = st.sampled_from(NAMES)
sizes = st.sampled_from((0, 3, 20, 100, 400, 900))


class LogAgainstAList(RuleBasedStateMachine):
    """`values` is what was acknowledged; each consumer has a place, and a saved one."""

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = ForgetfulFilesystem(seed=1)
        self.clock = SteppingClock()
        self.random = Random(1)
        self.values: list[bytes] = []
        self.durable = 0
        self.begin = 0
        self.saved = dict.fromkeys(NAMES, 0)
        self.consumers: dict[str, Consumer] = {}
        self.places: dict[str, int] = {}

    @initialize(sync=st.sampled_from(SYNCS))
    def start(self, sync: str) -> None:
        self.sync_policy = sync
        self.open()

    def open(self) -> None:
        """Opens the log; consumers stand where they last committed."""
        self.log = Log(
            "/q",
            filesystem=self.filesystem,
            clock=self.clock,
            background=False,
            trim_interval_seconds=None,
            sync=self.sync_policy,
            segment_bytes=1_500,
            staging_bytes=4_096,
        )
        self.consumers = {name: self.log.consumer(name) for name in NAMES}
        self.places = dict(self.saved)
        assert {name: c.position for name, c in self.consumers.items()} == self.places

    @rule(size=sizes)
    def append(self, size: int) -> None:
        value = self.random.randbytes(size)

        assert self.log.append(value) == len(self.values)
        self.values.append(value)

    @rule(batch=st.lists(sizes, max_size=8))
    def append_many(self, batch: list[int]) -> None:
        values = [self.random.randbytes(size) for size in batch]

        assert self.log.append_many(values) == len(self.values)
        self.values += values

    @rule(name=names, count=st.integers(1, 12))
    def read(self, name: str, count: int) -> None:
        place = self.places[name]
        if place < self.log.begin:
            with pytest.raises(Overtaken) as caught:
                self.consumers[name].read(count)
            assert caught.value.lost == self.log.begin - place
            self.places[name] = place = self.log.begin

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

        self.places[name] = max(offset, self.log.begin)

    @rule()
    def trim(self) -> None:
        removed = self.log.trim()

        assert self.log.begin == self.begin + removed
        assert self.log.begin <= min(self.saved.values())
        self.begin = self.log.begin

    @rule()
    def sync(self) -> None:
        self.log.sync()

        self.durable = len(self.values)
        assert self.log.durable == self.durable

    @rule(ms=st.sampled_from((1, 60, 200, 2_000)))
    def maintain(self, ms: int) -> None:
        self.clock.ms += ms
        self.log.maintain()

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.durable = len(self.values)
        self.open()

    @rule()
    def kill(self) -> None:
        self.log._closed = True
        self.filesystem = self.filesystem.kill()
        self.open()

        # Recovery makes durable what it serves.
        self.durable = len(self.values)
        self.check_content()

    @rule(choice=st.integers(0, 1_000), seed=st.integers(0, 1_000))
    def cut_the_power(self, choice: int, seed: int) -> None:
        last = self.filesystem.operations
        states = list(
            self.filesystem.crash_states(6, seed, points=lambda point: point == last, limit=12)
        )
        promised = len(self.values) if self.sync_policy == "always" else self.durable
        self.log._closed = True
        self.filesystem = states[choice % len(states)].restore()
        with LogReader("/q", filesystem=self.filesystem) as reader:
            left = reader.end

        assert promised <= left <= len(self.values)
        del self.values[left:]
        self.durable = left
        self.open()
        self.check_content()

    def check_content(self) -> None:
        with LogReader("/q", filesystem=self.filesystem) as reader:
            assert (reader.begin, reader.end) == (self.begin, len(self.values))
            assert list(reader.values()) == self.values[self.begin :]
            times = [record.time_ms or 0 for record in reader]
        assert times == sorted(times)

    @invariant()
    def offsets_agree(self) -> None:
        if self.consumers:
            assert (self.log.begin, self.log.end) == (self.begin, len(self.values))
            assert self.durable <= self.log.durable <= len(self.values)
            lags = {name: consumer.lag for name, consumer in self.consumers.items()}
            assert lags == {name: len(self.values) - self.saved[name] for name in NAMES}

    def teardown(self) -> None:
        if self.consumers:
            self.log.close()
            self.check_content()


@pytest.mark.slow
def test_a_log_does_what_a_list_does_whatever_happens_to_its_process_and_power() -> None:
    run_state_machine_as_test(
        LogAgainstAList, settings=settings(max_examples=EXAMPLES, stateful_step_count=30)
    )
