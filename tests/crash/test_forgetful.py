"""The forgetful file system forgets what it says, and nothing else."""

from __future__ import annotations

import itertools
import os

import pytest

from forebay.errors import Locked, NotAQueue
from forebay.storage.filesystem import Filesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory, ForgetfulFile

OLD = b"o" * 512
NEW = b"n" * 512
ZERO = bytes(512)


@pytest.fixture
def fs() -> ForgetfulFilesystem:
    return ForgetfulFilesystem(seed=7)


@pytest.fixture
def queue(fs: ForgetfulFilesystem) -> ForgetfulDirectory:
    return fs.open_directory("/queue", create=True)


def durable_file(queue: ForgetfulDirectory, name: str, content: bytes) -> ForgetfulFile:
    """Returns a file of which nothing can be lost."""
    file = queue.create(name)
    file.pwrite(content, 0)
    file.sync()
    queue.sync()
    return file


def left(fs: ForgetfulFilesystem, path: str, *, garbage: bool = False) -> set[bytes | None]:
    """Returns every content that a file may have after a power cut now; None if it is not there."""
    states = fs.crash_states(64, since=fs.operations, garbage=garbage)
    return {state.files().get(path) for state in states}


def names_left(fs: ForgetfulFilesystem) -> set[str]:
    """Returns every set of names in /queue that may be there after a power cut now."""
    states = fs.crash_states(64, since=fs.operations, garbage=False)
    return {" ".join(path.removeprefix("/queue/") for path in state.files()) for state in states}


def test_it_implements_the_door_to_the_disk(fs: ForgetfulFilesystem) -> None:
    door: Filesystem = fs

    assert door.boot_id() == door.boot_id()


def test_each_sector_of_an_unsynced_write_may_come_or_not(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD * 3)

    file.pwrite(NEW * 3, 0)

    expected = {b"".join(parts) for parts in itertools.product((OLD, NEW), repeat=3)}
    assert left(fs, "/queue/a") == expected


