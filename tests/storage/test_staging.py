"""The staging buffer: chunks in a mapped file."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.storage.filesystem import write_all
from forebay.storage.staging import HEADER_BYTES, NAME, Staging, blank_staged, read_staged
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory

SIZE = 8192


def test_a_chunk_is_found_as_it_was_staged(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    staging = Staging(directory, SIZE)
    staging.begin(b"a segment's header", 7)
    staging.buffer[HEADER_BYTES : HEADER_BYTES + 6] = b"frames"

    staged = read_staged(directory)

    assert staged is not None
    assert (staged.header, staged.index) == (b"a segment's header", 7)
    assert staged.frames == b"frames" + bytes(SIZE - HEADER_BYTES - 6)
    staging.close()
    directory.close()


def test_a_new_buffer_holds_no_chunk(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    before = read_staged(directory)
    staging = Staging(directory, SIZE)

    assert (before, read_staged(directory)) == (None, None)
    assert (tmp_path / "d" / NAME).stat().st_blocks * 512 >= SIZE
    staging.close()
    directory.close()


def test_opening_the_buffer_again_makes_its_chunk_void(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    staging = Staging(directory, SIZE)
    staging.begin(b"header", 0)
    staging.close()
    kept = read_staged(directory)

    Staging(directory, SIZE).close()

    assert kept is not None
    assert read_staged(directory) is None
    directory.close()


def test_a_blanked_chunk_is_gone_for_good() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    staging = Staging(directory, SIZE)
    staging.begin(b"header", 0)
    staging.close()
    blank_staged(directory)
    last = filesystem.operations

    for state in filesystem.crash_states(points=lambda point: point == last):
        assert read_staged(state.restore().open_directory("/d")) is None


def test_blanking_without_a_buffer_does_nothing(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)

    blank_staged(directory)

    assert directory.names() == []
    directory.close()


@pytest.mark.parametrize("position", [0, 3, 5, 13, 20, 77, 78, 81])
def test_a_chunk_whose_header_does_not_verify_is_none(tmp_path: Path, position: int) -> None:
    directory = open_directory(tmp_path)
    staging = Staging(directory, SIZE)
    staging.begin(b"header", 3)
    staging.buffer[position] ^= 1

    assert read_staged(directory) is None
    staging.close()
    directory.close()


@pytest.mark.parametrize("size", [0, 4, HEADER_BYTES - 1])
def test_a_buffer_that_was_cut_is_none(tmp_path: Path, size: int) -> None:
    directory = open_directory(tmp_path)
    file = directory.create(NAME)
    write_all(file, b"FBST" + bytes(200), 0)
    file.truncate(size)
    file.close()

    assert read_staged(directory) is None
    directory.close()


def test_a_full_disk_at_the_start_raises_and_the_next_try_works() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    filesystem.capacity_bytes = 1000

    with pytest.raises(OSError, match="No space left"):
        Staging(directory, SIZE)
    filesystem.capacity_bytes = None
    staging = Staging(directory, SIZE)

    assert len(staging.buffer) == SIZE
    staging.close()


def test_a_chunk_survives_the_process() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    staging = Staging(directory, SIZE)
    staging.begin(b"header", 0)
    staging.buffer[HEADER_BYTES : HEADER_BYTES + 4] = b"data"

    staged = read_staged(filesystem.kill().open_directory("/d"))

    assert staged is not None
    assert staged.frames.startswith(b"data")


def test_a_buffer_that_is_opened_again_is_blank_for_good() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    filesystem.write_file(f"/d/{NAME}", b"old" * 1_000)

    staging = Staging(directory, 3_000)

    end = filesystem.operations
    states = filesystem.crash_states(points=lambda point: point == end)
    left = {state.files()[f"/d/{NAME}"] for state in states}
    staging.close()
    directory.close()
    assert left == {bytes(3_000)}
