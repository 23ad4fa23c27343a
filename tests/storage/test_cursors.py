"""Places of readers in other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption, Locked
from forebay.storage.cursors import Cursor, read_cursors
from forebay.storage.slots import SlotFile
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory


def test_a_cursor_is_made_at_its_start_and_keeps_its_place(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    cursor = Cursor.open(queue, "spark", start=5, incarnation=2)
    first = (cursor.offset, cursor.incarnation)
    cursor.advance(9, 3)
    cursor.close()

    again = Cursor.open(queue, "spark", start=0, incarnation=1)

    assert (first, (again.offset, again.incarnation)) == ((5, 2), (9, 3))
    again.close()
    queue.close()


def test_a_cursor_only_goes_forward(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    cursor = Cursor.open(queue, "spark", start=5, incarnation=1)
    places = []
    for offset in (3, 8, 8, 2, 9):
        cursor.advance(offset, 1)
        places.append(dict(read_cursors(queue))["spark"])

    assert places == [5, 8, 8, 8, 9]
    cursor.close()
    queue.close()


def test_a_cursor_in_use_is_locked_and_free_after_its_close(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    cursor = Cursor.open(queue, "spark", start=0, incarnation=1)

    with pytest.raises(Locked, match="cursors/spark is in use"):
        Cursor.open(queue, "spark", start=0, incarnation=1)

    cursor.close()
    Cursor.open(queue, "spark", start=0, incarnation=1).close()
    queue.close()


def test_cursors_of_other_names_are_free(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    cursors = [Cursor.open(queue, name, start=n, incarnation=1) for n, name in enumerate("abc")]

    assert list(read_cursors(queue)) == [("a", 0), ("b", 1), ("c", 2)]
    for cursor in cursors:
        cursor.close()
    queue.close()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "a b", "x" * 101, "é"])
def test_a_bad_name_is_refused_and_makes_nothing(tmp_path: Path, name: str) -> None:
    queue = open_directory(tmp_path)

    with pytest.raises(InvalidOption, match="cursor name"):
        Cursor.open(queue, name, start=0, incarnation=1)

    assert queue.names() == []
    queue.close()


def test_an_unreadable_cursor_counts_as_zero(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    Cursor.open(queue, "spark", start=7, incarnation=1).close()
    (tmp_path / "d" / "cursors" / "spark").write_bytes(bytes(5000))

    assert dict(read_cursors(queue)) == {"spark": 0}
    queue.close()


def test_without_cursors_there_are_none(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)

    assert list(read_cursors(queue)) == []
    queue.close()


def test_an_advance_is_durable_on_return() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    cursor = Cursor.open(queue, "spark", start=5, incarnation=1)
    start = filesystem.operations
    cursor.advance(9, 1)
    filesystem.acknowledge("advanced")

    found: dict[int, set[int]] = {}
    for state in filesystem.crash_states(since=start, torn=True):
        places = dict(read_cursors(state.restore().open_directory("/d")))
        found.setdefault(state.acknowledged, set()).add(places["spark"])

    assert found == {0: {5, 9}, 1: {9}}


def test_who_waits_for_a_cursor_goes_on_where_the_other_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_directory(tmp_path)
    first = Cursor.open(queue, "spark", start=10, incarnation=1)
    lock = SlotFile.lock

    def wait_for_the_first(slots: SlotFile) -> bool:
        """Stands for a moment in which the first one moves on and closes."""
        first.advance(1_000, 1)
        first.close()
        return lock(slots)

    monkeypatch.setattr(SlotFile, "lock", wait_for_the_first)
    second = Cursor.open(queue, "spark", start=0, incarnation=1)
    monkeypatch.undo()
    second.advance(20, 1)

    assert (second.offset, dict(read_cursors(queue))) == (1_000, {"spark": 1_000})
    second.close()


def test_a_cursor_that_no_slot_verifies_of_is_made_again_and_leaves_nothing_open() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    Cursor.open(queue, "spark", start=5, incarnation=1).close()
    filesystem.write_file("/d/cursors/spark", b"")

    cursor = Cursor.open(queue, "spark", start=7, incarnation=1)
    found = cursor.offset
    cursor.close()
    next(iter(read_cursors(queue)))

    assert (found, filesystem.open_handles) == (7, ["/d"])


def test_a_look_at_the_first_cursor_leaves_none_of_the_files_open() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    Cursor.open(queue, "spark", start=5, incarnation=1).close()

    looking = read_cursors(queue)
    first = next(looking)

    assert (first, "/d/cursors/spark" in filesystem.open_handles) == (("spark", 5), False)
