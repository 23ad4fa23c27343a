"""A file with a check beside it: whole whenever the power goes, and a change is detected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.storage.checked import CheckedFile
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory


def test_a_checked_file_reads_back_as_sound(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = CheckedFile(directory, "file")
    empty = file.read()
    for data in (b"one", b"two two", b""):
        file.write(data)
        assert CheckedFile(directory, "file").read() == (data, True)

    assert empty == (b"", None)
    file.close()
    directory.close()


def test_a_change_behind_its_back_is_detected(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    file = CheckedFile(directory, "file")
    file.write(b"content")
    file.close()
    for changed in (b"Content", b"conten", b"content "):
        (tmp_path / "d" / "file").write_bytes(changed)

        assert CheckedFile(directory, "file").read() == (changed, False)
    directory.close()


def test_a_file_without_a_check_is_taken_as_it_is(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "file").write_bytes(b"from another program")
    file = CheckedFile(directory, "file")
    before = file.read()
    file.write(b"ours")

    assert before == (b"from another program", None)
    assert CheckedFile(directory, "file").read() == (b"ours", True)
    file.close()
    directory.close()


@pytest.mark.parametrize("writes", [[b"content"], [b"", b"content"], [b"one", b"two"]])
@pytest.mark.parametrize("harm", ["removed", "emptied"])
def test_a_file_that_was_removed_or_emptied_is_damage(
    tmp_path: Path, writes: list[bytes], harm: str
) -> None:
    directory = open_directory(tmp_path)
    file = CheckedFile(directory, "file")
    for data in writes:
        file.write(data)
    file.close()
    (tmp_path / "d" / "file").unlink()
    if harm == "emptied":
        (tmp_path / "d" / "file").touch()

    assert CheckedFile(directory, "file").read() == (b"", False)
    directory.close()


def test_an_empty_file_that_was_written_so_is_sound_though_somebody_removes_it(
    tmp_path: Path,
) -> None:
    directory = open_directory(tmp_path)
    file = CheckedFile(directory, "file")
    file.write(b"content")
    file.write(b"")
    file.close()
    (tmp_path / "d" / "file").unlink()

    assert CheckedFile(directory, "file").read() == (b"", True)
    directory.close()


@pytest.mark.parametrize("name", ["file", "file-check"])
@pytest.mark.parametrize("what", ["directory", "link"])
def test_what_stands_in_the_place_of_the_files_is_set_aside_by_a_write(
    tmp_path: Path, name: str, what: str
) -> None:
    directory = open_directory(tmp_path)
    if what == "directory":
        (tmp_path / "d" / name).mkdir()
    else:
        (tmp_path / "d" / name).symlink_to("/etc/passwd")

    file = CheckedFile(directory, "file")
    file.write(b"content")
    file.close()

    assert CheckedFile(directory, "file").read() == (b"content", True)
    assert os.path.lexists(tmp_path / "d" / "quarantine" / name)
    directory.close()


def test_a_power_cut_never_makes_a_checked_file_look_changed() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    file = CheckedFile(directory, "file")
    contents = [b"", b"one", b"two" * 300, b"three"]
    for content in contents[1:]:
        file.write(content)
    found = set()

    for state in filesystem.crash_states(4):
        machine = state.restore()
        try:
            after = machine.open_directory("/d")
        except FileNotFoundError:
            continue
        found.add(CheckedFile(after, "file").read())

    sound = {(content, True) for content in contents}
    assert found - {(b"", None), (b"one", None)} <= sound
    assert {content for content, _ in found} == set(contents)


@pytest.mark.parametrize("writes", [[b"content"], [b"", b"content"]])
def test_a_file_that_is_removed_after_a_power_cut_is_damage(writes: list[bytes]) -> None:
    filesystem = ForgetfulFilesystem()
    file = CheckedFile(filesystem.open_directory("/d", create=True), "file")
    for data in writes:
        file.write(data)
    end = filesystem.operations
    found = set()

    for state in filesystem.crash_states(points=lambda point: point == end, torn=True):
        directory = state.restore().open_directory("/d")
        directory.unlink("file")
        found.add(CheckedFile(directory, "file").read())

    assert found == {(b"", False)}
