"""Directories and files that are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forebay
from forebay import Damaged, ForebayError, Log, NotAQueue, UnsupportedVersion
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    numbered,
    open_files,
    run_python,
    segment_files,
    snapshot,
    values_of,
)

VERSION_1 = b"FFLG\0\1" + bytes(8)


def lone_segment(path: Path, data: bytes, name: str = "0000000000") -> Path:
    """Makes a directory with one segment, as another program may leave it."""
    (path / "q").mkdir(mode=0o700)
    (path / "q" / name).write_bytes(data)
    return path / "q"


def three_segments(path: Path) -> Path:
    with Log(path / "q", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(3 * PER_SEGMENT))
    return path / "q"


def read_all(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


@pytest.mark.parametrize("data", [b"#!/bin/sh\necho hello, world! 1234", b"FFLX" + bytes(40)])
def test_an_unknown_magic_is_refused_with_the_bytes_found(tmp_path: Path, data: bytes) -> None:
    path = lone_segment(tmp_path, data)
    before = snapshot(path)

    for call in (Log, forebay.open, read_all):
        with pytest.raises(NotAQueue) as caught:
            call(path)
        assert f"{path}/0000000000" in str(caught.value)
        assert repr(data[:4]) in str(caught.value)

    assert snapshot(path) == before


@pytest.mark.parametrize("version", [3, 255, 65535])
def test_an_unknown_version_is_refused_with_its_number(tmp_path: Path, version: int) -> None:
    path = lone_segment(tmp_path, b"FFLG" + version.to_bytes(2, "big") + bytes(40))
    before = snapshot(path)

    for call in (Log, forebay.open, read_all):
        with pytest.raises(UnsupportedVersion, match=f"version {version}; .* reads 0, 1 and 2"):
            call(path)

    assert snapshot(path) == before


@pytest.mark.parametrize("size", [4, 10, 13])
def test_a_segment_that_ends_within_its_header_is_refused(tmp_path: Path, size: int) -> None:
    path = lone_segment(tmp_path, VERSION_1[:size])

    with pytest.raises(Damaged, match="ends within its header"):
        read_all(path)


def test_a_header_of_version_2_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = lone_segment(tmp_path, b"FFLG\0\2" + bytes(20))

    with pytest.raises(Damaged, match="ends within its header"):
        read_all(path)


def test_a_name_that_does_not_match_its_header_is_refused_with_both(tmp_path: Path) -> None:
    path = lone_segment(tmp_path, VERSION_1 + b"\0\0\0\1a", "0000000007")

    for call in (Log, read_all):
        with pytest.raises(NotAQueue, match="header has base offset 0, the name has 7"):
            call(path)


def test_a_segment_renamed_within_a_log_is_damage_there_and_nowhere_else(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "0000000008").write_bytes((path / "0000000010").read_bytes())

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())

        assert values[:8] == numbered(8)
        assert values[-8:] == numbered(8, first=16)
        assert reader.damage


def test_an_empty_directory_is_no_log_to_read_but_becomes_one(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir(mode=0o700)

    for call in (forebay.read, forebay.open):
        with pytest.raises(NotAQueue, match="neither segments nor a tail"):
            call(path)
    assert os.listdir(path) == []
    with Log(path) as log:
        assert log.append(b"a") == 0


@pytest.mark.parametrize("name", ["notes.txt", "0000000000.bak", "Tail", "12345", ".hidden"])
def test_a_foreign_file_in_an_otherwise_empty_directory_is_left_alone(
    tmp_path: Path, name: str
) -> None:
    path = lone_segment(tmp_path, b"precious", name)
    before = snapshot(path)

    for call in (Log, forebay.open, forebay.read):
        with pytest.raises(NotAQueue, match=r"is not a log|holds no queue"):
            call(path)

    assert snapshot(path) == before


def test_a_foreign_file_with_the_ending_of_temporary_ones_is_left_alone(tmp_path: Path) -> None:
    path = lone_segment(tmp_path, b"precious", "thesis.new")

    try:
        Log(path).close()
    except NotAQueue:
        pass

    assert (path / "thesis.new").exists()


def test_foreign_files_beside_a_log_are_left_alone(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "notes.txt").write_bytes(b"precious")

    with Log(path) as log:
        log.consumer("c", start="latest")
        log.trim()

    assert (path / "notes.txt").read_bytes() == b"precious"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
@pytest.mark.parametrize("filled", [False, True])
def test_a_directory_that_others_can_write_to_is_refused(
    tmp_path: Path, mode: int, filled: bool
) -> None:
    path = tmp_path / "q"
    if filled:
        three_segments(tmp_path)
    else:
        path.mkdir()
    path.chmod(mode)
    before = snapshot(path)

    with pytest.raises(NotAQueue, match=rf"has mode {mode:04o}: .*chmod go-w"):
        Log(path)

    assert snapshot(path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_owner_is_refused(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    os.chown(path, 12345, -1)

    with pytest.raises(NotAQueue, match='belongs to user #12345: try "sudo -u #12345"'):
        Log(path)

    assert read_all(path) == numbered(3 * PER_SEGMENT)


def test_a_symbolic_link_as_a_segment_is_not_followed(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "0000000008").rename(tmp_path / "elsewhere")
    (path / "0000000008").symlink_to(tmp_path / "elsewhere")

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == numbered(8) + numbered(8, first=16)
        assert [(item.offset, item.count) for item in reader.damage] == [(8, 8)]
        assert "symbolic link" in reader.damage[0].reason


def test_a_lone_symbolic_link_as_a_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(VERSION_1 + b"\0\0\0\1a")
    (tmp_path / "q").mkdir(mode=0o700)
    (tmp_path / "q" / "0000000000").symlink_to(tmp_path / "elsewhere")

    for call in (Log, read_all):
        with pytest.raises(NotAQueue, match="symbolic link"):
            call(tmp_path / "q")


@pytest.mark.parametrize("name", ["tail", "index", "staging", "reserve"])
def test_a_symbolic_link_as_a_file_of_the_log_is_not_written_through(
    tmp_path: Path, name: str
) -> None:
    path = three_segments(tmp_path)
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)

    try:
        with Log(path, sync="os") as log:
            log.append(b"a")
            log.consumer("c").commit()
    except ForebayError:
        pass

    assert target.read_bytes() == b"precious"


@pytest.mark.slow
def test_a_fifo_as_a_segment_does_not_hang(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "0000000008").unlink()
    os.mkfifo(path / "0000000008")

    result = run_python(
        "import sys, forebay\n"
        "with forebay.read(sys.argv[1], salvage=True) as reader:\n"
        "    print(len(list(reader)), reader.damage[0].reason)\n",
        path,
    )

    assert result.stdout.startswith("16 ")
    assert "is not a file" in result.stdout


@pytest.mark.slow
def test_a_lone_fifo_as_a_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "q" / "0000000000")

    result = run_python("import sys, forebay; forebay.Log(sys.argv[1])", tmp_path / "q")

    assert "NotAQueue" in result.stderr


def test_a_directory_as_a_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q" / "0000000000").mkdir(parents=True, mode=0o700)
    (tmp_path / "q").chmod(0o700)

    for call in (Log, read_all):
        with pytest.raises(NotAQueue, match="not a"):
            call(tmp_path / "q")


def test_a_segment_with_several_hard_links_is_refused(tmp_path: Path) -> None:
    path = lone_segment(tmp_path, VERSION_1 + b"\0\0\0\1a")
    os.link(path / "0000000000", tmp_path / "second name")

    for call in (Log, read_all):
        with pytest.raises(NotAQueue, match="several hard links"):
            call(path)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"precious")

    for call in (Log, forebay.open, forebay.read):
        with pytest.raises(NotAQueue, match="is a file; a queue is a directory"):
            call(tmp_path / "q")

    assert (tmp_path / "q").read_bytes() == b"precious"


def test_a_missing_path_is_not_made_by_reading_or_opening(tmp_path: Path) -> None:
    for call in (forebay.open, forebay.read):
        with pytest.raises((NotAQueue, FileNotFoundError)):
            call(tmp_path / "q")

    assert not (tmp_path / "q").exists()


def test_an_empty_file_behind_the_end_of_a_closed_log_is_set_aside(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "0000000018").write_bytes(b"")

    with Log(path) as log:
        assert log.append(b"next") == 24
        assert log.info().quarantined_files == 1
        assert values_of(log.consumer("c", start=23).read()) == [numbered(24)[-1], b"next"]
    assert len(segment_files(path)) == 4


def test_a_failed_open_gives_its_files_back(tmp_path: Path) -> None:
    path = lone_segment(tmp_path, b"FFLG\0\3" + bytes(40))

    for _ in range(3):
        with pytest.raises(UnsupportedVersion):
            Log(path)

    assert open_files(path) == []


@pytest.mark.parametrize("late", ["Places", "Trimmer", "LogWriter", "adopt_all", "Maintenance"])
def test_an_open_that_fails_late_gives_its_files_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    path = three_segments(tmp_path)

    def failing(*_: object, **__: object) -> None:
        raise OSError("too late")

    monkeypatch.setattr(f"forebay.queues.log.queue.{late}", failing)
    for _ in range(3):
        with pytest.raises(OSError, match="too late"):
            Log(path)

    assert open_files(path) == []


def test_a_ledger_that_does_not_verify_is_set_aside(tmp_path: Path) -> None:
    path = three_segments(tmp_path)
    (path / "ledger").write_bytes(b"garbage")

    with Log(path) as log:
        assert log.append(b"next") == 3 * PER_SEGMENT

    assert (path / "quarantine" / "ledger").read_bytes() == b"garbage"
