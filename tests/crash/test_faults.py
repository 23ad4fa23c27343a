"""The forgetful file system fails when it is told to, and a careless store is caught on it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from forebay.storage.filesystem import write_all
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory, ForgetfulFile

Store = Callable[[ForgetfulFilesystem, ForgetfulDirectory, bytes], None]


@pytest.fixture
def fs() -> ForgetfulFilesystem:
    return ForgetfulFilesystem(seed=7)


@pytest.fixture
def file(fs: ForgetfulFilesystem) -> ForgetfulFile:
    directory = fs.open_directory("/queue", create=True)
    file = directory.create("a")
    directory.sync()
    return file


def contents(fs: ForgetfulFilesystem) -> set[bytes]:
    """Returns every content that /queue/a may have after a power cut now."""
    return {state.files()["/queue/a"] for state in fs.crash_states(8, since=fs.operations)}


def test_the_chosen_call_fails_once(fs: ForgetfulFilesystem, file: ForgetfulFile) -> None:
    fs.fail_at(2, errno.EIO)

    file.pread(1, 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.pread(1, 0)
    file.pread(1, 0)

    assert fs.faults == 1


def test_a_lasting_fault_fails_every_call_until_it_is_healed(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    directory = fs.open_directory("/queue")
    calls: list[Callable[[], object]] = [
        lambda: fs.open_directory("/queue"),
        directory.names,
        lambda: directory.open("a"),
        lambda: directory.create("b"),
        lambda: directory.rename("a", "b"),
        lambda: directory.unlink("a"),
        lambda: directory.directory("inner", create=True),
        directory.sync,
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(5),
        lambda: file.allocate(0, 5),
        lambda: file.map(1),
        file.sync,
    ]
    fs.fail_at(1, errno.EDQUOT, forever=True)

    for call in calls:
        with pytest.raises(OSError, match="quota"):
            call()
    fs.heal()

    assert fs.faults == len(calls)
    assert file.pwrite(b"x", 0) == 1


def test_a_failed_sync_forgets_the_data_and_the_next_one_succeeds(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    file.pwrite(b"old", 0)
    file.sync()
    file.pwrite(b"new", 0)
    fs.fail_at(1, errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()

    assert file.pread(3, 0) == b"new"
    assert contents(fs) == {b"old"}


def test_data_that_is_written_again_after_a_failed_sync_can_be_synced(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    file.pwrite(b"new", 0)
    fs.fail_at(1, errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.pwrite(b"new", 0)
    file.sync()

    assert contents(fs) == {b"new"}


def test_a_short_write_writes_half_and_the_next_the_rest(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    fs.fail_at(1, None)

    file.pread(1, 0)
    counts = [file.pwrite(b"12345678", 0), file.pwrite(b"5678", 4)]

    assert counts == [4, 4]
    assert file.pread(9, 0) == b"12345678"


def test_a_lasting_short_write_is_a_full_disk(fs: ForgetfulFilesystem, file: ForgetfulFile) -> None:
    fs.fail_at(1, None, forever=True)

    with pytest.raises(OSError, match="No space left"):
        write_all(file, b"12345678", 0)
    with pytest.raises(OSError, match="No space left"):
        file.allocate(0, 100)

    assert fs.read_file("/queue/a") == b"1234"


def test_a_full_disk_writes_what_fits_then_nothing_until_a_file_goes(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    directory = fs.open_directory("/queue")
    reserve = directory.create("reserve")
    reserve.allocate(0, 400)
    reserve.close()
    fs.capacity_bytes = 1000

    counts = [file.pwrite(bytes(500), 0), file.pwrite(bytes(500), 500)]
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"x", 600)
    overwritten = file.pwrite(b"x" * 600, 0)
    directory.unlink("reserve")

    assert counts == [500, 100]
    assert overwritten == 600
    assert file.pwrite(bytes(500), 600) == 400


def test_an_allocation_on_a_full_disk_leaves_what_it_got(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    fs.capacity_bytes = 1000

    with pytest.raises(OSError, match="No space left"):
        file.allocate(0, 2000)
    file.truncate(10)

    assert file.pwrite(bytes(990), 10) == 990


def test_the_space_of_a_file_without_a_name_is_free_when_it_is_closed(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    directory = fs.open_directory("/queue")
    fs.capacity_bytes = 1000
    file.allocate(0, 1000)
    other = directory.create("b")

    directory.unlink("a")
    with pytest.raises(OSError, match="No space left"):
        other.pwrite(b"x", 0)
    file.close()

    assert other.pwrite(b"x", 0) == 1


def test_written_and_damaged_files_are_durable_at_once(fs: ForgetfulFilesystem) -> None:
    fs.open_directory("/queue", create=True)

    fs.write_file("/queue/a", b"12345")
    fs.damage("/queue/a", 1, b"XX")

    assert contents(fs) == {b"1XX45"}


def test_the_same_seeds_give_the_same_run_and_the_same_states() -> None:
    def run() -> list[tuple[int, str, int, bytes]]:
        fs = ForgetfulFilesystem(seed=3)
        log_store(fs, fs.open_directory("/queue", create=True), fs.random_bytes(3))
        states = fs.crash_states(8, seed=5, torn=True)
        return [(state.point, state.description, state.acknowledged, state.key) for state in states]

    assert run() == run()


def test_a_state_is_found_again_without_the_other_points(fs: ForgetfulFilesystem) -> None:
    log_store(fs, fs.open_directory("/queue", create=True), b"abc")
    states = list(fs.crash_states(8))
    wanted = states[-5]

    found = list(fs.crash_states(8, points=lambda point: point == wanted.point))

    assert wanted.files() in [state.files() for state in found]
    assert {state.point for state in found} == {wanted.point}


def test_a_state_read_later_is_the_state_that_was_found(fs: ForgetfulFilesystem) -> None:
    directory = fs.open_directory("/queue", create=True)
    since = fs.operations
    log_store(fs, directory, b"abc")

    states = fs.crash_states(8, since=since, torn=True)
    early = [(state.key, state.files()) for state in states]
    states = fs.crash_states(8, since=since, torn=True)
    late = [(state.key, state.files()) for state in list(states)]

    assert early == late
    assert len({key for key, _ in early}) == len({str(files) for _, files in early})


def test_what_was_seen_is_not_yielded_unless_more_was_acknowledged(
    fs: ForgetfulFilesystem,
) -> None:
    log_store(fs, fs.open_directory("/queue", create=True), b"abc")
    seen: set[bytes] = set()

    first = list(fs.crash_states(8, seen=seen))
    again = list(fs.crash_states(8, seen=seen))
    fs.acknowledge("more")
    after = list(fs.crash_states(8, seen=seen))

    assert len(seen) == len(first) + len(after)
    assert again == []
    assert {state.acknowledged for state in after} == {4}


def test_a_limit_bounds_the_states_of_a_point_and_since_skips_points(
    fs: ForgetfulFilesystem, file: ForgetfulFile
) -> None:
    since = fs.operations
    file.pwrite(bytes(range(256)) * 40, 0)

    states = list(fs.crash_states(8, limit=10, since=since))

    assert 2 <= len([state for state in states if state.point == fs.operations]) <= 10
    assert min(state.point for state in states) == since


def test_threads_can_share_it(fs: ForgetfulFilesystem, file: ForgetfulFile) -> None:
    def write(index: int) -> None:
        for turn in range(50):
            file.pwrite(bytes([index]), index * 50 + turn)
            file.sync()

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = b"".join(bytes([index]) * 50 for index in range(4))
    assert contents(fs) == {expected}


def log_store(fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes) -> None:
    """Appends a record for each value to a log; correct."""
    file = directory.create("log")
    directory.sync()
    for index, value in enumerate(values):
        write_all(file, bytes([value]) * 700, index * 700)
        file.sync()
        fs.acknowledge(bytes([value]) * 700)


def without_sync(fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes) -> None:
    file = directory.create("log")
    directory.sync()
    for index, value in enumerate(values):
        write_all(file, bytes([value]) * 700, index * 700)
        fs.acknowledge(bytes([value]) * 700)


def without_directory_sync(
    fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes
) -> None:
    file = directory.create("log")
    for index, value in enumerate(values):
        write_all(file, bytes([value]) * 700, index * 700)
        file.sync()
        fs.acknowledge(bytes([value]) * 700)


def with_a_second_try(
    fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes
) -> None:
    """Takes the second sync for a proof."""
    file = directory.create("log")
    directory.sync()
    for index, value in enumerate(values):
        write_all(file, bytes([value]) * 700, index * 700)
        fs.fail_at(1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
        fs.acknowledge(bytes([value]) * 700)


def replacing(fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes) -> None:
    """Writes everything anew for each value and renames it into place; correct."""
    for count, value in enumerate(values, 1):
        file = directory.create("log.new")
        write_all(file, b"".join(bytes([old]) * 700 for old in values[:count]), 0)
        file.sync()
        directory.rename("log.new", "log")
        directory.sync()
        fs.acknowledge(bytes([value]) * 700)


def renaming_before_the_sync(
    fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes
) -> None:
    for count, value in enumerate(values, 1):
        file = directory.create("log.new")
        write_all(file, b"".join(bytes([old]) * 700 for old in values[:count]), 0)
        directory.rename("log.new", "log")
        directory.sync()
        file.sync()
        fs.acknowledge(bytes([value]) * 700)


def through_a_mapping(
    fs: ForgetfulFilesystem, directory: ForgetfulDirectory, values: bytes
) -> None:
    """Takes a store for durable."""
    file = directory.create("log")
    file.allocate(0, 700 * len(values))
    file.sync()
    directory.sync()
    mapping = file.map(700 * len(values))
    for index, value in enumerate(values):
        mapping[index * 700 : index * 700 + 700] = bytes([value]) * 700
        fs.acknowledge(bytes([value]) * 700)


def lost(fs: ForgetfulFilesystem) -> int:
    """Counts the states in which something acknowledged cannot be read any more."""
    count = 0
    for state in fs.crash_states(8):
        log = state.restore().files().get("/queue/log", b"")
        promised = b"".join(map(as_bytes, fs.acknowledgements[: state.acknowledged]))
        count += not log.startswith(promised)
    return count


def as_bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


@pytest.mark.parametrize("store", [log_store, replacing])
def test_a_careful_store_loses_nothing(fs: ForgetfulFilesystem, store: Store) -> None:
    store(fs, fs.open_directory("/queue", create=True), b"abcdef")

    assert lost(fs) == 0


@pytest.mark.parametrize(
    "store",
    [
        without_sync,
        without_directory_sync,
        with_a_second_try,
        renaming_before_the_sync,
        through_a_mapping,
    ],
)
def test_a_careless_store_is_caught(fs: ForgetfulFilesystem, store: Store) -> None:
    store(fs, fs.open_directory("/queue", create=True), b"abcdef")

    assert lost(fs) > 0
