"""What the tests of forwarders share: outputs that misbehave, runs that are killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forebay import Log, OutputManager
from forebay.forward import forwarder, sources, state
from forebay.forward.files import FilesOutput
from forebay.forward.http import HttpOutput
from forebay.forward.outputs import Answer, Batch, Delivered, Refused
from forebay.forward.proof import Proof, prove
from tests.support.planting import Broken

# Small, so that a few hundred records are many batches.
FAST: dict[str, Any] = {
    "batch_records": 20,
    "batch_seconds": 0,
    "retry_seconds": 0.001,
    "retry_seconds_max": 0.01,
}
POISON = b"poison"


@dataclass
class Taker:
    """A function that takes batches and remembers their keys, as a good receiver does."""

    answers: list[Answer | Exception] = field(default_factory=list)
    poison: bytes | None = POISON
    batches: list[Batch] = field(default_factory=list)
    requests: int = 0
    _bodies: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Answer:
        self.requests += 1
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if not isinstance(answer, Delivered):
                return answer
        if self.poison and any(self.poison in record.value for record in batch.records):
            return Refused("poison")
        if self._bodies.setdefault(batch.key, batch.body) != batch.body:
            raise Broken(f"key {batch.key} has two bodies")
        if batch.key not in [each.key for each in self.batches]:
            self.batches.append(batch)
        return Delivered()

    @property
    def values(self) -> list[bytes]:
        return [record.value for batch in self.batches for record in batch.records]


def forward_all(queue: Any, output: Any, **options: Any) -> OutputManager:
    """Forwards what is in a queue, on this thread; returns the closed manager."""
    with OutputManager(queue, output, background=False, **{**FAST, **options}) as manager:
        manager.run(until_empty=True)
    return manager


def numbered_objects(count: int, poison: Sequence[int] = (), first: int = 0) -> list[bytes]:
    """Returns records that a `Receiver` can put in order; some of them are poison."""
    bad = set(poison)
    return [
        b'{"n":%d%b}' % (number, b',"is":"poison"' if number in bad else b"")
        for number in range(first, first + count)
    ]


def state_of(queue: Path, name: str = "forward") -> Path:
    return queue / "forward" / name


def check_holds(queue: Path, state_directory: Path | None = None) -> Proof:
    """Raises `Broken` unless all records are accounted for."""
    proof = prove(str(queue), str(state_directory or state_of(queue)))
    if not proof.holds:
        raise Broken("; ".join(proof.faults))
    return proof


def run_killed(run: Callable[[], None], seed: int, events_max: int) -> bool:
    """Runs in a child that kills itself at a random point; returns whether it came to its end.

    The points are before and after each slot, each request, each record that is set aside, and
    each move of the place in the queue.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _plant_kill(random.Random(seed).randrange(events_max))
            run()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the forwarder failed: {status}"
    return status == 0


def _plant_kill(at: int) -> None:
    left = [at]

    def point() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def around(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            point()
            result = inner(*arguments, **options)
            point()
            return result

        setattr(owner, name, call)

    around(state.State, "save")
    around(state.State, "set_aside")
    around(HttpOutput, "send")
    around(FilesOutput, "send")
    around(sources.LogSource, "commit")
    around(forwarder.Forwarder, "_judge")


def kill_until_done(
    queue: Path, make_output: Callable[[], Any], kills: int, seed: int, **options: Any
) -> int:
    """Forwards a log with a forwarder that is killed again and again; returns how often."""
    done, killed = False, 0

    def run() -> None:
        with Log(queue) as log:
            forward_all(log, make_output(), **options)

    while not done:
        # After the last kill it may run to its end.
        events = 60 if killed < kills else 1 << 60
        if killed < kills:
            done = run_killed(run, seed * 10_007 + killed, events)
        else:
            run()
            done = True
        killed += not done
        if state_of(queue).joinpath("cuts").exists():
            check_holds(queue)
    return killed


@pytest.fixture(scope="session")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server in another process, for all tests of a worker; each uses a path of its own."""
    from tests.support.receiver import Receiver

    made = Receiver(tmp_path_factory.mktemp("receiver"))
    yield made
    made.close()
