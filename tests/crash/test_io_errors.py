"""Every call to the disk fails in turn, once and for good: nothing acknowledged is lost.

The loop of SQLite's tests: fail the first call, the second, the third, until a run meets no fault.
An operation may raise `OSError` or an error of ours, never anything else; afterwards, with the
disk healed, the queue goes on, reopened if the handle says that it must be.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest

from forebay.errors import Closed, ForebayError
from tests.counting import Count
from tests.crash import scenarios
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import Broken, Promise, Workload, check_machine, check_state, promises_of

FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short write": None}
CASES: dict[str, tuple[scenarios.Steps, dict[str, Any]]] = {
    name: scenarios.SCENARIOS[name]
    for name in (
        "rolling",
        "closing",
        "trimming",
        "adoption",
        "one-time adoption",
        "killed",
        "version 1",
        "os draining",
        "os rolling",
        "os killed",
        "interval draining",
    )
}


class Enduring(Workload):
    """A workload that takes an error of the disk as an answer, and goes on."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in OPERATIONS:
            return self._enduring(found)
        return found

    def _enduring(self, operation: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any, **keywords: Any) -> None:
            try:
                operation(*arguments, **keywords)
            except (OSError, ForebayError):
                self.filesystem.acknowledge("an error")

        return run


OPERATIONS = {
    "append",
    "append_many",
    "sync",
    "drain",
    "read_and_commit",
    "trim",
    "publish_batch",
    "leave_orphan",
    "adopt",
    "reopen",
}


def fail_each_call(
    name: str, error: int | None, *, forever: bool, check: Callable[[Enduring], None]
) -> int:
    """Runs a scenario with each call failing in turn; gives how many faults there were."""
    steps, options = CASES[name]
    faults = call = 0
    while True:
        call += 1
        filesystem = ForgetfulFilesystem(seed=call)
        work = Enduring(filesystem, seed=1, **options)
        filesystem.fail_at(call, error, forever=forever)
        try:
            steps(work)
        except (OSError, ForebayError):
            # The scenario opens a queue while the disk fails.
            filesystem.acknowledge("cannot open")
        met = work.filesystem.faults + filesystem.faults
        work.filesystem.heal()
        filesystem.heal()
        work.log._closed = True
        if not met:
            return faults
        faults += 1
        check(work)


def check_healed(work: Enduring) -> None:
    """The process goes on, or is killed: either way, all that was acknowledged is there."""
    promises = [made for made in work.filesystem.acknowledgements if isinstance(made, Promise)]
    stored = [Promise(end=work.stored)] if work.log._writer._error is None else []
    if work.log._writer._error is None:
        try:
            offset = work.log.append(b"the disk is well again")
        except Closed as error:
            raise Broken(f"the handle ended when the disk was well again: {error}") from error
        work.model.values[offset] = [b"the disk is well again"]
    check_machine(
        work.filesystem.kill(),
        promises + stored,
        work.model,
        options=work.options,
        where="healed",
        killed=True,
    )


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("forebay").setLevel(logging.CRITICAL)


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CASES)
def test_an_error_of_any_call_loses_nothing_and_the_queue_goes_on(
    name: str, fault: str, forever: bool, record_property: Count
) -> None:
    faults = fail_each_call(name, FAULTS[fault], forever=forever, check=check_healed)

    record_property("I/O errors", faults)
    assert faults > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rolling", "killed", "os draining"])
def test_a_power_cut_after_an_error_loses_nothing_acknowledged(
    name: str, record_property: Count
) -> None:
    states = 0

    def cut_power(work: Enduring) -> None:
        nonlocal states
        last = work.filesystem.operations
        for state in work.filesystem.crash_states(2, points=lambda point: point == last, limit=8):
            states += 1
            promises = promises_of(state, work.filesystem)
            check_state(state, promises, work.model, options=work.options)

    faults = fail_each_call(name, errno.EIO, forever=False, check=cut_power)

    record_property("power cuts after an I/O error", states)
    assert states > faults
