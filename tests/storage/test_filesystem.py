"""The door to the real disk."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from forebay.errors import Locked, NotAQueue
from forebay.storage.filesystem import DiskFilesystem, is_owned, lock_owner, write_all
from tests.queues.helpers import run_python
from tests.storage.helpers import open_directory
from tests.support.inside import descriptor_of


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("group_readable", "file_mode", "directory_mode"), [(False, 0o600, 0o700), (True, 0o640, 0o750)]
)
def test_files_and_directories_get_their_modes(
    tmp_path: Path, group_readable: bool, file_mode: int, directory_mode: int
) -> None:
    path = tmp_path / "q"
    directory = DiskFilesystem().open_directory(
        str(path), create=True, group_readable=group_readable
    )
    directory.create("file").close()
    directory.directory("inner", create=True).close()
    directory.close()

    assert (mode_of(path), mode_of(path / "inner")) == (directory_mode, directory_mode)
    assert mode_of(path / "file") == file_mode


def test_a_file_is_created_once(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = directory.create("file")
    write_all(file, b"first", 0)
    file.close()

    with pytest.raises(FileExistsError):
        directory.create("file")

    assert (tmp_path / "d" / "file").read_bytes() == b"first"
    directory.close()


def test_a_dangling_link_is_not_created_through(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "file").symlink_to(tmp_path / "target")

    with pytest.raises(FileExistsError):
        directory.create("file")

    assert not (tmp_path / "target").exists()
    directory.close()


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "directory", "device"])
def test_names_that_are_no_plain_files_are_refused(tmp_path: Path, kind: str, write: bool) -> None:
    directory = open_directory(tmp_path)
    name = tmp_path / "d" / "name"
    (tmp_path / "other").write_bytes(b"other")
    if kind == "link":
        name.symlink_to(tmp_path / "other")
    elif kind == "hard link":
        os.link(tmp_path / "other", name)
    elif kind == "fifo":
        os.mkfifo(name)
    elif kind == "directory":
        name.mkdir()
    else:
        try:
            os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root can make a device")

    with pytest.raises(NotAQueue, match="d/name"):
        directory.open("name", write=write)
    directory.close()


@pytest.mark.parametrize("name", ["../outside", "inner/file"])
def test_a_path_where_a_name_is_due_is_refused(tmp_path: Path, name: str) -> None:
    directory = open_directory(tmp_path)
    directory.directory("inner", create=True).close()
    try:
        with pytest.raises((ValueError, NotAQueue)):
            directory.create(name).close()
    finally:
        directory.close()


def test_a_missing_file_or_directory_is_an_ordinary_error(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)

    with pytest.raises(FileNotFoundError):
        directory.open("nothing")
    with pytest.raises(FileNotFoundError):
        directory.directory("nothing")
    with pytest.raises(FileNotFoundError):
        DiskFilesystem().open_directory(str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
    directory.close()


def test_an_inner_directory_is_not_reached_through_a_link(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d" / "inner").symlink_to(tmp_path / "elsewhere")

    for create in (False, True):
        with pytest.raises(NotAQueue, match="inner"):
            directory.directory("inner", create=create)
    directory.close()


def test_a_file_where_a_directory_is_due_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(b"precious")

    for create in (False, True):
        with pytest.raises(NotAQueue, match="is a file"):
            DiskFilesystem().open_directory(str(tmp_path / "d"), create=create)


def test_writes_reads_and_sizes_agree(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = directory.create("file")
    write_all(file, b"hello", 3)
    write_all(file, memoryview(b"J"), 3)
    before = (file.size(), file.pread(100, 0), file.pread(2, 4), file.pread(5, 100))
    file.truncate(5)
    file.allocate(0, 10)
    file.sync()

    assert before == (8, b"\0\0\0Jello", b"el", b"")
    assert file.pread(100, 0) == b"\0\0\0Je\0\0\0\0\0"
    file.close()
    file.close()
    directory.close()


def test_a_mapping_shows_and_changes_the_file(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = directory.create("file")
    write_all(file, bytes(4096), 0)
    mapping = file.map(4096)
    mapping[5:8] = b"abc"
    write_all(file, b"xyz", 10)

    assert file.pread(3, 5) == b"abc"
    assert mapping[10:13] == b"xyz"
    mapping.close()
    file.close()
    directory.close()


def test_a_rename_replaces_and_may_move_to_another_directory(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    inner = directory.directory("inner", create=True)
    for name in ("a", "b"):
        file = directory.create(name)
        write_all(file, name.encode(), 0)
        file.close()

    directory.rename("a", "b")
    directory.rename("b", "c", into=inner)
    inner.sync()

    assert directory.names() == ["inner"]
    assert (tmp_path / "d" / "inner" / "c").read_bytes() == b"a"
    inner.close()
    directory.close()


def test_a_locked_directory_tells_its_owner(tmp_path: Path) -> None:
    first, second = open_directory(tmp_path), open_directory(tmp_path)
    first.lock()

    with pytest.raises(Locked) as caught:
        second.lock()

    assert caught.value.pid == os.getpid()
    first.close()
    second.lock()
    second.close()


@pytest.mark.slow
def test_the_owner_of_a_lock_is_found_across_processes(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.lock()
    program = """
