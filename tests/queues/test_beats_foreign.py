"""Directories that Beats left: taken over in any version, continued, and handed back."""

from __future__ import annotations

import fcntl
import json
import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue, BeatsReader, Locked, WrongKey
from forebay.formats.beats.text import event_document
from forebay.formats.beats.versions import LAYOUTS
from tests.formats.beats_independent import read_segment
from tests.queues.beats_helpers import (
    GOLDEN,
    copy_golden,
    leave_segment,
    make_key,
    numbered,
    open_queue,
    segment_names,
    state_of,
    take_all,
    unread,
)
from tests.queues.helpers import snapshot

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())
CLEAN = [case for case in CASES if "made_from" not in case]
each_clean = pytest.mark.parametrize("case", CLEAN, ids=lambda case: case["case"])
each_layout = pytest.mark.parametrize("version", LAYOUTS)


@each_clean
def test_a_directory_of_beats_is_taken_over_and_goes_on(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    path = copy_golden(case["case"], tmp_path / "q")
    old = segment_names(path)
    # What Beats 7.10 to 7.13 left goes on only in a version that somebody chose.
    version = "v2" if case["case"].startswith("v0") else None
    with open_queue(path, version, segment_bytes=10**6) as queue:
        queue.put_many(numbered(3))
        documents = []
        while batch := queue.read(1000):
            documents += [event_document(event) for event in batch]
            batch.ack()

        assert len(segment_names(path)) == 1
        newest = int(segment_names(path)[0].removesuffix(".seg"))
        assert newest > int(old[-1].removesuffix(".seg"))
    assert [entry["timestamp_ns"] - 10**9 for entry in documents[-3:]] == [0, 1, 2]
    if "expected" in case:
        text = (GOLDEN / "expected" / case["expected"]).read_text(encoding="utf-8")
        assert documents[:-3] == [json.loads(line) for line in text.split("\n")[:-1]]
    else:
        first = case["first_on_disk"]
        assert len(documents) - 3 == 5000 - case["next"], first


@each_clean
def test_a_reader_leaves_a_directory_of_beats_as_it_was(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    path = copy_golden(case["case"], tmp_path / "q")
    before = snapshot(path)
    key = make_key(tmp_path)

    with BeatsReader(path, key_file=key) as reader:
        count = sum(1 for _ in reader)

    assert count == sum(entry["frames"] for entry in case["segments"])
    assert snapshot(path) == before


def test_a_mixed_directory_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "q"
    for number, version in enumerate(LAYOUTS):
        leave_segment(path, 10 + number, version, numbered(3, first=3 * number))

    with open_queue(path) as queue:
        assert take_all(queue) == list(range(3 * len(LAYOUTS)))


def test_the_queue_keeps_the_version_that_it_finds(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 4, "v1", numbered(3))

    with BeatsQueue(tmp_path / "q") as queue:
        queue.put_many(numbered(2, first=3))

    data = (tmp_path / "q" / "5.seg").read_bytes()
    assert len(read_segment("v1", data)) == 2


@each_layout
def test_a_segment_without_a_count_is_read_and_counted(tmp_path: Path, version: str) -> None:
    file = leave_segment(tmp_path / "q", 0, version, numbered(5), count=0)
    file.write_bytes(file.read_bytes() + b"\x30\0\0\0torn")

    with open_queue(tmp_path / "q") as queue:
        found = take_all(queue, ack=False)
        kept = queue.info().quarantined_files

    data = (tmp_path / "q" / "0.seg").read_bytes()
    assert found == [0, 1, 2, 3, 4]
    assert kept == 1
    assert len(read_segment(version, data)) == 5
    if LAYOUTS[version].counted:
        assert int.from_bytes(data[4:8], "little") == 5


@pytest.mark.parametrize("content", [b"", b"\2\0", bytes(500)])
def test_a_newest_file_without_a_header_costs_nothing(tmp_path: Path, content: bytes) -> None:
    leave_segment(tmp_path / "q", 0, "v2", numbered(3))
    (tmp_path / "q" / "1.seg").write_bytes(content)

    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(1, first=3))

        assert take_all(queue) == [0, 1, 2, 3]


def test_a_false_count_is_listed_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_segment(tmp_path / "q", 0, "v2", numbered(3), count=99)
    leave_segment(tmp_path / "q", 1, "v2", numbered(3, first=3), count=1)
    caplog.set_level(logging.WARNING)

    with open_queue(tmp_path / "q", "v2") as queue:
        assert take_all(queue) == [0, 1, 2, 3, 4, 5]
        text = "the header counts 99 events, 3 are there"
        assert [(item.reason, item.torn, item.count) for item in queue.damage] == [
            (text, True, None)
        ]
    assert text in caplog.text


def states() -> dict[str, tuple[bytes, list[int], bool]]:
    """Contents of `state.dat`, what is unread then, and whether it is rewritten at once."""
    size = 100
    return {
        "none": (b"", [0, 1, 2, 3, 4, 5], False),
        "version 1": (struct.pack("<IQQQ", 1, 1, 12 + size, 1), [4, 5], False),
        "version 0": (struct.pack("<IQQ", 0, 1, size), [4, 5], True),
        "start of a segment": (struct.pack("<IQQQ", 1, 1, 0, 0), [3, 4, 5], False),
        "frame 0, whatever the bytes": (struct.pack("<IQQQ", 1, 1, 50, 0), [3, 4, 5], True),
        "between two frames": (struct.pack("<IQQQ", 1, 1, 12 + size + 9, 1), [4, 5], True),
        "behind the end": (struct.pack("<IQQQ", 1, 1, 10**6, 900), [], True),
        "below the oldest": (struct.pack("<IQQQ", 1, 0, 12 + size, 1), [0, 1, 2, 3, 4, 5], True),
        "cut off": (struct.pack("<IQQQ", 1, 1, 12, 1)[:9], [0, 1, 2, 3, 4, 5], True),
        "a version that is not": (struct.pack("<IQQQ", 7, 1, 12, 1), [0, 1, 2, 3, 4, 5], True),
    }


@pytest.mark.parametrize("name", states())
def test_the_place_that_beats_left_is_the_place_to_go_on_from(tmp_path: Path, name: str) -> None:
    state, expected, rewritten = states()[name]
    path = tmp_path / "q"
    number = 0 if name != "below the oldest" else 1
    leave_segment(path, number, "v2", numbered(3))
    leave_segment(path, number + 1, "v2", numbered(3, first=3))
    (path / "state.dat").write_bytes(state)
    before = unread(path)

    with open_queue(path, "v2") as queue:
        changed = (path / "state.dat").read_bytes() != state
        assert take_all(queue, ack=False) == expected
    assert before == expected
    assert changed == rewritten


def test_a_state_above_the_newest_segment_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_segment(tmp_path / "q", 3, "v2", numbered(3))
    (tmp_path / "q" / "state.dat").write_bytes(struct.pack("<IQQQ", 1, 9, 12, 1))
    caplog.set_level(logging.WARNING)

    with open_queue(tmp_path / "q", "v2") as queue:
        assert state_of(tmp_path / "q") == (3, 0, 0)
        queue.put_many(numbered(1, first=3))
        assert segment_names(tmp_path / "q") == ["3.seg", "10.seg"]
        assert take_all(queue) == [0, 1, 2, 3]
    assert "names segment 9" in caplog.text


def test_beats_may_write_in_between(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_queue(path, "v2") as queue:
        queue.put_many(numbered(2))
        queue.read(1).ack()
    file = leave_segment(path, 7, "v2", numbered(2, first=2), count=0)
    file.write_bytes(file.read_bytes()[:-3])

    with open_queue(path) as queue:
        queue.put_many(numbered(1, first=4))

        assert segment_names(path) == ["0.seg", "7.seg", "8.seg"]
        assert take_all(queue) == [1, 2, 4]


@pytest.mark.parametrize("name", ["filebeat.lock", "my-beat.lock"])
def test_a_directory_whose_beat_is_running_is_refused(tmp_path: Path, name: str) -> None:
    leave_segment(tmp_path / "diskqueue", 0, "v2", numbered(1))
    before = snapshot(tmp_path / "diskqueue")
    with (tmp_path / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Locked, match=name):
            BeatsQueue(tmp_path / "diskqueue")
    assert snapshot(tmp_path / "diskqueue") == before

    BeatsQueue(tmp_path / "diskqueue").close()


def test_a_beat_does_not_start_while_the_queue_is_open(tmp_path: Path) -> None:
    (tmp_path / "filebeat.lock").touch()

    with (
        BeatsQueue(tmp_path / "diskqueue"),
        BeatsQueue(tmp_path / "other"),
        (tmp_path / "filebeat.lock").open("w") as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with (tmp_path / "filebeat.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not lock.closed


def test_a_wrong_or_missing_key_is_its_own_error_and_changes_nothing(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 0, "v3-seed", numbered(3))
    before = snapshot(tmp_path / "q")
    (tmp_path / "other").mkdir()
    wrong = make_key(tmp_path / "other", b"another key 16 b")

    for key in (None, wrong):
        with pytest.raises(WrongKey):
            BeatsQueue(tmp_path / "q", key_file=key)
        reader = BeatsReader(tmp_path / "q", key_file=key, salvage=True)
        with reader, pytest.raises(WrongKey):
            list(reader)

    assert snapshot(tmp_path / "q") == before


def test_what_beats_reads_on_is_the_rest(tmp_path: Path) -> None:
    path = copy_golden("v1-mid", tmp_path / "q")
    with open_queue(path, segment_bytes=10**6) as queue:
        queue.read(100).ack()
    segment, position, index = state_of(path)

    data = (path / f"{segment}.seg").read_bytes()
    behind = read_segment("v1", data[:8] + data[position:])
    assert index + len(behind) == len(read_segment("v1", data))
