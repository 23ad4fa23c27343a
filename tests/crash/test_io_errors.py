"""Every call to the disk fails in turn, once and for good: nothing acknowledged is lost.

The loop of SQLite's tests: fail the first call, the second, the third, until a run meets no fault.
Everyday one call in four: each scenario begins at another one, and so does each of its faults.
An operation may raise `OSError` or an error of ours, never anything else; afterwards, with the
disk healed, the queue goes on, reopened if the handle says that it must be.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from forebay.errors import Closed, ForebayError
from tests.counting import Count
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.kinds import EACH_FAILING, KINDS, Kind
from tests.crash.workload import Promise, Workload, place_of, promises_of
from tests.support.campaigns import FULL
from tests.support.planting import Broken

# Everyday one call of so many fails.
EVERY = 4
# Freezes of five segments: too many calls to fail each of them every day.
LONG = ("deadline", "os freezing again")
SCENARIOS = [
    pytest.param(*case, marks=pytest.mark.full if case == LONG else ()) for case in EACH_FAILING
]
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short write": None}
# From half of a write on, a disk that is full for good refuses the same calls as one without room.
TIMES = [
    pytest.param(fault, forever, id=f"{fault} {'for good' if forever else 'once'}", marks=marks)
    for fault in FAULTS
    for forever in (False, True)
    for marks in [pytest.mark.full if forever and FAULTS[fault] is None else ()]
]


class Enduring:
    """A workload that takes an error of the disk as an answer, and goes on."""

    def __init__(self, work: Workload) -> None:
        self.work = work

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.work, name)
        return self._enduring(found) if name in OPERATIONS else found

    def _enduring(self, operation: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any, **keywords: Any) -> None:
            try:
                operation(*arguments, **keywords)
            except (OSError, ForebayError):
                self.work.filesystem.acknowledge("an error")

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
    kind: Kind,
    name: str,
    error: int | None,
    *,
    forever: bool,
    check: Callable[[Workload], None],
    calls: Iterable[int] | None = None,
) -> int:
    """Runs a scenario with each of the calls failing in turn; returns how many faults there were.

    All of its calls, unless `calls` says which.
    """
    steps, options = kind.scenarios[name]
    faults = 0
    for call in calls or itertools.count(1):
        filesystem = ForgetfulFilesystem(seed=call)
        work = kind.workload(filesystem, seed=1, **options)
        filesystem.fail_at(call, error, forever=forever)
        try:
            steps(Enduring(work))
        except (OSError, ForebayError):
            # The scenario opens a queue while the disk fails.
            filesystem.acknowledge("cannot open")
        met = work.filesystem.faults + filesystem.faults
        work.filesystem.heal()
        filesystem.heal()
        work.forget()
        if not met:
            break
        faults += 1
        check(work)
    return faults


def chosen_calls(case: int, error: int | None = errno.EIO) -> Iterable[int]:
    """Returns the calls that fail in a test: all of them in `--full`, else some of them.

    Of a short write all: a scenario has few writes.
    """
    if FULL or error is None:
        return itertools.count(1)
    return itertools.count(1 + case % EVERY, EVERY)


def check_healed(work: Workload) -> None:
    """The process goes on, or is killed: either way, all that was acknowledged is there."""
    promises = [made for made in work.filesystem.acknowledgements if isinstance(made, Promise)]
    stored = [Promise(end=work.stored)] if work.trouble is None else []
    if work.trouble is None:
        try:
            work.go_on()
        except Closed as error:
            raise Broken(f"the handle ended when the disk was well again: {error}") from error
    try:
        work.check(
            work.filesystem.kill(),
            promises + stored,
            work.model,
            options=work.options,
            where="healed",
            killed=True,
        )
    except (ForebayError, OSError) as error:
        raise Broken(f"healed: {error}") from error


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "forebay")


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "forever"), TIMES)
@pytest.mark.parametrize(("kind", "name"), SCENARIOS)
def test_an_error_of_any_call_loses_nothing_and_the_queue_goes_on(
    kind: str, name: str, fault: str, forever: bool, record_property: Count
) -> None:
    case = EACH_FAILING.index((kind, name)) + list(FAULTS).index(fault) + forever

    faults = fail_each_call(
        KINDS[kind],
        name,
        FAULTS[fault],
        forever=forever,
        check=check_healed,
        calls=chosen_calls(case, FAULTS[fault]),
    )

    record_property("I/O errors", faults)
    assert faults > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("log", "rolling"),
        ("log", "killed"),
        ("log", "os draining"),
        ("beats", "rolling"),
        ("beats", "killed"),
        ("beats", "settling"),
        ("beats", "v3-seed"),
        ("deadline", "giving out"),
        ("deadline", "freezing"),
        ("deadline", "merging"),
    ],
)
def test_a_power_cut_after_an_error_loses_nothing_acknowledged(
    kind: str, name: str, record_property: Count
) -> None:
    states = 0

    def cut_power(work: Workload) -> None:
        nonlocal states
        last = work.filesystem.operations
        for state in work.filesystem.crash_states(2, points=lambda point: point == last, limit=8):
            states += 1
            promises = promises_of(state, work.filesystem)
            work.check(
                state.restore(), promises, work.model, options=work.options, where=place_of(state)
            )

    faults = fail_each_call(
        KINDS[kind],
        name,
        errno.EIO,
        forever=False,
        check=cut_power,
        calls=chosen_calls(len(name)),
    )

    record_property("power cuts after an I/O error", states)
    assert states > faults
