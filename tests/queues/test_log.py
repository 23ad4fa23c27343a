"""Appending to a log: offsets, values, segments, reopening."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import forebay
from forebay import Log, RecordTooLarge
from forebay.queues.shared.options import SyncPolicy
from tests.queues.helpers import (
    FRAME_BYTES,
    HEADER_BYTES,
    PER_SEGMENT,
    SEGMENT_BYTES,
    SYNCS,
    numbered,
    segment_files,
    values_of,
)

LARGEST = SEGMENT_BYTES - HEADER_BYTES - FRAME_BYTES
each_sync = pytest.mark.parametrize("sync", SYNCS)


def read_all(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


@each_sync
def test_offsets_start_at_zero_and_rise_by_one(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync) as log:
        offsets = [log.append(value) for value in numbered(20)]

        assert offsets == list(range(20))
        assert (log.begin, log.end, len(log)) == (0, 20, 20)


@each_sync
def test_a_batch_gets_the_offset_of_its_first_record(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync) as log:
        firsts = [log.append_many(numbered(count)) for count in (3, 1, 40)]

        assert firsts == [0, 3, 4]
        assert log.append(b"next") == 44


@each_sync
def test_single_records_and_batches_keep_their_order(tmp_path: Path, sync: SyncPolicy) -> None:
    values = numbered(30)
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES) as log:
        for first in range(0, 30, 6):
            log.append(values[first])
            log.append_many(values[first + 1 : first + 4])
            log.append(values[first + 4])
            log.append(values[first + 5])

    assert read_all(tmp_path / "q") == values


def test_put_and_put_many_are_other_names_for_append(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        offsets = log.put(b"a"), log.put_many([b"b", b"c"])

    assert offsets == (0, 1)
    assert read_all(tmp_path / "q") == [b"a", b"b", b"c"]


def test_an_empty_batch_writes_nothing_and_gives_the_next_offset(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"a")

        assert log.append_many([]) == 1
        assert log.append_many(iter(())) == 1
        assert log.end == 1


def test_a_batch_may_come_from_a_generator(tmp_path: Path) -> None:
    with Log(tmp_path / "q", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(value for value in numbered(25))

    assert read_all(tmp_path / "q") == numbered(25)


@each_sync
@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda value: memoryview(value + value)[: len(value)]]
)
def test_bytes_like_values_are_stored_as_their_bytes(
    tmp_path: Path, sync: SyncPolicy, make: Callable[[bytes], Any]
) -> None:
    with Log(tmp_path / "q", sync=sync) as log:
        log.append(make(b"one"))
        log.append_many([make(b"two"), b"three", make(b"four")])

    assert read_all(tmp_path / "q") == [b"one", b"two", b"three", b"four"]


def test_a_value_changed_after_the_append_is_stored_as_it_was(tmp_path: Path) -> None:
    value = bytearray(b"before")
    with Log(tmp_path / "q", sync="os") as log:
        log.append(value)
        value[:] = b"after!"
        consumer = log.consumer("c")

        assert values_of(consumer.read()) == [b"before"]


@each_sync
@pytest.mark.parametrize("value", ["text", 5, None, ["a"], 1.5])
def test_what_is_not_bytes_is_refused_by_type_and_nothing_is_written(
    tmp_path: Path, sync: SyncPolicy, value: Any
) -> None:
    with Log(tmp_path / "q", sync=sync, background=False) as log:
        with pytest.raises(TypeError, match=f"bytes, not {type(value).__name__}"):
            log.append(value)
        with pytest.raises(TypeError, match=f"bytes, not {type(value).__name__}"):
            log.append_many([b"good", value])

        assert log.end == 0
        assert segment_files(tmp_path / "q") == []
        assert log.append(b"good") == 0


@pytest.mark.parametrize("values", ["text", b"bytes", [b"a", "b"]])
def test_a_batch_of_what_is_not_bytes_is_refused_whole(
    tmp_path: Path, values: Iterable[Any]
) -> None:
    with Log(tmp_path / "q") as log:
        with pytest.raises(TypeError, match="a record is bytes"):
            log.append_many(values)

        assert log.end == 0


@each_sync
def test_an_empty_record_is_a_record(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync) as log:
        log.append(b"")
        log.append_many([b"", b"a", b""])

    assert read_all(tmp_path / "q") == [b"", b"", b"a", b""]


@each_sync
def test_the_largest_record_that_fits_is_taken(tmp_path: Path, sync: SyncPolicy) -> None:
    value = b"x" * LARGEST
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES) as log:
        log.append(value)
        log.append_many([value, value])

    assert read_all(tmp_path / "q") == [value] * 3
    assert [file.stat().st_size for file in segment_files(tmp_path / "q")] == [SEGMENT_BYTES] * 3


@each_sync
def test_a_record_that_cannot_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    value = b"x" * (LARGEST + 1)
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES, background=False) as log:
        with pytest.raises(RecordTooLarge, match=rf"{LARGEST + 1} bytes .* at most {LARGEST}"):
            log.append(value)
        with pytest.raises(RecordTooLarge):
            log.append_many([b"small", value, b"small"])

        assert log.end == 0
        assert segment_files(tmp_path / "q") == []
        assert log.append(b"small") == 0


def test_a_refused_record_is_also_a_value_error(tmp_path: Path) -> None:
    with (
        Log(tmp_path / "q", segment_bytes=SEGMENT_BYTES) as log,
        pytest.raises(ValueError, match="does not fit into a segment"),
    ):
        log.append(bytes(SEGMENT_BYTES))


def test_a_record_larger_than_the_staging_buffer_keeps_its_place(tmp_path: Path) -> None:
    values = [b"small", b"x" * 10_000, b"small again"]
    with Log(tmp_path / "q", sync="os", staging_bytes=4_096) as log:
        offsets = [log.append(value) for value in values]

    assert offsets == [0, 1, 2]
    assert read_all(tmp_path / "q") == values


@each_sync
def test_reopening_goes_on_with_the_next_offset(tmp_path: Path, sync: SyncPolicy) -> None:
    for first in range(0, 50, 10):
        with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES) as log:
            assert log.append_many(numbered(9, first=first)) == first
            assert log.append(numbered(1, first=first + 9)[0]) == first + 9

    assert read_all(tmp_path / "q") == numbered(50)


def test_reopening_without_appending_leaves_the_segments_alone(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append_many(numbered(5))
    before = [file.read_bytes() for file in segment_files(tmp_path / "q")]

    with Log(tmp_path / "q") as log:
        assert (log.begin, log.end, log.durable) == (0, 5, 5)

    assert [file.read_bytes() for file in segment_files(tmp_path / "q")] == before


@each_sync
def test_segments_roll_when_full_and_never_exceed_their_size(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    draw = Random(1)
    values = [draw.randbytes(draw.choice((0, 1, 30, 100, 500, LARGEST))) for _ in range(200)]
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(values[:100])
        for value in values[100:]:
            log.append(value)

    sizes = [file.stat().st_size for file in segment_files(tmp_path / "q")]
    assert len(sizes) > 20
    assert max(sizes) <= SEGMENT_BYTES
    assert read_all(tmp_path / "q") == values


@each_sync
def test_a_segment_is_filled_before_the_next_one_begins(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES) as log:
        for value in numbered(3 * PER_SEGMENT):
            log.append(value)

        assert log.info().segments == 3

    bases = [int(file.name, 16) for file in segment_files(tmp_path / "q")]
    assert bases == [0, PER_SEGMENT, 2 * PER_SEGMENT]


def test_segments_are_named_by_ten_hex_digits_of_their_first_offset(tmp_path: Path) -> None:
    with Log(tmp_path / "q", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(40 * PER_SEGMENT))

    names = [file.name for file in segment_files(tmp_path / "q")]
    assert all(re.fullmatch("[0-9a-f]{10}", name) for name in names)
    assert names[:3] == ["0000000000", "0000000008", "0000000010"]
    assert names[-1] == f"{39 * PER_SEGMENT:010x}"


def test_a_path_may_be_text_or_a_path_object(tmp_path: Path) -> None:
    with Log(str(tmp_path / "q")) as log:
        log.append(b"a")

    assert read_all(tmp_path / "q") == [b"a"]
    with forebay.open(tmp_path / "q", kind="log") as log:
        assert log.end == 1


def test_missing_directories_above_are_made(tmp_path: Path) -> None:
    with Log(tmp_path / "a" / "b" / "q") as log:
        log.append(b"a")

    assert read_all(tmp_path / "a" / "b" / "q") == [b"a"]


def test_the_text_of_a_log_tells_where_it_is_and_what_it_holds(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append_many(numbered(3))
        opened = repr(log)

    assert opened == f"<Log {tmp_path}/q 0..3>"
    assert repr(log) == f"<Log {tmp_path}/q closed>"


def test_a_log_that_was_not_closed_warns_and_keeps_its_records(tmp_path: Path) -> None:
    log = Log(tmp_path / "q", background=False)
    log.append(b"a")

    with pytest.warns(ResourceWarning, match="was not closed"):
        log.__del__()

    log.close()
    assert read_all(tmp_path / "q") == [b"a"]


def test_info_tells_the_facts(tmp_path: Path) -> None:
    with Log(tmp_path / "q", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(PER_SEGMENT + 1))
        log.consumer("c", start=3)
        info = log.info()

    assert info.kind == "log"
    assert (info.begin, info.end, info.durable) == (0, 9, 9)
    assert (info.segments, info.bytes) == (2, 2 * HEADER_BYTES + 9 * 112)
    assert (info.positions, info.cursors, info.adopted) == ({"c": 3}, {}, {})
    assert (info.dropped, info.quarantined_files, info.incarnation) == (0, 0, 1)
