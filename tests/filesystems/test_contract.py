"""What every `Filesystem` promises, on real file systems and on the forgetful one.

A queue relies on each of these sentences; `storage/filesystem.py` has them as docstrings.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.errors import Locked, NotAQueue
from forebay.storage.filesystem import (
    Directory,
    DiskFilesystem,
    File,
    Filesystem,
    write_all,
)
from tests.crash.forgetful import ForgetfulFilesystem
from tests.filesystems.conftest import place_on
from tests.support.mounts import KINDS

FORGETFUL = "forgetful"
_NAMES = [f"{number:010}" for number in range(300)]


@pytest.fixture(params=[FORGETFUL, *KINDS])
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Filesystem, str]:
    """Returns each file system and a directory on it that does not exist yet."""
    if request.param == FORGETFUL:
        return ForgetfulFilesystem(), "/q"
    return DiskFilesystem(), str(place_on(request.param, tmp_path_factory) / "q")


@pytest.fixture
def directory(machine: tuple[Filesystem, str]) -> Iterator[Directory]:
    """Yields an open, empty directory."""
    filesystem, path = machine
    opened = filesystem.open_directory(path, create=True)
    yield opened
    opened.close()


def put(directory: Directory, name: str, data: bytes = b"") -> None:
    file = directory.create(name)
    write_all(file, data, 0)
    file.close()


def content(directory: Directory, name: str) -> bytes:
    file = directory.open(name)
    try:
        return file.pread(1 << 20, 0)
    finally:
        file.close()


def test_a_listing_shows_what_was_made_after_the_listing_before(directory: Directory) -> None:
    shown = [directory.names()]
    for name in ("a", "b", "c"):
        put(directory, name)
        shown.append(sorted(directory.names()))

    assert shown == [[], ["a"], ["a", "b"], ["a", "b", "c"]]


def test_a_listing_shows_neither_what_was_removed_nor_old_names(directory: Directory) -> None:
    for name in _NAMES:
        put(directory, name)
    before = directory.names()
    for name in _NAMES[::2]:
        directory.unlink(name)
    for name in _NAMES[1::2]:
        directory.rename(name, "new" + name)

    assert sorted(before) == _NAMES
    assert sorted(directory.names()) == ["new" + name for name in _NAMES[1::2]]


def test_a_listing_shows_what_another_handle_made(machine: tuple[Filesystem, str]) -> None:
    filesystem, path = machine
    first = filesystem.open_directory(path, create=True)
    second = filesystem.open_directory(path)
    assert second.names() == []
    put(first, "made")
    inner = first.directory("inner", create=True)

    assert (sorted(second.names()), inner.names()) == (["inner", "made"], [])
    for each in (first, second, inner):
        each.close()


def test_threads_that_list_one_directory_each_see_all_of_it(directory: Directory) -> None:
    for name in _NAMES:
        put(directory, name)
    seen: list[list[str]] = []

    def look() -> None:
        for _ in range(20):
            seen.append(sorted(directory.names()))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [names for names in seen if names != _NAMES] == []
    assert len(seen) == 80


def test_a_read_is_short_only_at_the_end(directory: Directory) -> None:
    put(directory, "file", bytes(range(250)) * 40)
    file = directory.open("file")

    assert file.pread(10_000, 0) == bytes(range(250)) * 40
    assert file.pread(10_000, 9_900) == bytes(range(150, 250))
    assert (file.pread(0, 5), file.pread(5, 10_000), file.pread(5, 1 << 40)) == (b"", b"", b"")
    file.close()


def test_a_system_that_reads_little_at_a_time_changes_no_read(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DiskFilesystem().open_directory(str(disk / "q"), create=True)
    data = os.urandom(10_500)
    put(directory, "file", data)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 1_000), at))

    file = directory.open("file")

    sizes = (0, 1, 999, 1_000, 1_001, 10_499, 10_500, 20_000)
    assert [file.pread(size, 0) == data[:size] for size in sizes] == [True] * len(sizes)
    assert file.pread(5_000, 10_000) == data[10_000:]
    file.close()
    directory.close()


def test_a_write_is_short_or_raises_and_write_all_goes_on(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.create("file")
    write: Callable[..., int] = file.pwrite
    monkeypatch.setattr(file, "pwrite", lambda data, at: write(bytes(data[:7]), at))

    write_all(file, bytes(range(100)), 3)

    assert file.pread(200, 0) == bytes(3) + bytes(range(100))
    file.close()


def test_a_write_past_the_end_leaves_zeros_between(directory: Directory) -> None:
    file = directory.create("file")

    write_all(file, b"abc", 10_000)

    assert (file.size(), file.pread(20_000, 0)) == (10_003, bytes(10_000) + b"abc")
    file.close()


def test_cut_and_extended_a_file_shows_zeros_never_old_bytes(directory: Directory) -> None:
    file = directory.create("file")
    write_all(file, b"\xff" * 6_000, 0)

    file.truncate(1_000)
    file.truncate(3_000)
    file.allocate(2_000, 6_000)

    assert (file.size(), file.pread(9_000, 0)) == (8_000, b"\xff" * 1_000 + bytes(7_000))
    file.allocate(0, 100)
    assert file.size() == 8_000
    file.close()


def test_a_file_opened_to_read_takes_no_writes(directory: Directory) -> None:
    put(directory, "file", b"precious")
    file = directory.open("file")

    for change in (lambda: file.pwrite(b"x", 0), lambda: file.truncate(0)):
        with pytest.raises(OSError, match=f"Errno ({errno.EBADF}|{errno.EINVAL})"):
            change()

    assert file.pread(100, 0) == b"precious"
    file.close()


def test_a_closed_file_refuses_everything_but_a_second_close(directory: Directory) -> None:
    file = directory.create("file")
    write_all(file, bytes(4_096), 0)
    file.close()
    calls: list[Callable[[File], object]] = [
        lambda file: file.pread(1, 0),
        lambda file: file.pwrite(b"x", 0),
        lambda file: file.sync(),
        lambda file: file.truncate(0),
        lambda file: file.allocate(0, 1),
        lambda file: file.size(),
        lambda file: file.map(4_096),
        lambda file: file.lock(),
    ]

    for call in calls:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            call(file)
    file.close()


def test_a_closed_directory_refuses_everything_but_a_second_close(
    machine: tuple[Filesystem, str],
) -> None:
    directory = machine[0].open_directory(machine[1], create=True)
    put(directory, "file")
    directory.close()
    calls: list[Callable[[Directory], object]] = [
        lambda directory: directory.names(),
        lambda directory: directory.open("file"),
        lambda directory: directory.create("new"),
        lambda directory: directory.rename("file", "other"),
        lambda directory: directory.unlink("file"),
        lambda directory: directory.sync(),
        lambda directory: directory.directory("inner", create=True),
        lambda directory: directory.lock(),
    ]

    for call in calls:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            call(directory)
    directory.close()


def test_a_name_is_made_once_and_missing_ones_are_told(directory: Directory) -> None:
    put(directory, "file", b"first")
    missing: list[Callable[[], object]] = [
        lambda: directory.open("nothing"),
        lambda: directory.unlink("nothing"),
        lambda: directory.rename("nothing", "other"),
        lambda: directory.directory("nothing"),
    ]

    with pytest.raises(FileExistsError):
        directory.create("file")
    for call in missing:
        with pytest.raises(FileNotFoundError):
            call()
    assert (content(directory, "file"), directory.names()) == (b"first", ["file"])


@pytest.mark.parametrize("name", ["", ".", "..", "../q", "a/b", "/q"])
def test_only_plain_names_are_taken(directory: Directory, name: str) -> None:
    put(directory, "file")
    calls: list[Callable[[], object]] = [
        lambda: directory.open(name),
        lambda: directory.create(name),
        lambda: directory.unlink(name),
        lambda: directory.rename(name, "other"),
        lambda: directory.rename("file", name),
        lambda: directory.directory(name),
        lambda: directory.directory(name, create=True),
    ]

    for call in calls:
        with pytest.raises(NotAQueue, match="plain name"):
            call()
    assert directory.names() == ["file"]


def test_a_rename_replaces_and_who_has_the_old_file_open_keeps_it(directory: Directory) -> None:
    put(directory, "old", b"old")
    put(directory, "new", b"new")
    inner = directory.directory("inner", create=True)
    held = directory.open("old")

    directory.rename("new", "old")
    directory.rename("old", "moved", into=inner)
    directory.sync()
    inner.sync()

    assert (directory.names(), inner.names()) == (["inner"], ["moved"])
    assert (content(inner, "moved"), held.pread(10, 0)) == (b"new", b"old")
    held.close()
    inner.close()


def test_a_removed_file_is_whole_for_who_has_it_open(directory: Directory) -> None:
    put(directory, "file", b"content")
    held = directory.open("file", write=True)

    directory.unlink("file")
    put(directory, "file", b"another")
    write_all(held, b"CON", 0)

    assert (held.pread(10, 0), content(directory, "file")) == (b"CONtent", b"another")
    held.close()


def test_a_lock_excludes_all_other_handles_until_it_is_closed(directory: Directory) -> None:
    put(directory, "file")
    first, second = (directory.open("file", write=True) for _ in range(2))

    taken = [first.lock(), second.lock(), first.lock()]
    first.close()

    assert [*taken, second.lock()] == [True, False, True, True]
    second.close()


def test_a_directory_is_locked_by_one_handle(machine: tuple[Filesystem, str]) -> None:
    filesystem, path = machine
    first = filesystem.open_directory(path, create=True)
    second = filesystem.open_directory(path)
    first.lock()

    with pytest.raises(Locked):
        second.lock()
    first.close()
    second.lock()

    assert second.names() == []
    second.close()


def test_a_mapping_and_the_file_are_one(directory: Directory) -> None:
    file = directory.create("file")
    file.allocate(0, 8_192)
    if not directory.maps:
        file.close()
        pytest.skip("no mapped stores on this file system")
    mapping = file.map(8_192)

    mapping[4_095:4_098] = b"abc"
    write_all(file, b"xyz", 10)
    file.sync()

    assert (file.pread(3, 4_095), bytes(mapping[10:13])) == (b"abc", b"xyz")
    if not isinstance(mapping, bytearray):
        mapping.close()
    file.close()


def make_link(place: Path) -> None:
    (place / "outside").write_bytes(b"outside")
    (place / "q" / "name").symlink_to(place / "outside")


def make_hard_link(place: Path) -> None:
    (place / "outside").write_bytes(b"outside")
    os.link(place / "outside", place / "q" / "name")


def make_pipe(place: Path) -> None:
    os.mkfifo(place / "q" / "name")


def make_folder(place: Path) -> None:
    (place / "q" / "name").mkdir()


@pytest.mark.parametrize("make", [make_link, make_hard_link, make_pipe, make_folder])
@pytest.mark.parametrize("write", [False, True])
def test_what_is_no_plain_file_is_refused_and_can_be_moved_away(
    disk: Path, make: Callable[[Path], None], write: bool
) -> None:
    directory = DiskFilesystem().open_directory(str(disk / "q"), create=True)
    make(disk)

    with pytest.raises(NotAQueue, match="q/name"):
        directory.open("name", write=write)
    directory.rename("name", "aside")

    assert directory.names() == ["aside"]
    assert not (disk / "outside").exists() or (disk / "outside").read_bytes() == b"outside"
    directory.close()


@pytest.mark.parametrize("make", [make_link, make_hard_link, make_pipe])
@pytest.mark.parametrize("create", [False, True])
def test_what_is_no_directory_is_not_opened_as_one(
    disk: Path, make: Callable[[Path], None], create: bool
) -> None:
    directory = DiskFilesystem().open_directory(str(disk / "q"), create=True)
    make(disk)

    with pytest.raises(NotAQueue, match="q/name"):
        directory.directory("name", create=create)
    directory.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINTR])
def test_an_error_of_the_system_comes_through_as_it_is(
    disk: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    directory = DiskFilesystem().open_directory(str(disk / "q"), create=True)
    file = directory.create("file")
    write_all(file, bytes(100), 0)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    for name in ("pread", "pwrite", "fdatasync", "ftruncate", "posix_fallocate"):
        monkeypatch.setattr(os, name, fail)
    calls: list[Callable[[], object]] = [
        lambda: file.pread(10, 0),
        lambda: file.pwrite(b"x", 0),
        file.sync,
        lambda: file.truncate(0),
        lambda: file.allocate(0, 10),
    ]

    for call in calls:
        with pytest.raises(OSError, match=f"Errno {number}"):
            call()
    file.close()
    directory.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_that_was_removed_while_it_was_open_says_so(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = place_on(kind, tmp_path_factory) / "q"
    directory = DiskFilesystem().open_directory(str(path), create=True)
    directory.check_there()

    path.rmdir()

    with pytest.raises(FileNotFoundError, match="removed while it was open"):
        directory.check_there()
    directory.close()
