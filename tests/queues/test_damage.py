"""Bytes that changed on the disk: what is lost, who is told, what goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Damaged, Log
from forebay.cli import exits
from tests.cli.helpers import run
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    FakeClock,
    flip,
    frame_position,
    numbered,
    segment_files,
    values_of,
)

COUNT = 3 * PER_SEGMENT


def make_log(path: Path, count: int = COUNT, **options: Any) -> Path:
    with Log(path / "q", **{"segment_bytes": SEGMENT_BYTES, **options}) as log:
        log.append_many(numbered(count))
    return path / "q"


def without(*offsets: int, count: int = COUNT) -> list[bytes]:
    return [value for offset, value in enumerate(numbered(count)) if offset not in offsets]


@pytest.mark.parametrize("offset", [0, 3, 7, 8, 15, 23])
def test_salvage_reads_round_a_flipped_byte_and_tells_what_is_missing(
    tmp_path: Path, offset: int
) -> None:
    path = make_log(tmp_path)
    file = segment_files(path)[offset // PER_SEGMENT]
    position = frame_position(offset % PER_SEGMENT)
    flip(file, position + 50)

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())
        damage = reader.damage

    assert values == without(offset)
    assert [(item.path, item.position, item.length) for item in damage] == [
        (str(file), position, 112)
    ]
    assert [(item.offset, item.count, item.torn) for item in damage] == [(offset, 1, False)]


@pytest.mark.parametrize("start", [2, 3, 4, 5])
def test_damage_that_begins_before_the_start_and_reaches_past_it_is_told(
    tmp_path: Path, start: int
) -> None:
    path = make_log(tmp_path)
    file = segment_files(path)[0]
    for offset in (2, 3, 4, 5):
        # Their heads: nothing tells where one ends and the next begins.
        flip(file, frame_position(offset))

    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        consumer = log.consumer("c", start=start)
        with pytest.raises(Damaged):
            consumer.read(100)
        values = values_of(consumer.read(100))
    with forebay.read(path, salvage=True, kind="log") as reader:
        read = list(reader.values(start))
        missing = sum(item.count or 0 for item in reader.damage)

    assert values == read == numbered(COUNT)[6:]
    assert missing >= 6 - start


@pytest.mark.parametrize("byte", range(12))
def test_a_flipped_byte_in_a_frames_head_costs_that_record_alone(tmp_path: Path, byte: int) -> None:
    path = make_log(tmp_path)
    flip(segment_files(path)[1], frame_position(3) + byte)

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())

        assert values == without(PER_SEGMENT + 3)
        assert [(item.offset, item.count) for item in reader.damage] == [(PER_SEGMENT + 3, 1)]


def test_several_damages_are_each_told(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    first, _, third = segment_files(path)
    flip(first, frame_position(2) + 30, frame_position(3) + 30)
    flip(third, frame_position(5) + 30)

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())
        lost = [(item.offset, item.count) for item in reader.damage]

    assert values == without(2, 3, 21)
    assert sum(count or 0 for _, count in lost) == 3
    assert (lost[0][0], lost[-1]) == (2, (21, 1))


def test_without_salvage_reading_stops_at_the_damage(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    file = segment_files(path)[0]
    flip(file, frame_position(3) + 50)
    found: list[bytes] = []

    with forebay.read(path, kind="log") as reader, pytest.raises(Damaged) as caught:
        found.extend(reader.values())

    assert found == numbered(3)
    assert f"{file}, byte {frame_position(3)}: checksum does not match" in str(caught.value)
    assert "forebay cat --salvage" in str(caught.value)


@pytest.mark.parametrize("offset", [0, 5, 8, 23])
def test_a_consumer_is_told_once_and_goes_on_behind_the_damage(tmp_path: Path, offset: int) -> None:
    path = make_log(tmp_path)
    flip(segment_files(path)[offset // PER_SEGMENT], frame_position(offset % PER_SEGMENT) + 50)
    with Log(path) as log:
        consumer = log.consumer("c")
        before = values_of(consumer.read(offset)) if offset else []

        with pytest.raises(Damaged) as caught:
            consumer.read()

        assert (caught.value.damage.offset, caught.value.damage.count) == (offset, 1)
        assert consumer.position == offset + 1
        assert before + values_of(consumer.read()) == without(offset)
        consumer.commit()
        assert log.info().positions == {"c": COUNT}


def test_a_read_gives_what_is_before_the_damage_first(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    flip(segment_files(path)[0], frame_position(5) + 50)
    with Log(path) as log:
        consumer = log.consumer("c")

        assert values_of(consumer.read()) == numbered(5)
        with pytest.raises(Damaged):
            consumer.read()
        assert consumer.read(1)[0].offset == 6


def test_damage_in_the_file_that_is_being_written_is_told_too(tmp_path: Path) -> None:
    with Log(tmp_path / "q", background=False) as log:
        log.append_many(numbered(5))
        flip(tmp_path / "q" / "0000000000", frame_position(4) + 50)
        consumer = log.consumer("c")
        consumer.read(4)

        with pytest.raises(Damaged):
            consumer.read()

        log.append(b"behind it")
        assert values_of(consumer.read()) == [b"behind it"]


def test_damage_to_the_newest_record_that_is_not_synced_is_told_once(tmp_path: Path) -> None:
    with Log(tmp_path / "q", sync="os", background=False) as log:
        log.append_many(numbered(2))
        flip(tmp_path / "q" / "0000000000", frame_position(1) + 50)
        consumer = log.consumer("c")
        consumer.read(1)
        with pytest.raises(Damaged):
            consumer.read()

        assert consumer.read() == []


def test_a_damaged_log_can_be_appended_to(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    for file in segment_files(path):
        flip(file, frame_position(1) + 50)

    with Log(path) as log:
        assert log.append(b"new") == COUNT

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == [*without(1, 9, 17), b"new"]


@pytest.mark.parametrize("byte", range(34))
def test_a_flipped_bit_in_a_header_costs_nothing_and_is_reported(tmp_path: Path, byte: int) -> None:
    path = make_log(tmp_path, count=4)
    file = segment_files(path)[0]
    data = bytearray(file.read_bytes())
    data[byte] ^= 1 << byte % 8
    file.write_bytes(data)

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == numbered(4)
        assert [item.reason for item in reader.damage] == [
            "the header was damaged and could be repaired"
        ]


def test_a_lost_header_costs_the_records_of_its_segment(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    flip(segment_files(path)[1], *range(34))

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == numbered(8) + numbered(8, first=16)
        assert [(item.offset, item.count) for item in reader.damage] == [(8, 8)]


def test_a_segment_that_was_removed_costs_its_records(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    segment_files(path)[1].unlink()

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == numbered(8) + numbered(8, first=16)
        assert sum(item.count or 0 for item in reader.damage) == 8


def test_a_segment_that_was_cut_short_costs_what_was_cut(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    file = segment_files(path)[1]
    file.write_bytes(file.read_bytes()[: frame_position(5) + 7])

    with forebay.read(path, salvage=True, kind="log") as reader:
        assert list(reader.values()) == without(13, 14, 15)
        assert sum(item.count or 0 for item in reader.damage) == 3


def test_one_bad_slot_of_the_tail_costs_nothing(tmp_path: Path) -> None:
    for slot in (0, 4096):
        path = make_log(tmp_path / str(slot))
        flip(path / "tail", slot + 40)

        with Log(path) as log:
            assert (log.begin, log.end) == (0, COUNT)
            assert values_of(log.consumer("c").read()) == numbered(COUNT)
            assert log.append(b"next") == COUNT


def test_both_bad_slots_of_the_tail_cost_no_record_in_the_segments(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    flip(path / "tail", 40, 4096 + 40)

    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == numbered(COUNT)
    with Log(path) as log:
        assert log.append(b"next") == COUNT


def damage_index(path: Path) -> None:
    with Log(path) as log:
        log.consumer("c", start=20)
    flip(path / "index", 8)


def test_a_damaged_index_leaves_the_records_readable(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    damage_index(path)

    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == numbered(COUNT)
        with pytest.raises(Damaged, match="checksum"):
            reader.consumers()


def replace_by(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


INDEX_HARMS: dict[str, Callable[[Path], object]] = {
    "flipped size": lambda file: flip(file, 3),
    "flipped offset": lambda file: flip(file, 11),
    "flipped name": lambda file: flip(file, 12),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "emptied": lambda file: file.write_bytes(b""),
    "removed": lambda file: file.unlink(),
    "junk": lambda file: file.write_bytes(file.read_bytes() + b"junk"),
    "a directory": lambda file: replace_by(file, Path.mkdir),
    "a link": lambda file: replace_by(file, lambda name: name.symlink_to("/etc/passwd")),
    "a FIFO": lambda file: replace_by(file, os.mkfifo),
}
index_harms = pytest.mark.parametrize("harm", INDEX_HARMS)


def make_log_with_consumers(path: Path) -> Path:
    queue = make_log(path)
    with Log(queue) as log:
        log.consumer("c", start=20)
        log.consumer("d", start=9)
    return queue


@index_harms
def test_a_damaged_index_is_raised_once_and_consumers_begin_at_the_oldest_record(
    tmp_path: Path, harm: str
) -> None:
    path = make_log_with_consumers(tmp_path)
    INDEX_HARMS[harm](path / "index")

    with Log(path) as log:
        with pytest.raises(Damaged, match=f"{path}/index"):
            log.consumer("c", start="latest")
        consumer = log.consumer("c", start="latest")
        values = values_of(consumer.read())
        consumer.commit()

        assert values == numbered(COUNT)
        assert log.append(b"next") == COUNT
        assert log.info().losses == 1


@index_harms
def test_a_damaged_index_stops_trimming_until_somebody_has_seen_it(
    tmp_path: Path, harm: str
) -> None:
    path = make_log_with_consumers(tmp_path)
    INDEX_HARMS[harm](path / "index")
    with Log(path) as log:
        with pytest.raises(Damaged, match="forebay fsck --accept"):
            log.trim()
        with pytest.raises(Damaged):
            log.consumer("c")
        consumer = log.consumer("c")
        consumer.read()
        consumer.commit()
        with pytest.raises(Damaged, match="forebay fsck --accept"):
            log.trim()
        assert log.begin == 0
    with Log(path) as log, pytest.raises(Damaged, match="forebay fsck --accept"):
        log.trim()

    seen = forebay.accept_losses(path)

    with Log(path) as log:
        assert seen == 1
        assert log.trim() == 2 * PER_SEGMENT
        assert log.consumer("new", start="latest").position == COUNT
        assert log.info().losses == 0


@index_harms
def test_accepting_at_once_lets_consumers_start_as_new_ones(tmp_path: Path, harm: str) -> None:
    path = make_log_with_consumers(tmp_path)
    INDEX_HARMS[harm](path / "index")
    code = run("fsck", path).exit_code
    accepted = run("fsck", path, "--accept").exit_code

    with Log(path) as log:
        assert log.consumer("c", start="latest").position == COUNT
        assert log.trim() == 2 * PER_SEGMENT

    assert (code, accepted, run("fsck", path).exit_code) == (exits.DAMAGE, 0, 0)


@pytest.mark.parametrize(
    ("junk", "reason"),
    [(b"\0\0\0\1" + bytes(8) + b"\xff", "not UTF-8"), (b"\0\0", "ends within an entry")],
)
def test_of_an_index_without_a_check_the_good_entries_count(
    tmp_path: Path, junk: bytes, reason: str
) -> None:
    path = make_log_with_consumers(tmp_path)
    (path / "index-check").unlink()
    (path / "index").write_bytes((path / "index").read_bytes() + junk)

    with Log(path) as log:
        with pytest.raises(Damaged, match=reason):
            log.consumer("c")

        assert log.consumer("c").position == 20
        assert log.consumer("d").position == 9
        assert log.consumer("e", start="latest").position == 0


@pytest.mark.parametrize("harm", ["flipped", "removed", "emptied", "a directory", "a link"])
def test_a_lost_check_of_the_index_costs_nothing(tmp_path: Path, harm: str) -> None:
    path = make_log_with_consumers(tmp_path)
    file = path / "index-check"
    if harm == "flipped":
        flip(file, 14, 4096 + 14)
    else:
        INDEX_HARMS[harm](file)

    with Log(path) as log:
        consumer = log.consumer("c")
        assert consumer.position == 20
        consumer.read()
        consumer.commit()
    with Log(path) as log:
        assert log.info().positions == {"c": COUNT, "d": 9}
        assert log.info().losses == 0


def test_a_damaged_index_lets_the_background_work_go_on(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    damage_index(path)
    clock = FakeClock()

    with Log(path, background=False, clock=clock, trim_interval_seconds=1.0, sync="os") as log:
        log.append(b"next")
        clock.seconds = 2.0
        log.maintain()

        assert (log.begin, log.end) == (0, COUNT + 1)


def test_removing_a_damaged_index_and_its_check_lets_consumers_start_anew(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    damage_index(path)
    (path / "index").unlink()
    (path / "index-check").unlink()

    with Log(path) as log:
        consumer = log.consumer("c")
        assert values_of(consumer.read()) == numbered(COUNT)
        consumer.commit()
        assert log.trim() == 2 * PER_SEGMENT

    with Log(path) as log:
        assert log.info().positions == {"c": COUNT}


def test_an_index_without_its_check_is_taken_as_other_programs_leave_it(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    with Log(path) as log:
        log.consumer("c", start=20)
    (path / "index-check").unlink()

    with Log(path) as log:
        assert log.consumer("c").position == 20
        assert log.trim() == 16


def test_a_cursor_that_does_not_verify_stops_trimming(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    (path / "cursors").mkdir(mode=0o700)
    (path / "cursors" / "spark").write_bytes(bytes(5000))

    with Log(path) as log:
        log.consumer("c", start="latest")
        assert log.trim() == 0
        assert log.info().cursors["spark"]["offset"] == 0
