"""Where a log begins is on record: what is missing there is damage, what was trimmed is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Damaged, Log, Overtaken
from forebay.cli import exits
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import TailFile
from tests.cli.helpers import json_lines, run
from tests.queues.helpers import PER_SEGMENT, SEGMENT_BYTES, numbered, segment_files
from tests.queues.test_unreadable import drain
from tests.support.inside import move_to

COUNT = 4 * PER_SEGMENT


def make_log(path: Path, **options: Any) -> Path:
    with Log(path / "q", segment_bytes=SEGMENT_BYTES, **options) as log:
        log.append_many(numbered(COUNT))
    return path / "q"


def trim_to(path: Path, offset: int) -> None:
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        consumer = log.consumer("c", start=offset)
        log.trim()
        consumer.close()
        log.forget_consumer("c")


def begin_of(path: Path) -> int | None:
    directory = DiskFilesystem().open_directory(str(path))
    file = TailFile.open(directory, write=False)
    assert file is not None
    tail = file.read()
    file.close()
    directory.close()
    return None if tail is None else tail.begin


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("numbers", [[0], [0, 1], [1], [3], [2, 3], [0, 1, 2, 3]])
def test_segments_that_are_missing_are_damage_with_their_count(
    tmp_path: Path, numbers: list[int], version: int
) -> None:
    path = make_log(tmp_path, version=version)
    files = segment_files(path)
    bases = [*(int(file.name, 16) for file in files), COUNT]
    for number in numbers:
        files[number].unlink()
    gone = {n for number in numbers for n in range(bases[number], bases[number + 1])}
    left = [value for n, value in enumerate(numbered(COUNT)) if n not in gone]

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())
        lost = sum(damage.count or 0 for damage in reader.damage)
    checked = run("fsck", path, "--json")
    recovered = run("recover", path, "--to", tmp_path / "r", "--json")
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append(b"more")
        taken, raised = drain(log)

    assert values == left
    assert taken == [*left, b"more"]
    assert lost == len(gone) == sum(error.damage.count or 0 for error in raised)
    assert checked.exit_code == exits.DAMAGE
    assert json_lines(checked)[-1]["summary"]["lost"] == len(gone)
    assert json_lines(recovered)[-1]["summary"]["lost"] == len(gone)


def test_without_salvage_a_missing_first_segment_stops_a_reader(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    segment_files(path)[0].unlink()

    with (
        forebay.read(path, kind="log") as reader,
        pytest.raises(Damaged, match=r"0000000000.*is missing"),
    ):
        list(reader.values())


def test_a_trimmed_log_begins_where_it_was_trimmed(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    trim_to(path, 17)

    assert begin_of(path) == 16
    with forebay.read(path, kind="log") as reader:
        assert (reader.begin, list(reader.values())) == (16, numbered(16, first=16))
    assert run("fsck", path).exit_code == 0
    with Log(path) as log:
        assert drain(log) == (numbered(16, first=16), [])
        consumer = log.consumer("late")
        move_to(consumer, 8)
        with pytest.raises(Overtaken, match="8 unread"):
            consumer.read()


def test_segments_that_a_crash_left_below_the_beginning_are_passed_by_and_removed(
    tmp_path: Path,
) -> None:
    path = make_log(tmp_path)
    first = segment_files(path)[0]
    shutil.copy(first, tmp_path / "kept")
    trim_to(path, 17)
    shutil.copy(tmp_path / "kept", first)

    with forebay.read(path, kind="log") as reader:
        assert (reader.begin, list(reader.values())) == (16, numbered(16, first=16))
    with Log(path) as log:
        assert drain(log) == (numbered(16, first=16), [])
    assert not first.exists()


def test_a_segment_that_is_missing_while_the_owner_is_alive_is_raised_once(tmp_path: Path) -> None:
    path = make_log(tmp_path)

    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        segment_files(path)[0].unlink()
        values, raised = drain(log)

    assert values == numbered(COUNT - 8, first=8)
    assert [(error.damage.offset, error.damage.count) for error in raised] == [(0, 8)]


def test_losses_that_were_met_stay_on_record_until_they_are_seen(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    segment_files(path)[1].unlink()

    with Log(path) as log:
        _, raised = drain(log)
        losses = log.info().losses
    accepted = forebay.accept_losses(path)
    with Log(path) as log:
        log.forget_consumer("all")
        values, raised_again = drain(log)

    assert (len(raised), losses, accepted) == (1, 1, 1)
    assert (len(values), raised_again) == (COUNT - 8, [])
    assert run("fsck", path).exit_code == 0


@pytest.mark.parametrize("state", ["closed", "reopened"])
def test_an_older_mark_costs_no_record(tmp_path: Path, state: str) -> None:
    path = make_log(tmp_path)
    old = (path / "tail").read_bytes()
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(20, first=COUNT))
        consumer = log.consumer("c", start=9)
        log.trim()
        consumer.close()
    (path / "tail").write_bytes(old)

    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == numbered(COUNT + 20 - 8, first=8)
    if state == "reopened":
        Log(path, segment_bytes=SEGMENT_BYTES).close()
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        assert log.append(b"next") == COUNT + 20
        assert drain(log) == ([*numbered(COUNT + 12, first=8), b"next"], [])
        assert log.info().losses == 0


def test_the_mark_of_another_log_is_set_aside(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    with Log(tmp_path / "other", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(COUNT - 5))
    (path / "tail").write_bytes((tmp_path / "other" / "tail").read_bytes())

    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == numbered(COUNT)
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        assert drain(log) == (numbered(COUNT), [])
        assert log.append(b"next") == COUNT


@pytest.mark.parametrize("what", ["tail", "index", "index-check", "staging", "reserve", "losses"])
@pytest.mark.parametrize("harm", ["directory", "link"])
def test_what_stands_in_the_place_of_a_side_file_stops_nobody(
    tmp_path: Path, what: str, harm: str
) -> None:
    path = make_log(tmp_path, sync="os")
    file = path / what
    file.unlink(missing_ok=True)
    if harm == "directory":
        file.mkdir()
    else:
        file.symlink_to("/etc/passwd")

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == numbered(COUNT)
    assert run("fsck", path).exit_code in (0, exits.DAMAGE)
    assert run("cat", path, "--salvage").exit_code == 0
    assert run("info", path).exit_code == 0
    assert run("recover", path, "--to", tmp_path / "r").exit_code == 0
    with Log(path, sync="os", segment_bytes=SEGMENT_BYTES) as log:
        assert log.append(b"next") == COUNT
        try:
            log.consumer("all")
        except Damaged:
            assert what == "index"
        values, _ = drain(log)
        assert values == [*numbered(COUNT), b"next"]
        log.info()