import sys
from forebay.errors import Locked
from forebay.storage.filesystem import DiskFilesystem
try:
    DiskFilesystem().open_directory(sys.argv[1]).lock()
except Locked as error:
    print(error.pid)
"""
    result = run_python(program, tmp_path / "d")

    assert result.stdout == f"{os.getpid()}\n"
    directory.close()


def test_that_a_directory_is_owned_is_seen_without_a_look_at_the_list_of_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, reader = open_directory(tmp_path), open_directory(tmp_path)
    path = str(tmp_path / "d")
    # What was opened by name, from here on.
    opened: list[object] = []
    monkeypatch.setattr("builtins.open", lambda name, *_, **__: opened.append(name))

    before, owner = is_owned(path), lock_owner(path)
    directory.lock()
    # A lock of the older kind would end with any descriptor of the directory.
    reader.close()
    during = is_owned(path)
    directory.close()

    assert (before, during, is_owned(path)) == (False, True, False)
    assert owner is None
    assert opened == []


def test_the_owner_of_a_directory_that_cannot_be_opened_is_not_known(tmp_path: Path) -> None:
    assert is_owned(str(tmp_path / "nothing")) is None


def test_a_file_has_one_lock(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    first = directory.create("file")
    second = directory.open("file", write=True)
    taken = [first.lock(), second.lock()]
    first.close()

    assert [*taken, second.lock()] == [True, False, True]
    second.close()
    directory.close()


@pytest.mark.slow
def test_the_owner_of_a_lock_is_found_while_other_locks_come_and_go(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.lock()
    other = os.fork()
    if other == 0:
        _come_and_go(tmp_path)

    try:
        owners = {lock_owner(directory.path) for _ in range(1000)}
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)

    assert owners == {os.getpid()}
    directory.close()


def _come_and_go(folder: Path) -> NoReturn:
    """Takes and drops more locks than the kernel lists at once, until it is killed."""
    files = [
        os.open(folder / f"{os.getpid()} {number}", os.O_CREAT | os.O_RDWR) for number in range(300)
    ]
    while True:
        for file in random.sample(files, 150):
            fcntl.flock(file, fcntl.LOCK_EX)
        for file in random.sample(files, 150):
            fcntl.flock(file, fcntl.LOCK_UN)


def test_an_unsafe_directory_is_refused_only_where_it_would_be_owned(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o777)

    with pytest.raises(NotAQueue, match="mode 0777"):
        open_directory(tmp_path)

    DiskFilesystem().open_directory(str(tmp_path / "d")).close()


def test_the_machine_has_one_boot_id_and_fresh_random_bytes() -> None:
    filesystem = DiskFilesystem()

    assert len(filesystem.boot_id()) == 16
    assert filesystem.boot_id() == filesystem.boot_id()
    assert filesystem.random_bytes(16) != filesystem.random_bytes(16)


def test_no_descriptor_is_inherited_by_programs(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = directory.create("file")

    descriptors = [descriptor_of(directory), descriptor_of(file)]

    assert [os.get_inheritable(descriptor) for descriptor in descriptors] == [False, False]
    file.close()
    directory.close()


def test_a_sync_asks_the_system_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "others").touch()
    asked: list[tuple[str, str]] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            os, name, lambda number, name=name: asked.append((name, path_of(number)))
        )

    directory = DiskFilesystem().open_directory(str(tmp_path / "a" / "d"), create=True)
    made = asked.copy()
    file = directory.create("f")
    file.sync()
    directory.sync()

    # Each directory that was made has its name before anything is in it.
    assert made == [("fsync", str(tmp_path)), ("fsync", str(tmp_path / "a"))]
    assert asked[2:] == [("fdatasync", f"{directory.path}/f"), ("fsync", directory.path)]
    file.close()
    directory.close()


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
