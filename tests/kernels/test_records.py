"""Records as users get them."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from multiprocessing.reduction import ForkingPickler

import pytest

from forebay.queues.log.staged import Record, make_records

RECORD = Record(7, 1_700_000_000_123, b"value\x00")


def test_a_record_has_offset_time_and_value() -> None:
    assert (RECORD.offset, RECORD.time_ms, RECORD.value) == (7, 1_700_000_000_123, b"value\x00")


def test_the_time_is_in_utc_to_the_millisecond() -> None:
    time = RECORD.time

    assert time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert time is not None
    assert time.utcoffset() == timedelta(0)


def test_a_record_of_a_format_without_times_has_none() -> None:
    record = Record(7, None, b"value")

    assert record.time is None
    assert record.time_ms is None


def test_the_repr_shows_what_the_record_is_made_of() -> None:
    shown = "Record(offset=7, time_ms=1700000000123, value=b'value\\x00')"

    assert repr(RECORD) == shown
    assert eval(shown, {"Record": Record}) == RECORD


@pytest.mark.parametrize(
    "other", [Record(8, 1_700_000_000_123, b"value\x00"), Record(7, 1, b"value\x00")]
)
def test_records_that_differ_in_one_field_are_not_equal(other: Record) -> None:
    assert other != RECORD
    assert Record(7, 1_700_000_000_123, b"value") != RECORD
    assert Record(7, None, b"value\x00") != RECORD


@pytest.mark.parametrize("other", [(7, 1_700_000_000_123, b"value\x00"), b"value\x00", None])
def test_a_record_equals_only_records(other: object) -> None:
    assert other != RECORD


def test_equal_records_are_one_in_a_set() -> None:
    assert len({RECORD, Record(7, 1_700_000_000_123, b"value\x00"), Record(7, None, b"")}) == 2


@pytest.mark.parametrize("record", [RECORD, Record(2**62, None, b"")])
def test_a_record_travels_to_another_process(record: Record) -> None:
    assert ForkingPickler.loads(bytes(ForkingPickler.dumps(record))) == record
    assert copy.deepcopy(record) == record


def test_make_records_counts_offsets_and_adds_times_to_the_epoch() -> None:
    records = make_records([b"a", b"b"], [1, 5], 40, 1000)

    assert records == [Record(40, 1001, b"a"), Record(41, 1005, b"b")]


def test_make_records_leaves_the_time_out_where_there_is_none() -> None:
    assert make_records([b"a"], None, 40, 1000) == [Record(40, None, b"a")]
    assert make_records([], [], 40, 1000) == []
