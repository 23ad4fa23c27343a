"""The frame of the model tests: a queue on a file system that forgets, opened, killed, cut off.

A model knows what was acknowledged, does the same to the queue, and looks whether they agree.
"""

from __future__ import annotations

import os
from random import Random
from typing import Generic, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from forebay.queues.handle import Handle
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.fifo_helpers import DAY_MS, TwoClocks
from tests.queues.helpers import SYNCS

PATH = "/q"
_Queue = TypeVar("_Queue", bound=Handle)

chances = st.integers(0, 1_000)


class QueueModel(RuleBasedStateMachine, Generic[_Queue]):
    """A queue in `PATH` of a file system in memory, and what a model of any kind does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = ForgetfulFilesystem(seed=1)
        self.random = Random(1)
        self.opened: _Queue | None = None

    @initialize(sync=st.sampled_from(SYNCS))
    def start(self, sync: str) -> None:
        self.sync_policy = sync
        self.open()

    def open(self) -> None:
        """Opens the queue."""
        self.opened = self.make()

    def make(self) -> _Queue:
        """Gives the queue, open, without a thread."""
        raise NotImplementedError

    @property
    def queue(self) -> _Queue:
        assert self.opened is not None
        return self.opened

    def die(self) -> None:
        """Ends the process: the file system has all that was written."""
        self.queue._closed = True
        self.filesystem = self.filesystem.kill()

    def lose_power(self, choice: int, seed: int) -> None:
        """Ends the machine: the file system has what was synced, and some of the rest."""
        last = self.filesystem.operations
        states = list(
            self.filesystem.crash_states(6, seed, points=lambda point: point == last, limit=12)
        )
        self.queue._closed = True
        self.filesystem = states[choice % len(states)].restore()


class TimedModel(QueueModel[_Queue]):
    """A model of a queue in which time counts: it passes, and somebody sets the wall clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = TwoClocks()

    def open(self) -> None:
        """Opens the queue, whose time is the wall clock's of now, and runs by itself from here."""
        self.ahead_ms = self.clock.wall_ms - self.clock.run_ms
        super().open()

    @property
    def now_ms(self) -> int:
        return self.ahead_ms + self.clock.run_ms

    @rule(ms=st.sampled_from((-DAY_MS, DAY_MS)))
    def set_the_clock(self, ms: int) -> None:
        self.clock.set_wall(ms)


def check_model(
    model: type[RuleBasedStateMachine], *, examples: int, full_examples: int, steps: int
) -> None:
    """Leads a queue through random lives beside its model; the long tier tries more of them."""
    count = full_examples if os.environ.get("FOREBAY_FULL") == "1" else examples
    run_state_machine_as_test(
        model, settings=settings(max_examples=count, stateful_step_count=steps)
    )
