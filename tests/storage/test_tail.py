"""`tail`: the mark of the end, and what a reader learns of lost offsets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.errors import Damaged
from forebay.storage.quarantine import count_kept
from forebay.storage.slots import SlotFile
from forebay.storage.tail import Tail, TailFile
from tests.storage.helpers import open_directory

# Incarnation 4 began at offset 50, 3 at 80, 2 at 20.
TAIL = Tail(b"q" * 16, b"b" * 16, incarnation=4, starts=(50, 80, 20, 0, 0, 0, 0, 0))


def test_a_mark_reads_back_as_it_was_written(tmp_path: Path) -> None:
    tail = Tail(b"q" * 16, b"b" * 16, 9, 9, 4, 1234, 5678, True, 3, (7, 2, 0, 0, 0, 0, 0, 0))
    directory = open_directory(tmp_path)
    file = TailFile.create(directory, Tail(b"q" * 16, b"b" * 16))
    file.write(tail, sync=True)
    file.close()

    again = TailFile.open(directory, write=False)

    assert again is not None
    assert again.read() == tail
    again.close()
    directory.close()


def test_encoding_and_decoding_match() -> None:
    assert Tail.decode(TAIL.encode()) == TAIL
    assert len(TAIL.encode()) == 160
    begun = TAIL._replace(begin=7, salt=b"saltsalt")
    assert Tail.decode(begun.encode()) == begun


def test_a_mark_of_the_version_before_is_read_and_gone_on_from(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    old = SlotFile.create(directory, "tail", b"FBTL", TAIL.encode()[:144])
    old.close()

    tail_file = TailFile.open(directory, write=True)
    assert tail_file is not None
    found = tail_file.read()
    tail_file.write(TAIL._replace(written=9, durable=7, begin=5))
    again = tail_file.read()
    tail_file.close()
    directory.close()

    assert found == TAIL
    assert again == TAIL._replace(written=9, durable=7, begin=5)


@pytest.mark.parametrize("what", ["directory", "link"])
def test_what_stands_in_the_place_of_a_tail_is_set_aside(tmp_path: Path, what: str) -> None:
    directory = open_directory(tmp_path)
    path = Path(directory.path)
    if what == "directory":
        (path / "tail").mkdir()
    else:
        (path / "tail").symlink_to("/etc/passwd")

    with pytest.raises(Damaged, match="tail"):
        TailFile.open(directory, write=False)

    assert TailFile.open_or_set_aside(directory) is None
    assert os.path.lexists(path / "quarantine" / "tail")
    assert count_kept(directory)[0] == 1
    directory.close()


def test_a_missing_tail_is_none(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)

    assert TailFile.open(directory, write=False) is None
    directory.close()


def test_a_tail_that_does_not_verify_reads_as_none(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "tail").write_bytes(bytes(5000))
    file = TailFile.open(directory, write=False)

    assert file is not None
    assert file.read() is None
    file.close()
    directory.close()


def test_a_clean_mark_with_records_after_its_durable_end_does_not_verify(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = TailFile.create(directory, TAIL._replace(written=9, durable=9, clean=True))
    before = file.read()
    file.write(TAIL._replace(written=2**40, durable=9, clean=True))

    found = TailFile.open(directory, write=False)

    assert found is not None
    assert found.read() == before
    assert not found.whole
    found.close()
    file.close()
    directory.close()


@pytest.mark.parametrize(
    ("incarnation", "offset", "lost"),
    [
        (4, 1_000, False),
        (3, 50, False),
        (3, 51, True),
        (2, 50, False),
        (2, 51, True),
        (2, 81, True),
        (1, 20, False),
        (1, 21, True),
    ],
)
def test_a_reader_is_told_if_an_incarnation_since_began_below_its_place(
    incarnation: int, offset: int, lost: bool
) -> None:
    assert TAIL.lost_since(incarnation, offset) is lost


def test_a_reader_from_before_the_known_incarnations_is_told_in_any_case() -> None:
    tail = Tail(b"", b"", incarnation=20, starts=(900,) * 8)

    assert tail.lost_since(12, 0)
    assert not tail.lost_since(13, 900)
