"""Segments that went are not missed: a power cut after a trim or a drop raises no alarm."""

from __future__ import annotations

from typing import Any

import pytest

from forebay import Log
from forebay.damage import Damage
from forebay.formats.fflg import parse_segment_name
from forebay.queues.log.reader import LogReader
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered


def open_log(machine: ForgetfulFilesystem, **options: Any) -> Log:
    return Log("/q", filesystem=machine, segment_bytes=1_000, background=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_a_power_cut_after_a_drop_raises_no_alarm(sync: str) -> None:
    machine = ForgetfulFilesystem(seed=1)
    bounds = {"max_bytes": 4_000, "when_full": "drop_oldest", "sync": sync}
    log = open_log(machine, **bounds)
    since = machine.operations
    for value in numbered(30, size=300):
        log.append(value)
    assert log.begin > 0
    states = list(machine.crash_states(2, since=since, limit=4))
    log.close()

    for state in states:
        with LogReader("/q", filesystem=state.restore(), salvage=True) as reader:
            alarms = [item for item in reader.scan() if isinstance(item, Damage) and not item.torn]
        assert alarms == [], state.description


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_a_beginning_is_on_record_before_what_is_below_it_goes(sync: str) -> None:
    machine = ForgetfulFilesystem(seed=1)
    log = open_log(machine, max_bytes=4_000, when_full="drop_oldest", sync=sync)
    since = machine.operations
    for value in numbered(20, size=300):
        log.append(value)
    states = list(machine.crash_states(0, since=since, limit=2, garbage=False))
    log.close()

    for state in states:
        names = (path.rpartition("/")[2] for path in state.files())
        bases = [base for base in map(parse_segment_name, names) if base is not None]
        with LogReader("/q", filesystem=state.restore(), salvage=True) as reader:
            assert reader.tail is not None
            assert min(bases, default=0) <= (reader.tail.begin or 0), state