def test_a_sector_comes_whole_and_as_some_write_left_it(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", b"....")

    file.pwrite(b"1", 0)
    file.pwrite(b"2", 2)

    assert left(fs, "/queue/a") == {b"....", b"1...", b"1.2."}


def test_a_torn_sector_ends_in_its_middle_when_asked_for(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD)
    file.pwrite(NEW, 0)

    states = fs.crash_states(0, since=fs.operations, torn=True)
    contents = [state.files()["/queue/a"] for state in states]

    assert [content for content in contents if b"no" in content and len(content) == 512]


def test_the_size_may_come_before_the_data_and_shows_zeros(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD)

    file.pwrite(NEW, 512)

    assert left(fs, "/queue/a") == {OLD, OLD + ZERO, OLD + NEW}


def test_lost_data_of_new_space_may_show_the_bytes_of_another_file(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "other", b"x" * 2048)
    file = durable_file(queue, "a", OLD)

    file.pwrite(NEW, 512)

    expected = {OLD, OLD + ZERO, OLD + NEW, OLD + b"x" * 512}
    assert left(fs, "/queue/a", garbage=True) == expected


def test_allocated_space_never_shows_garbage(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "other", b"x" * 2048)
    file = durable_file(queue, "a", OLD)
    file.allocate(0, 1024)
    file.sync()

    file.pwrite(NEW, 512)

    assert left(fs, "/queue/a", garbage=True) == {OLD + ZERO, OLD + NEW}


def test_a_cut_that_comes_takes_its_data_with_it(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD * 2)

    file.truncate(100)
    file.truncate(1024)

    assert left(fs, "/queue/a") == {OLD * 2, OLD[:100], OLD[:100] + bytes(924)}


def test_a_file_sync_makes_content_and_size_durable(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD)
    file.pwrite(NEW * 2, 100)

    file.sync()

    assert left(fs, "/queue/a") == {OLD[:100] + NEW * 2}


def test_a_file_sync_does_not_make_the_name_durable(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = queue.create("a")
    file.pwrite(NEW, 0)

    file.sync()

    assert left(fs, "/queue/a") == {None, NEW}


def test_a_directory_sync_makes_names_durable_but_no_content(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = queue.create("a")
    file.pwrite(NEW, 0)

    queue.sync()

    assert left(fs, "/queue/a") == {b"", ZERO, NEW}


def test_different_names_come_in_any_order(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "a", OLD)

    queue.create("b")
    queue.unlink("a")

    assert names_left(fs) == {"a", "a b", "b", ""}


def test_the_same_name_keeps_its_order(fs: ForgetfulFilesystem, queue: ForgetfulDirectory) -> None:
    durable_file(queue, "active", OLD)

    queue.rename("active", "sealed")
    queue.create("active")

    assert names_left(fs) == {"active", "sealed", "active sealed"}
    assert left(fs, "/queue/sealed") == {None, OLD}


def test_a_rename_before_the_file_is_synced_may_leave_an_empty_target(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "a", OLD)
    file = queue.create("a.new")
    file.pwrite(NEW, 0)

    queue.rename("a.new", "a")
    queue.sync()

    assert left(fs, "/queue/a") == {b"", ZERO, NEW}


@pytest.mark.parametrize("synced", ["/queue", "/queue/old"])
def test_a_rename_into_another_directory_is_one_step_that_either_sync_makes_durable(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory, synced: str
) -> None:
    old = fs.open_directory("/queue/old", create=True)
    durable_file(queue, "a", OLD)

    queue.rename("a", "a", old)
    before = names_left(fs)
    fs.open_directory(synced).sync()

    assert before == {"a", "old/a"}
    assert names_left(fs) == {"old/a"}


def test_a_directory_that_was_not_synced_takes_its_files_with_it(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    inner = queue.directory("inner", create=True)
    durable_file(inner, "a", NEW)

    before = left(fs, "/queue/inner/a")
    queue.sync()

    assert before == {None, NEW}
    assert left(fs, "/queue/inner/a") == {NEW}


def test_open_directory_with_create_is_durable_with_its_parents(fs: ForgetfulFilesystem) -> None:
    fs.open_directory("/var/spool/queue", create=True)

    states = list(fs.crash_states(4, since=fs.operations))

    assert len(states) == 1
    assert states[0].restore().open_directory("/var/spool/queue").names() == []


def test_stores_into_a_mapping_are_shared_and_lost_by_sector(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "ring", OLD * 3)
    mapping = file.map(1024)

    mapping[0:1024] = NEW * 2
    file.pwrite(b"w", 3)

    assert file.pread(2000, 0) == b"nnnw" + NEW[4:] + NEW + OLD
    assert mapping[:5] == b"nnnwn"
    seconds = {content[512:1024] for content in left(fs, "/queue/ring") if content}
    assert seconds == {OLD, NEW}


def test_stores_are_noticed_before_another_file_is_changed_and_kept_by_a_sync(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "ring", OLD)
    mapping = file.map(512)
    mapping[:] = NEW

    file.sync()

    assert left(fs, "/queue/ring") == {NEW}


def test_a_mapping_shows_zeros_where_the_file_was_cut_and_grew(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "ring", OLD)
    mapping = file.map(512)

    file.truncate(100)
    file.truncate(512)

    assert fs.read_file("/queue/ring") == mapping == OLD[:100] + bytes(412)


def test_missing_existing_and_foreign_names_give_the_errors_of_the_system(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "a", OLD).close()
    queue.directory("inner", create=True)

    with pytest.raises(FileNotFoundError):
        fs.open_directory("/nothing")
    with pytest.raises(FileNotFoundError):
        queue.open("b")
    with pytest.raises(FileExistsError):
        queue.create("a")
    with pytest.raises(NotAQueue):
        queue.open("inner")
    with pytest.raises(NotAQueue):
        fs.open_directory("/queue/a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        queue.open("a").pwrite(b"read only", 0)


def test_locks_belong_to_a_handle_until_it_is_closed(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    other = fs.open_directory("/queue")
    first, second = durable_file(queue, "a", OLD), queue.open("a")
    queue.lock()

    with pytest.raises(Locked) as caught:
        other.lock()
    taken = [first.lock(), second.lock()]
    queue.close()
    first.close()

    other.lock()
    assert caught.value.pid == os.getpid()
    assert [*taken, second.lock()] == [True, False, True]


def test_a_kill_keeps_the_page_cache_and_what_is_pending_but_no_lock(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    file = durable_file(queue, "a", OLD)
    queue.lock()
    file.pwrite(NEW, 0)

    after = fs.kill()

    after.open_directory("/queue").lock()
    assert after.read_file("/queue/a") == NEW
    assert left(after, "/queue/a") == {OLD, NEW}
    assert after.boot_id() == fs.boot_id()
    assert after.random_bytes(8) != fs.random_bytes(8)


def test_a_restored_machine_holds_the_state_durably_and_can_be_cut_again(
    fs: ForgetfulFilesystem, queue: ForgetfulDirectory
) -> None:
    durable_file(queue, "a", OLD)
    (state,) = fs.crash_states(4, since=fs.operations)

    after = state.restore()
    after.open_directory("/queue").open("a", write=True).pwrite(NEW, 0)

    assert after.boot_id() != fs.boot_id()
    assert left(after, "/queue/a") == {OLD, NEW}
    assert fs.files() == state.files() == {"/queue/a": OLD}
