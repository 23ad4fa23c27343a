"""`append_encoded`: records as sizes and bytes in one buffer, for who has no objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay
from forebay import BeatsQueue, Full, InvalidOption, Log, RecordTooLarge
from forebay.formats.beats.events import Event, encode_event, join_events
from forebay.formats.fflg import Frames, Header
from forebay.kernels.fflg import encode_sized, fit_sized, measure_sized
from tests.queues.helpers import SEGMENT_BYTES, SYNCS, numbered, values_of

each_sync = pytest.mark.parametrize("sync", SYNCS)


def encode(values: list[bytes]) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def open_log(path: Path, **options: Any) -> Log:
    return Log(path / "q", **{"segment_bytes": SEGMENT_BYTES, **options})


@each_sync
def test_the_records_of_a_buffer_are_appended_over_segments(tmp_path: Path, sync: str) -> None:
    values = [b"", *numbered(30)]
    with open_log(tmp_path, sync=sync) as log:
        log.append(b"before")

        assert log.append_encoded(encode(values), len(values)) == 1
        assert log.append_encoded(memoryview(encode([b"one"])), 1) == 32
        assert log.append_encoded(bytearray(), 0) == 33
        log.append(b"after")

        assert values_of(log.consumer("c").read()) == [b"before", *values, b"one", b"after"]
    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert values_of(reader) == [b"before", *values, b"one", b"after"]


@pytest.mark.parametrize(
    ("buffer", "count"),
    [
        (encode([b"a", b"b"]), 1),
        (encode([b"a", b"b"]), 3),
        (encode([b"a", b"b"])[:-1], 2),
        (encode([b"a"]) + b"x", 1),
        (b"\xff\xff\xff\xff", 1),
        (encode([b"a"]), 0),
        (b"", 1),
    ],
)
def test_a_buffer_of_another_count_is_refused(tmp_path: Path, buffer: bytes, count: int) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(InvalidOption, match=f"count = {count}: the buffer holds"):
            log.append_encoded(buffer, count)

        assert log.end == 0


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=2 * SEGMENT_BYTES, when_full="reject") as log:
        with pytest.raises(RecordTooLarge):
            log.append_encoded(encode([bytes(SEGMENT_BYTES)]), 1)
        with pytest.raises(Full):
            log.append_encoded(encode(numbered(100)), 100)

        assert log.end == 0
    with Log(tmp_path / "old", version=1) as log, pytest.raises(InvalidOption, match="version 2"):
        log.append_encoded(encode([b"a"]), 1)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 400))
def test_a_buffer_makes_the_same_frames_as_a_list(values: list[bytes], room: int) -> None:
    frames = Frames(Header(2, 5, b"saltsalt", 1000))
    buffer = encode(values)
    count, size = fit_sized(buffer, 0, room, 12)
    listed, of_buffer = bytearray(room), bytearray(room)

    end = encode_sized(buffer, 0, count, of_buffer, 7, frames.seed, 9)

    assert (count, size) == frames.fit(values, 0, room)
    assert frames.encode(values, 0, count, listed, 7, 9) == size
    assert of_buffer == listed
    assert end == len(encode(values[:count]))
    sizes = [len(value) for value in values]
    expected = (len(values), sum(sizes), max(sizes, default=0), min(sizes, default=2**32 - 1))
    assert measure_sized(buffer) == expected


def test_the_events_of_a_buffer_are_put(tmp_path: Path) -> None:
    events = [Event(number, 0, {}, {"number": number}) for number in range(30)]
    buffer = join_events(map(encode_event, events))
    with BeatsQueue(tmp_path / "q", segment_bytes=SEGMENT_BYTES) as queue:
        queue.put_encoded(memoryview(buffer), 30)
        queue.put_encoded(b"", 0)

        assert queue.read(100).events == events


@pytest.mark.parametrize(
    ("buffer", "count"),
    [
        (encode([b"a", b"b"]), 1),
        (encode([b"a", b"b"]), 3),
        (encode([b"a", b"b"])[:-1], 2),
        (encode([b"a"]) + b"x", 1),
        (b"\xff\xff\xff\xff", 1),
        (encode([b"a"]), 0),
        (b"", 1),
    ],
)
def test_a_buffer_of_another_count_of_events_is_refused(
    tmp_path: Path, buffer: bytes, count: int
) -> None:
    with BeatsQueue(tmp_path / "q") as queue:
        with pytest.raises(InvalidOption, match=f"count = {count}: the buffer holds"):
            queue.put_encoded(buffer, count)

        assert len(queue) == 0
