"""`quarantine/`: what was taken out is kept and counted."""

from __future__ import annotations

from pathlib import Path

from forebay.storage.filesystem import write_all
from forebay.storage.quarantine import count_kept, keep_bytes, keep_file
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory


def make_file(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)


def test_nothing_kept_counts_as_nothing(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)

    assert count_kept(queue) == (0, 0)
    assert queue.names() == []
    queue.close()


def test_bytes_are_kept_and_counted(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    keep_bytes(queue, "0000000000-34", b"torn")
    keep_bytes(queue, "0000000008-99", b"more torn")

    assert count_kept(queue) == (2, 13)
    assert (tmp_path / "d" / "quarantine" / "0000000000-34").read_bytes() == b"torn"
    queue.close()


def test_keeping_the_same_bytes_again_keeps_them_once(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    for _ in range(2):
        keep_bytes(queue, "0000000000-34", b"torn")

    assert count_kept(queue) == (1, 4)
    queue.close()


def test_a_file_is_moved_out_of_the_queue(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    make_file(tmp_path / "d", "0000000000", b"a segment")

    keep_file(queue, "0000000000")

    assert queue.names() == ["quarantine"]
    assert (tmp_path / "d" / "quarantine" / "0000000000").read_bytes() == b"a segment"
    queue.close()


def test_a_file_is_moved_out_of_a_directory_of_the_queue(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    work = queue.directory("inbox", create=True)
    make_file(tmp_path / "d" / "inbox", "a.part", b"a part")

    keep_file(queue, "a.part", work)

    assert work.names() == []
    assert count_kept(queue) == (1, 6)
    work.close()
    queue.close()


def test_a_second_file_of_the_same_name_does_not_replace_the_first(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    try:
        for data in (b"first", b"second"):
            make_file(tmp_path / "d", "0000000000", data)
            keep_file(queue, "0000000000")

        assert count_kept(queue) == (2, 11)
    finally:
        queue.close()


def test_kept_bytes_are_durable_on_return() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    file = queue.create("unrelated")
    write_all(file, b"x", 0)
    keep_bytes(queue, "kept", b"torn")
    last = filesystem.operations

    for state in filesystem.crash_states(points=lambda point: point == last):
        assert state.files()["/d/quarantine/kept"] == b"torn"
    file.close()


def test_a_file_that_was_moved_is_durable_on_return() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    file = queue.create("a")
    file.pwrite(b"content", 0)
    file.sync()
    file.close()
    queue.sync()
    keep_file(queue, "a")
    end = filesystem.operations

    left = [state.files() for state in filesystem.crash_states(points=lambda point: point == end)]

    assert left
    assert all(files == {"/d/quarantine/a": b"content"} for files in left)
