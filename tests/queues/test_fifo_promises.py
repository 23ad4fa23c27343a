"""What a fifo promises beside the plain run: bounds, looks, versions, losses, readers, messages."""

from __future__ import annotations

import errno
import logging
import struct
import threading
import time
import zlib
from pathlib import Path

import pytest

import forebay
from forebay import Damaged, Fifo, FifoReader, Full, UnsupportedVersion
from forebay.damage import Damage
from forebay.kernels.entry import METADATA_BYTES
from forebay.storage.filesystem import DiskFile
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.fifo_helpers import TwoClocks, open_fifo, tape_files
from tests.queues.helpers import SYNCS, flip, numbered, run_python, run_threads
from tests.support.inside import path_of


def drain(fifo: Fifo) -> tuple[list[bytes], list[Damaged]]:
    """Pops everything; returns the values, and what was raised on the way."""
    values: list[bytes] = []
    errors: list[Damaged] = []
    while True:
        try:
            value = fifo.pop()
        except Damaged as error:
            errors.append(error)
            continue
        if value is None:
            return values, errors
        values.append(value)


def open_on(machine: ForgetfulFilesystem) -> Fifo:
    return Fifo("/q", filesystem=machine, sync="os", file_bytes=1_000, background=False)


def forged(number: int, value: bytes, version: bytes) -> bytes:
    """Makes the bytes of an entry, as somebody may put them into a value."""
    entry_id = int(time.time() * 1000 + 60_000) << 16 | number & 0xFFFF
    checked = struct.pack("<8sIIQI", version, len(value), 0, entry_id, zlib.crc32(value))
    return zlib.crc32(checked).to_bytes(4, "little") + checked + value


@pytest.mark.parametrize("version", [b"FBENTRY1", b"FBE2\0\0\0\0", b"FBE2abcd"])
def test_an_entry_that_is_carried_inside_an_entry_is_never_given_out(
    tmp_path: Path, version: bytes
) -> None:
    with open_fifo(tmp_path / "q", file_bytes=10_000) as fifo:
        fifo.push(b"first")
        fifo.push(b"x" * 50 + forged(2, b"FAKE", version) + b"y" * 50)
        fifo.push(b"third")
        fifo.push(b"last")
    # The size of the entry that carries.
    flip(tape_files(tmp_path / "q")[0], METADATA_BYTES + 5 + 12)

    with open_fifo(tmp_path / "q", file_bytes=10_000) as fifo:
        values, errors = drain(fifo)

    assert values == [b"first", b"third", b"last"]
    assert [error.damage.count for error in errors] == [1]


