"""What is true of a fifo once it was opened stays true wherever the power is cut from then on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay import Damage, Damaged, Fifo, FifoReader
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo.head import SLOT_STRIDE
from forebay.queues.fifo.staged import STORING, STORING_AT
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.staging import HEADER_BYTES
from tests.crash.disk import SECTOR_SIZE
from tests.crash.forgetful import CrashState, ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered
from tests.support.clocks import FakeClock

each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_fifo(machine: ForgetfulFilesystem, sync: SyncPolicy = "always") -> Fifo:
    return Fifo("/q", filesystem=machine, sync=sync, background=False, file_bytes=1_000)


def states_at_the_end(machine: ForgetfulFilesystem) -> Iterator[CrashState]:
    """Yields what a power cut leaves now."""
    end = machine.operations
    return machine.crash_states(points=lambda point: point == end, garbage=False)


@each_sync
def test_files_that_recovery_removed_do_not_come_back(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, "os")
    fifo.push_many(numbered(12))
    killed = machine.kill()
    fifo.close()
    before = set(killed.files())

    fifo = open_fifo(killed, sync)
    after = set(killed.files())
    left = [set(state.files()) for state in states_at_the_end(killed)]
    fifo.close()

    assert before - after
    assert left
    assert all(found & before <= after for found in left)


@each_sync
def test_files_that_were_released_and_come_back_do_no_harm_and_go_again(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, sync)
    fifo.push_many(numbered(25))
    fifo.pop_many(22)
    fifo.pop()
    fifo.sync()
    gone = [f"/q/{number:010}.tape" for number in range(2)]
    came_back = [
        state for state in states_at_the_end(machine) if not set(gone).isdisjoint(state.files())
    ]

    fifo.close()

    assert came_back
    for state in came_back:
        later = state.restore()
        with open_fifo(later, sync) as fifo:
            fifo.push_many(numbered(20, first=25))
            assert fifo.pop_many(21) == numbered(21, first=23)
            assert fifo.pop() == numbered(1, first=44)[0]
            assert fifo.info().losses == 0
            assert set(gone).isdisjoint(later.files())


def test_entries_that_the_system_wrote_are_found_after_the_files_before_them_went() -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, "os")
    fifo.push_many(numbered(25))
    fifo.pop_many(21)
    fifo.pop()
    later = restart(machine)
    fifo.close()

    with open_fifo(later, "os") as fifo:
        assert fifo.pop_many(25) == numbered(3, first=22)


def test_a_head_that_is_made_again_has_its_name_for_good() -> None:
    machine = ForgetfulFilesystem()
    with open_fifo(machine) as fifo:
        fifo.push_many(numbered(5))
    directory = machine.open_directory("/q")
    directory.unlink("fifo-head")
    directory.sync()
    directory.close()

    fifo = open_fifo(machine)
    fifo.pop()
    left = [state.restore() for state in states_at_the_end(machine)]
    fifo.close()

    assert left
    for again in left:
        with open_fifo(again) as fifo:
            assert fifo.pop_many(9) == numbered(4, first=1)


# The synced slot that the first commit leaves alone is not being written.
@pytest.mark.parametrize("slot", range(3))
def test_a_power_cut_that_tears_a_slot_of_a_closed_and_reopened_head_is_no_damage(
    slot: int,
) -> None:
    cut = restart(popped_after_a_restart())
    cut.damage("/q/fifo-head", slot * SLOT_STRIDE + 20, b"torn")

    with open_fifo(cut) as fifo:
        values = fifo.pop_many(9)

    assert values[-3:] == numbered(3, first=2)


def test_a_bad_slot_after_a_kill_in_a_later_boot_than_the_close_is_told() -> None:
    killed = popped_after_a_restart().kill()
    killed.damage("/q/fifo-head", newest_slot(killed) * SLOT_STRIDE + 20, b"harm")

    with open_fifo(killed) as fifo:
        with pytest.raises(Damaged, match="what was popped may come again"):
            fifo.pop()
        values = fifo.pop_many(9)

    assert values == numbered(4, first=1)


def test_a_slot_that_a_kill_has_torn_is_no_damage() -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, "os")
    fifo.push_many(numbered(3))
    fifo.pop()
    # The kill comes in the middle of the store that records the next pop.
    start = (1 - newest_slot(machine)) * SLOT_STRIDE
    killed = machine.kill()
    fifo.close()
    killed.damage("/q/fifo-head", start + STORING_AT, STORING)
    killed.damage("/q/fifo-head", start + 20, b"torn")

    with FifoReader("/q", filesystem=killed) as reader:
        assert [item for item in reader.scan() if isinstance(item, Damage)] == []
    with open_fifo(killed, "os") as again:
        assert killed.read_file("/q/fifo-head").count(STORING) == 0
        assert again.pop_many(9) == numbered(2, first=1)
        assert again.info().losses == 0


def test_a_crash_in_a_recovery_that_moves_a_lent_entry_brings_nothing_back() -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, "os")
    fifo.push_many(numbered(4))
    fifo.pop_many(3)
    with fifo.take():
        killed = machine.kill()
    fifo.close()

    start = killed.operations
    open_fifo(killed, "os").close()
    found = set()
    for state in killed.crash_states(since=start, garbage=False):
        if state.description == "everything":
            with open_fifo(state.restore(), "os") as again:
                found.add(tuple(again.pop_many(9)))

    assert found == {tuple(numbered(1, first=3))}


@pytest.mark.slow
def test_an_entry_that_a_power_cut_took_does_not_return_after_a_new_one() -> None:
    # The first entry ends with a sector, so that the second one has sectors of its own. On a clock
    # that has not gone on, its id is one that may follow the new entry's.
    first = bytes(SECTOR_SIZE - HEADER_BYTES - METADATA_BYTES)
    machine = ForgetfulFilesystem()
    fifo = Fifo("/q", filesystem=machine, sync="os", background=False, clock=FakeClock())
    fifo.push(first)
    fifo.push(b"lost")
    later = restart(machine)
    fifo.close()
    later.damage("/q/staging", HEADER_BYTES, b"torn")

    fifo = Fifo("/q", filesystem=later, sync="os", background=False, clock=FakeClock())
    fifo.push(first)
    found = set()
    for state in states_at_the_end(later):
        again = Fifo("/q", filesystem=state.restore(), background=False, clock=FakeClock())
        found.add(tuple(again.pop_many(9)))
        again.close()
    fifo.close()

    assert found == {(), (first,)}


def popped_after_a_restart() -> ForgetfulFilesystem:
    """Returns a machine whose queue of 5 was closed in an earlier boot and has lost 2 to pops."""
    machine = ForgetfulFilesystem()
    with open_fifo(machine) as fifo:
        fifo.push_many(numbered(5))
    later = restart(machine)
    fifo = open_fifo(later, "os")
    fifo.pop()
    fifo.pop()
    left = later.kill()
    fifo.close()
    return left


def restart(machine: ForgetfulFilesystem) -> ForgetfulFilesystem:
    """Returns the machine after a power cut that took nothing."""
    (state,) = [state for state in states_at_the_end(machine) if state.description == "everything"]
    return state.restore()


def newest_slot(machine: ForgetfulFilesystem) -> int:
    data = machine.read_file("/q/fifo-head")
    return max(range(4), key=lambda slot: data[slot * SLOT_STRIDE + 4 :][:8])
