"""Events as columns: the same rows as one by one, and a list of what is no event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.beats.events import Event, encode_event
from forebay.formats.beats.text import EventColumns, Text, TextDecoder, decode_columns, decode_parts
from tests.formats.test_beats_events import events


def cut(column: Text) -> list[bytes]:
    return [
        column.data[start:end] for start, end in zip(column.ends[:-1], column.ends[1:], strict=True)
    ]


def rows_of(columns: EventColumns) -> list[tuple[Any, ...]]:
    numbers = columns.timestamps_ns.tolist(), columns.flags.tolist()
    return list(zip(*numbers, cut(columns.meta), cut(columns.fields), strict=True))


@pytest.mark.slow
@given(st.lists(events, max_size=3))
def test_the_columns_hold_the_rows_of_one_by_one(some: list[Event]) -> None:
    payloads = [encode_event(event) for event in some]

    columns = decode_columns(payloads, TextDecoder())

    assert rows_of(columns) == [decode_parts(payload) for payload in payloads]
    assert columns.numbers.tolist() == list(range(len(some)))
    assert (columns.taken, columns.bad) == (len(some), [])


def test_a_payload_that_is_no_event_takes_no_row_and_is_listed() -> None:
    good = encode_event(Event(5))

    columns = decode_columns([b"\x00", good, b"{", good, good + b"\0"], TextDecoder())

    assert columns.numbers.tolist() == [1, 3]
    assert columns.timestamps_ns.tolist() == [5, 5]
    assert [number for number, _ in columns.bad] == [0, 2, 4]
    assert columns.bad[0] == (0, "not an event: it is not a map")
    assert columns.taken == 5


@pytest.mark.parametrize(("room", "taken"), [(0, 1), (100, 1), (102, 2), (203, 3), (204, 4)])
def test_a_batch_ends_before_its_text_grows_too_large(room: int, taken: int) -> None:
    payload = encode_event(Event(0, 0, {}, {"a": "x" * 41}))

    columns = decode_columns([payload] * 4, TextDecoder(), room)

    assert columns.taken == taken
    assert len(columns.fields.ends) == taken + 1


def test_no_payloads_give_empty_columns() -> None:
    columns = decode_columns([], TextDecoder())

    assert rows_of(columns) == []
    assert columns.meta.ends.tolist() == [0]
