"""Small files that are replaced whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from forebay.storage.atomic import (
    RESERVE,
    RESERVE_BYTES,
    keep_reserve,
    read_small,
    replace,
)
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory
from tests.storage.helpers import open_directory


def full_disk(reserve: bool = True) -> tuple[ForgetfulFilesystem, ForgetfulDirectory]:
    """Makes a disk without a free byte."""
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    if reserve:
        keep_reserve(directory)
    replace(directory, "file", b"old")
    filesystem.capacity_bytes = sum(len(data) for data in filesystem.files().values())
    return filesystem, directory


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    replace(directory, "file", b"one")
    first = read_small(directory, "file")
    replace(directory, "file", b"the second")

    assert (first, read_small(directory, "file")) == (b"one", b"the second")
    assert directory.names() == ["file"]
    directory.close()


def test_a_missing_small_file_reads_as_none(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)

    assert read_small(directory, "file") is None
    directory.close()


def test_a_temporary_file_that_a_crash_left_is_no_hindrance(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "file.new").write_bytes(b"half")

    replace(directory, "file", b"whole")

    assert read_small(directory, "file") == b"whole"
    assert directory.names() == ["file"]
    directory.close()


def test_a_power_cut_leaves_the_old_content_or_the_new_one() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    replace(directory, "file", b"old" * 400)
    start = filesystem.operations
    replace(directory, "file", b"new" * 600)
    filesystem.acknowledge("replaced")

    found: dict[int, set[bytes]] = {}
    for state in filesystem.crash_states(since=start, torn=True):
        found.setdefault(state.acknowledged, set()).add(state.files()["/d/file"])

    assert found == {0: {b"old" * 400, b"new" * 600}, 1: {b"new" * 600}}


def test_a_replacement_on_a_full_disk_uses_the_reserve() -> None:
    filesystem, directory = full_disk()

    replace(directory, "file", b"new content" * 100)

    assert filesystem.read_file("/d/file") == b"new content" * 100
    assert RESERVE not in directory.names()


def test_without_a_reserve_a_full_disk_raises_and_keeps_the_old_content() -> None:
    filesystem, directory = full_disk(reserve=False)

    with pytest.raises(OSError, match="No space left") as caught:
        replace(directory, "file", b"new content" * 100)

    assert caught.value.errno == errno.ENOSPC
    assert filesystem.files() == {"/d/file": b"old"}


def test_another_error_does_not_cost_the_reserve() -> None:
    filesystem, directory = full_disk()
    filesystem.capacity_bytes = None
    filesystem.fail_at(2, errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        replace(directory, "file", b"new")

    assert RESERVE in directory.names()
    assert filesystem.read_file("/d/file") == b"old"


def test_the_reserve_is_made_once_and_takes_its_space(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    keep_reserve(directory)
    keep_reserve(directory)
    status = (tmp_path / "d" / RESERVE).stat()

    assert status.st_size == RESERVE_BYTES
    assert status.st_blocks * 512 >= RESERVE_BYTES
    directory.close()


def test_an_incomplete_reserve_is_not_kept() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    filesystem.capacity_bytes = RESERVE_BYTES - 1

    keep_reserve(directory)

    assert directory.names() == []
