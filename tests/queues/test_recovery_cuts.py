"""A log that was recovered and closed: a power cut afterwards finds nothing more to put right."""

from __future__ import annotations

import pytest

from forebay import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.shared.options import SyncPolicy
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered


def open_log(machine: ForgetfulFilesystem, sync: SyncPolicy) -> Log:
    return Log("/q", filesystem=machine, segment_bytes=1_000, sync=sync, background=False)


def held(log: Log) -> list[bytes]:
    return [record.value for record in log.consumer("all")]


def put_aside(machine: ForgetfulFilesystem) -> set[str]:
    return {path for path in machine.files() if path.startswith("/q/quarantine/")}


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_what_recovery_removed_does_not_come_back_after_a_clean_close(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem(seed=1)
    log = open_log(machine, sync)
    log.append_many(numbered(8))
    log.sync()
    since = machine.operations
    log.append(numbered(1, first=8)[0])
    log.append_many(numbered(9, first=9))
    states = list(machine.crash_states(3, since=since, limit=6))
    log.close()

    looks = 0
    for state in states:
        recovered = state.restore()
        with open_log(recovered, sync) as log:
            # No consumer: to save its place would sync the names.
            end = log.end
        aside = put_aside(recovered)
        for cut in recovered.crash_states(2, since=recovered.operations):
            again = cut.restore()
            with open_log(again, sync) as log:
                assert held(log) == numbered(end)
            assert put_aside(again) == aside, (state, cut)
            looks += 1
    assert looks > 20


@pytest.mark.slow
def test_a_recovery_that_was_cut_leaves_no_more_bytes_than_one_that_was_not() -> None:
    machine = ForgetfulFilesystem(seed=1)
    left = open_log(machine, "os")
    left.append_many(numbered(3))
    left.sync()
    left.append_many(numbered(3, first=3))
    killed = machine.kill()
    left.close()
    since = killed.operations

    with open_log(killed, "os") as log:
        expected = log.info().bytes
        cuts = list(killed.crash_states(2, since=since))

    held_bytes = []
    for cut in cuts:
        with open_log(cut.restore(), "os") as log:
            if log.end == 6:
                held_bytes.append(log.info().bytes)
    assert len(held_bytes) > 10
    assert max(held_bytes) == expected


def test_an_older_mark_is_put_right_before_anything_else_changes() -> None:
    machine = ForgetfulFilesystem(seed=1)
    with open_log(machine, "always") as log:
        log.append_many(numbered(3))
    old = machine.read_file("/q/tail")
    with open_log(machine, "always") as log:
        log.append_many(numbered(3, first=3))
    machine.write_file("/q/tail", old)
    newest = max(path for path in machine.files() if path.startswith("/q/0"))
    machine.write_file(newest, machine.read_file(newest) + b"unfinished")
    since = machine.operations

    open_log(machine, "always").close()

    changed = [
        state.files()
        for state in machine.crash_states(4, since=since, garbage=False)
        if any(path.startswith("/q/quarantine/") for path in state.files())
    ]
    assert len(changed) > 5
    assert [files for files in changed if files["/q/tail"] == old] == []


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_a_trim_that_is_finished_at_open_may_be_cut_again(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem(seed=1)
    log = open_log(machine, sync)
    log.append_many(numbered(40))
    consumer = log.consumer("c", start=30)
    consumer.commit()
    since = machine.operations
    log.trim()
    begin = log.begin
    states = list(machine.crash_states(1, since=since, limit=6, garbage=False))
    log.close()

    looks = 0
    assert begin > 20
    for state in states:
        finished = state.restore()
        open_log(finished, sync).close()
        for cut in finished.crash_states(1, limit=6, garbage=False):
            left = cut.restore()
            with LogReader("/q", filesystem=left, salvage=True) as reader:
                values = list(reader.values())
                alarms = [damage for damage in reader.damage if not damage.torn]
            assert (values[-10:], alarms) == (numbered(10, first=30), []), (state, cut)
            with open_log(left, sync) as log:
                assert log.begin in (0, begin)
                assert log.info().losses == 0
            looks += 1
    assert looks > 50