def test_two_queues_do_not_read_the_entries_of_each_other(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with open_fifo(tmp_path / name) as fifo:
            fifo.push_many(numbered(30))
    ours, theirs = tape_files(tmp_path / "one")[1], tape_files(tmp_path / "two")[1]
    ours.write_bytes(theirs.read_bytes())

    with open_fifo(tmp_path / "one") as fifo:
        values, errors = drain(fifo)

    lost = sum(error.damage.count or 0 for error in errors)
    assert len(values) + lost == 30
    assert set(values) <= set(numbered(30))
    assert lost >= 7


def test_an_entry_of_an_unknown_version_is_refused_by_name_and_not_passed(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push(b"one")
        fifo.push(b"two")
    file = tape_files(tmp_path / "q")[0]
    data = bytearray(file.read_bytes())
    start = METADATA_BYTES + 3
    data[start + 4 : start + 8] = b"FBE7"
    checksum = zlib.crc32(data[start + 4 : start + METADATA_BYTES])
    data[start : start + 4] = checksum.to_bytes(4, "little")
    file.write_bytes(data)

    with open_fifo(tmp_path / "q") as fifo:
        assert fifo.pop() == b"one"
        for _ in range(2):
            with pytest.raises(UnsupportedVersion, match="FBE7"):
                fifo.pop()
        assert len(fifo) == 1
    with FifoReader(tmp_path / "q") as reader, pytest.raises(Damaged, match="does not read"):
        list(reader)


@pytest.mark.parametrize("sync", SYNCS)
def test_a_look_goes_over_everything_and_removes_nothing(tmp_path: Path, sync: str) -> None:
    values = numbered(300)
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        fifo.push_many(values[:290])
        for value in values[290:]:
            fifo.push(value)
        fifo.pop()

        first = [entry.value for entry in fifo]
        looks = zip(fifo, fifo, strict=True)

        assert first == values[1:]
        assert all(one == other for one, other in looks)
        assert len(fifo) == 299
        assert fifo.pop() == values[1]


def test_a_look_and_a_peek_tell_damage_once_and_go_on(tmp_path: Path) -> None:
    values = numbered(20)
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many(values)
    flip(tape_files(tmp_path / "q")[0], 3 * 132 + 50)

    with open_fifo(tmp_path / "q") as fifo:
        look = iter(fifo)
        seen = [next(look).value for _ in range(3)]
        with pytest.raises(Damaged, match="no entry verifies"):
            next(look)
        seen += [entry.value for entry in look]
        again = [entry.value for entry in fifo]
        popped, errors = drain(fifo)
        losses = fifo.info().losses

    whole = values[:3] + values[4:]
    assert seen == again == popped == whole
    assert (errors, losses) == ([], 1)
    with open_fifo(tmp_path / "q") as fifo:
        assert fifo.info().losses == 1


@pytest.mark.slow
def test_a_peek_after_many_expired_entries_reads_them_once(tmp_path: Path) -> None:
    clock = TwoClocks()
    with Fifo(tmp_path / "q", clock=clock, background=False, sync="os") as fifo:
        fifo.push_many([b"x"] * 100_000, ttl_seconds=1)
        fifo.push(b"alive")
        clock.pass_time(2_000)
        first = fifo.peek()
        begin = time.process_time()
        for _ in range(20):
            assert fifo.peek() == first
        seconds = time.process_time() - begin

        assert first is not None
        assert first.value == b"alive"
        assert seconds < 0.1


@pytest.mark.parametrize("sync", SYNCS)
def test_max_entries_bounds_singles_batches_and_what_is_lent_out(tmp_path: Path, sync: str) -> None:
    with open_fifo(tmp_path / "q", sync=sync, max_entries=10, when_full="reject") as fifo:
        for value in numbered(8):
            fifo.push(value)
        with pytest.raises(Full, match="8 entries of max_entries = 10"):
            fifo.push_many(numbered(3))
        fifo.push_many(numbered(2, first=8))
        with pytest.raises(Full, match="10 entries of max_entries = 10"):
            fifo.push(b"")
        with pytest.raises(Full, match="11 entries are more than max_entries = 10"):
            fifo.push_many(numbered(11))
        full = fifo.full()
        with fifo.take() as entry, pytest.raises(Full):
            fifo.push(b"")

        assert (full, entry.value) == (True, numbered(1)[0])
        assert (fifo.capacity, fifo.capacity_bytes, fifo.capacity_for(10)) == (10, None, 10)
        fifo.push(b"tenth")
        assert fifo.pop_many(99) == [*numbered(10)[1:], b"tenth"]


@pytest.mark.parametrize("sync", SYNCS)
def test_max_entries_drops_just_as_many_as_it_takes(tmp_path: Path, sync: str) -> None:
    with open_fifo(tmp_path / "q", sync=sync, max_entries=10, when_full="drop_oldest") as fifo:
        for value in numbered(25):
            fifo.push(value)
        fifo.push_many(numbered(3, first=25))

        assert fifo.info().dropped == 18
        assert fifo.pop_many(99) == numbered(10, first=18)


@pytest.mark.slow
def test_what_is_popped_while_entries_are_dropped_does_not_count_as_dropped(tmp_path: Path) -> None:
    popped: list[bytes] = []
    with Fifo(
        tmp_path / "q", sync="os", file_bytes=4_000, max_bytes=20_000, when_full="drop_oldest"
    ) as fifo:

        def work(number: int) -> None:
            for value in numbered(4_000, 60, first=number * 4_000):
                if number < 2:
                    fifo.push(value)
                else:
                    one = fifo.pop()
                    if one is not None:
                        popped.append(one)

        run_threads(4, work)
        left = len(fifo)

        assert len(popped) + left + fifo.info().dropped == 8_000


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("bounds", [{"max_bytes": 4_000}, {"max_entries": 20}])
def test_a_handler_of_messages_may_push_to_the_queue_that_logs(
    tmp_path: Path, sync: str, bounds: dict[str, int]
) -> None:
    with open_fifo(tmp_path / "q", sync=sync, when_full="drop_oldest", **bounds) as fifo:

        class Spool(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                fifo.push(record.getMessage().encode())

        logger = logging.getLogger("forebay")
        handler = Spool()
        logger.addHandler(handler)
        try:
            done = threading.Thread(
                target=lambda: [fifo.push(value) for value in numbered(300)], daemon=True
            )
            done.start()
            done.join(60)
        finally:
            logger.removeHandler(handler)

        assert not done.is_alive()
        assert fifo.info().dropped > 200


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_damage_after_a_kill_costs_its_entry_and_not_all_that_came_later(
    tmp_path: Path, sync: str
) -> None:
    program = """
import os, sys
from forebay import Fifo
fifo = Fifo(sys.argv[1], sync=sys.argv[2], sync_interval_seconds=3600, file_bytes=10_000)
fifo.push_many([b"%08d" % number for number in range(100)])
os._exit(1)
"""
    assert run_python(program, tmp_path / "q", sync).returncode == 1
    flip(tape_files(tmp_path / "q")[0], 30 * 40 + 35)

    with forebay.read(tmp_path / "q", salvage=True, kind="fifo") as reader:
        read = list(reader.values())
    with open_fifo(tmp_path / "q", file_bytes=10_000, sync=sync) as fifo:
        values, errors = drain(fifo)

    expected = [b"%08d" % number for number in range(100) if number != 30]
    assert read == values == expected
    assert [damage.count for damage in reader.damage] == [1]
    assert [error.damage.count for error in errors] == [1]


@pytest.mark.slow
def test_damage_in_the_staging_buffer_is_counted(tmp_path: Path) -> None:
    program = """
import os, sys
from forebay import Fifo
fifo = Fifo(sys.argv[1], sync="os", background=False)
for number in range(100):
    fifo.push(b"%08d" % number)
os._exit(1)
"""
    assert run_python(program, tmp_path / "q").returncode == 1
    flip(tmp_path / "q" / "staging", 96 + 30 * 40 + 35, 96 + 99 * 40 + 35)

    with Fifo(tmp_path / "q", sync="os") as fifo:
        values, errors = drain(fifo)

    assert values == [b"%08d" % number for number in range(100) if number not in (30, 99)]
    assert sum(error.damage.count or 0 for error in errors) == 2


@pytest.mark.parametrize("sync", SYNCS)
def test_a_sector_that_cannot_be_read_costs_its_entries_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    values = numbered(40)
    with open_fifo(tmp_path / "q", file_bytes=10_000) as fifo:
        fifo.push_many(values)
    original = DiskFile.pread

    def pread(file: DiskFile, size: int, position: int) -> bytes:
        name = path_of(file)
        if name.endswith(".tape") and position < 1_536 and position + size > 1_024:
            raise OSError(errno.EIO, "Input/output error")
        return original(file, size, position)

    monkeypatch.setattr(DiskFile, "pread", pread)
    with open_fifo(tmp_path / "q", file_bytes=10_000, sync=sync) as fifo:
        popped, errors = drain(fifo)

    # 1024 to 1535 is in the entries 7 to 11.
    assert popped == values[:7] + values[12:]
    assert [(error.damage.count, error.damage.position) for error in errors] == [(5, 7 * 132)]


@pytest.mark.parametrize("name", ["fifo-head", "fifo-tail", "fifo-bounds", "staging", "reserve"])
@pytest.mark.parametrize("what", ["directory", "link"])
def test_a_side_file_that_is_something_else_does_not_stop_anybody(
    tmp_path: Path, name: str, what: str
) -> None:
    path = tmp_path / "q"
    with open_fifo(path, sync="os") as fifo:
        fifo.push(b"one")
        fifo.push_many(numbered(20))
    (path / name).unlink(missing_ok=True)
    if what == "directory":
        (path / name).mkdir()
    else:
        (path / name).symlink_to(tmp_path / "elsewhere")

    with forebay.read(path, salvage=True, kind="fifo") as reader:
        read = list(reader.values())
    with open_fifo(path, sync="os") as fifo:
        values, errors = drain(fifo)
        fifo.push(b"more")

    assert read == values == [b"one", *numbered(20)]
    assert errors == []


@pytest.mark.slow
def test_readers_beside_an_owner_that_pops_get_no_alarm(tmp_path: Path) -> None:
    stop = threading.Event()
    alarms: list[Exception] = []
    with Fifo(tmp_path / "q", sync="os", file_bytes=2_000, background=False) as fifo:

        def pop_and_push() -> None:
            while not stop.is_set():
                fifo.push_many(numbered(30))
                fifo.pop_many(30)

        busy = threading.Thread(target=pop_and_push)
        busy.start()
        try:
            for _ in range(300):
                try:
                    with FifoReader(tmp_path / "q") as reader:
                        list(reader.values())
                except Exception as error:
                    alarms.append(error)
        finally:
            stop.set()
            busy.join()

    assert alarms == []


@pytest.mark.slow
def test_a_recovery_that_was_cut_shows_a_reader_no_damage() -> None:
    # The head names a place in a file that is lost, and what was staged has its copy already.
    machine = ForgetfulFilesystem(seed=1)
    left = open_on(machine)
    left.push(b"one")
    left.push(b"two")
    left.pop()
    states = list(machine.crash_states(2, since=machine.operations))
    left.close()

    looks = 0
    for state in states:
        recovered = state.restore()
        open_on(recovered).close()
        for cut in recovered.crash_states(2):
            with FifoReader("/q", filesystem=cut.restore()) as reader:
                assert not [item for item in reader.scan() if isinstance(item, Damage)], cut
            looks += 1
    assert looks > 20
