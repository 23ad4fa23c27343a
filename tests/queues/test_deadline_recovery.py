"""What was found when a deadline queue was opened is as durable as what is put from then on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.formats.deadline.manifest import NAME as MANIFEST
from forebay.queues.deadline import recovery as deadline_recovery
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.shared.options import SyncPolicy
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered

each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_queue(machine: ForgetfulFilesystem, sync: SyncPolicy = "always") -> DeadlineQueue:
    return DeadlineQueue("/q", filesystem=machine, sync=sync, background=False)


def after_a_power_cut(machine: ForgetfulFilesystem) -> Iterator[ForgetfulFilesystem]:
    """Yields the machines that a power cut may leave now."""
    end = machine.operations
    for state in machine.crash_states(points=lambda point: point == end, garbage=False):
        yield state.restore()


@each_sync
def test_a_large_log_of_a_killed_queue_is_durable_once_it_is_served(
    monkeypatch: pytest.MonkeyPatch, sync: SyncPolicy
) -> None:
    # It is not copied, but written again where it is.
    monkeypatch.setattr(deadline_recovery, "_COPY_BYTES_MAX", 1_000)
    machine = ForgetfulFilesystem()
    queue = open_queue(machine, "os")
    queue.enqueue_many(numbered(50))
    killed = machine.kill()
    queue.close()

    queue = open_queue(killed, sync)
    served = queue.pending
    left = list(after_a_power_cut(killed))
    queue.close()

    assert served == 50
    assert left
    for again in left:
        with open_queue(again) as queue:
            assert sorted(item.value for item in queue.dequeue_many(99)) == numbered(50)


def test_the_log_is_found_by_its_name_alone_after_a_power_cut() -> None:
    machine = ForgetfulFilesystem()
    # A queue that is new syncs its directory for other files too.
    open_queue(machine).close()
    queue = open_queue(machine)
    queue.enqueue(b"acknowledged")
    left = list(after_a_power_cut(machine))
    queue.close()

    assert left
    for again in left:
        # The manifest would tell that a log under its temporary name counts.
        again.damage(f"/q/{MANIFEST}", 0, bytes(40))
        with open_queue(again) as queue:
            assert [item.value for item in queue.dequeue_many(9)] == [b"acknowledged"]


@pytest.mark.slow
def test_a_log_that_was_about_to_get_its_name_is_whole_wherever_the_power_is_cut() -> None:
    machine = ForgetfulFilesystem()
    queue = open_queue(machine)
    queue.enqueue_many(numbered(3))
    killed = machine.kill()
    queue.close()
    since = killed.operations
    open_queue(killed).close()
    states = killed.crash_states(0, since=since, garbage=False, limit=6)
    unnamed = [state for state in states if any(".wal.new" in path for path in state.files())]

    looks = 0
    for state in unnamed:
        recovered = state.restore()
        open_queue(recovered).close()
        for cut in recovered.crash_states(0, garbage=False, limit=4):
            with open_queue(cut.restore()) as queue:
                assert sorted(item.value for item in queue.dequeue_many(9)) == numbered(3), cut
            looks += 1
    assert looks > 50
