"""What of a file can be read is read; the rest is told, with its place and the reason."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forebay.errors import Damaged
from forebay.storage.readable import Hole, open_readable, read_whole
from tests.support.bad_disk import BadDisk
from tests.support.closing import closed_at_end

CONTENT = bytes(number % 251 for number in range(20_000))
REASON = "cannot be read: Input/output error"


def make_file(path: Path) -> Path:
    (path / "file").write_bytes(CONTENT)
    return path


@pytest.mark.parametrize(
    "bad", [(512, 1024), (0, 512), (1536, 4608), (19_968, 20_000), (700, 701), (0, 20_000)]
)
def test_zeros_stand_for_what_cannot_be_read_and_the_hole_is_told(
    tmp_path: Path, bad: tuple[int, int]
) -> None:
    disk = BadDisk({"file": [bad]})
    file = open_readable(closed_at_end(disk.open_directory(str(make_file(tmp_path)))), "file")

    found = file.pread(len(CONTENT) + 100, 0)

    start, end = bad[0] // 512 * 512, min(-(-bad[1] // 512) * 512, len(CONTENT))
    assert found == CONTENT[:start] + bytes(end - start) + CONTENT[end:]
    assert file.holes == [Hole(start, end, REASON)]
    assert file.hole(0, start) is None
    assert file.hole(start, start + 1) == file.holes[0]
    file.close()


def test_a_place_that_is_read_twice_is_one_hole(tmp_path: Path) -> None:
    disk = BadDisk({"file": [(1024, 1536)]})
    file = open_readable(closed_at_end(disk.open_directory(str(make_file(tmp_path)))), "file")

    for start in (0, 1000, 1024, 1030, 1200):
        file.pread(300, start)

    assert file.holes == [Hole(1024, 1500, REASON)]
    file.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EPERM])
def test_a_file_that_cannot_be_opened_is_damaged(tmp_path: Path, code: int) -> None:
    directory = closed_at_end(
        BadDisk(unopenable={"file": code}).open_directory(str(make_file(tmp_path)))
    )

    with pytest.raises(Damaged) as caught:
        open_readable(directory, "file")

    assert caught.value.damage.path == f"{tmp_path}/file"
    assert os.strerror(code) in caught.value.damage.reason


@pytest.mark.parametrize("what", ["directory", "link", "fifo"])
def test_what_is_no_file_is_damaged(tmp_path: Path, what: str) -> None:
    if what == "directory":
        (tmp_path / "file").mkdir()
    elif what == "link":
        (tmp_path / "file").symlink_to("/etc/passwd")
    else:
        os.mkfifo(tmp_path / "file")

    with pytest.raises(Damaged) as caught:
        open_readable(closed_at_end(BadDisk().open_directory(str(tmp_path))), "file")

    assert caught.value.damage.path == f"{tmp_path}/file"


def test_errors_of_another_sort_pass(tmp_path: Path) -> None:
    directory = closed_at_end(
        BadDisk(unopenable={"file": errno.EMFILE}).open_directory(str(make_file(tmp_path)))
    )

    with pytest.raises(OSError, match="Too many open files"):
        open_readable(directory, "file")
    with pytest.raises(FileNotFoundError):
        open_readable(directory, "other")


def test_a_side_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    good = closed_at_end(BadDisk().open_directory(str(make_file(tmp_path))))
    bad = closed_at_end(BadDisk({"file": [(1000, 1001)]}).open_directory(str(tmp_path)))

    assert read_whole(good, "file") == CONTENT
    assert read_whole(good, "other") is None
    with pytest.raises(Damaged) as caught:
        read_whole(bad, "file")
    assert (caught.value.damage.position, caught.value.damage.reason) == (512, REASON)
