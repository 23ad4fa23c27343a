"""The frame of the model tests: a queue on a file system that forgets, opened, killed, cut off.

A model knows what was acknowledged, does the same to the queue, and looks whether they agree.
"""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import SyncPolicy
from tests.counting import Count
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.fifo_helpers import DAY_MS, TwoClocks
from tests.queues.helpers import SYNCS
from tests.support.campaigns import seeds
from tests.support.inside import drop

PATH = "/q"
_LIVES_OF_A_SEED = 200
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
    def start(self, sync: SyncPolicy) -> None:
        self.sync_policy = sync
        self.open()

    def open(self) -> None:
        """Opens the queue."""
        self.opened = self.make()

    def make(self) -> _Queue:
        """Returns the queue, open, without a thread."""
        raise NotImplementedError

    @property
    def queue(self) -> _Queue:
        assert self.opened is not None
        return self.opened

    def die(self) -> None:
        """Ends the process: the file system has all that was written."""
        drop(self.queue)
        self.filesystem = self.filesystem.kill()

    def lose_power(self, choice: int, seed: int) -> None:
        """Ends the machine: the file system has what was synced, and some of the rest."""
        last = self.filesystem.operations
        states = list(
            self.filesystem.crash_states(6, seed, points=lambda point: point == last, limit=12)
        )
        drop(self.queue)
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


def check_model(model: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Leads a queue through random lives beside its model."""
    run_state_machine_as_test(
        model, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


def check_model_for_long(
    model: type[RuleBasedStateMachine], name: str, *, steps: int, count: Count
) -> None:
    """Leads a queue through random lives for as long as the campaign may take."""
    lives = 0
    for number in seeds("models", name, tests=3):
        chosen = seed(number)(model)
        check_model(chosen, examples=_LIVES_OF_A_SEED, steps=steps)
        lives += _LIVES_OF_A_SEED
    count("lives of a queue beside its model", lives)
