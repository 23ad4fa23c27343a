"""Events: what is written is what Beats reads, what is read is what Beats wrote, within caps."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidEvent, RecordTooLarge, UndecodableEvent
from forebay.formats.beats.bytes import EVENT_BYTES_MAX
from forebay.formats.beats.events import Event, decode_event, encode_event
from forebay.kernels.beats import NESTING_MAX

INT64 = st.integers(-(2**63), 2**63 - 1)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
    st.binary(max_size=9).map(lambda data: data.decode("utf-8", "surrogateescape")),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=5,
)
maps = st.dictionaries(keys, values, max_size=3)
events = st.builds(Event, INT64, st.integers(0, 255), maps, maps)


class Level(IntEnum):
    WARN = 4


def same(one: Any, other: Any) -> bool:
    """Says whether two values are equal, of equal types, with NaN equal to itself."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack(">d", one) == struct.pack(">d", other) or (one != one and other != other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def cbor(fields: str = "a0", *, keys: str = "") -> bytes:
    """Returns an event with the CBOR of `fields`, in hex."""
    return bytes.fromhex(keys or "a1 66 6669656c6473") + bytes.fromhex(fields)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.slow
@given(events)
def test_every_event_reads_back(event: Event) -> None:
    found = decode_event(encode_event(event))

    assert (found.timestamp_ns, found.flags) == (event.timestamp_ns, event.flags)
    assert same(found.meta, event.meta)
    assert same(found.fields, event.fields)


@pytest.mark.slow
@given(events)
def test_an_independent_decoder_reads_the_same_event(event: Event) -> None:
    document = cbor2.loads(encode_event(event), str_errors="surrogateescape")

    assert list(document) == ["timestamp", "flags", "meta", "fields"]
    assert document["timestamp"] == event.timestamp_ns
    assert document["flags"] == event.flags
    assert same(document["meta"], event.meta)
    assert same(document["fields"], event.fields)


@pytest.mark.slow
@given(events)
def test_what_is_read_is_written_back_byte_by_byte(event: Event) -> None:
    data = encode_event(event)

    assert encode_event(decode_event(data)) == data


def test_an_event_begins_as_beats_begins_it() -> None:
    data = encode_event(Event(1_654_607_626_123_456_789, 1, {}, {"message": "hello"}))

    assert data == bytes.fromhex(
        "a4 69 74696d657374616d70 1b 16f658de95bdb115 65 666c616773 01"
        "64 6d657461 a0 66 6669656c6473 a1 67 6d657373616765 65 68656c6c6f"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (256, "190100"),
        (65536, "1a00010000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-200, "38c7"),
        (-(2**63), "3b7fffffffffffffff"),
        (1.5, "fb3ff8000000000000"),
        (0.0, "fb0000000000000000"),
        (math.inf, "fb7ff0000000000000"),
        (-math.inf, "fbfff0000000000000"),
        (None, "f6"),
        (True, "f5"),
        (False, "f4"),
        ("ü", "62c3bc"),
        (b"\x00\xff", "4200ff"),
        (bytearray(b"a"), "4161"),
        ("\udcff", "61ff"),
        ([], "80"),
        ((1, 2), "820102"),
        ({}, "a0"),
        (Level.WARN, "04"),
        (timedelta(seconds=1.5), "1a59682f00"),
    ],
)
def test_a_value_is_written_as_beats_writes_it(value: Any, written: str) -> None:
    data = encode_event(Event(0, 0, {}, {"k": value}))

    assert data.endswith(bytes.fromhex("a1 61 6b" + written))


def test_nan_is_no_half_float() -> None:
    data = encode_event(Event(0, 0, {}, {"k": math.nan}))

    assert data[-9:-8] == b"\xfb"
    assert math.isnan(decode_event(data).fields["k"])


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2021, 2, 3, 4, 5, 6, 789_999, UTC), "2021-02-03T04:05:06.789Z"),
        (
            datetime(2021, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
            "2021-02-03T02:05:06.000Z",
        ),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_text_in_utc_cut_to_milliseconds(time: datetime, text: str) -> None:
    assert decode_event(encode_event(Event(0, 0, {}, {"t": time}))).fields == {"t": text}


# Row by row, the table "what the original reader takes" of the page, as a writer obeys it.


def test_row_1_the_four_keys_are_written_in_their_order_and_any_subset_is_read() -> None:
    assert decode_event(cbor("a0")) == Event(0)
    assert decode_event(b"\xa0") == Event(0)
    assert decode_event(bytes.fromhex("a2 65 666c616773 07 69 74696d657374616d70 20")) == Event(
        -1, 7
    )


@pytest.mark.parametrize("name", ["Timestamp", "@timestamp", "private", ""])
def test_row_2_another_key_is_no_event(name: str) -> None:
    with pytest.raises(UndecodableEvent, match="unknown key"):
        decode_event(cbor2.dumps({"timestamp": 1, name: 2}))


@pytest.mark.parametrize("name", ["meta", "fields"])
def test_row_3_a_null_map_is_refused_on_both_sides(name: str) -> None:
    with pytest.raises(InvalidEvent, match=f"{name} is null"):
        encode_event(Event(0, **{name: None}))  # type: ignore[arg-type]
    with pytest.raises(UndecodableEvent, match="not a map"):
        decode_event(cbor2.dumps({name: None}))


@pytest.mark.parametrize("fields", [{"": 1}, {"a": {"": 1}}, {"a": [{"b": {"": 1}}]}])
def test_row_4_an_empty_key_is_not_written_but_read_where_beats_wrote_it(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(InvalidEvent, match="empty key"):
        encode_event(Event(0, 0, {}, fields))
    assert decode_event(cbor2.dumps({"fields": fields})).fields == fields


@pytest.mark.slow
@given(events)
def test_row_5_lengths_are_always_written(event: Event) -> None:
    plain = cbor2.loads(encode_event(event), str_errors="surrogateescape", allow_indefinite=False)

    assert len(plain) == 4


def test_row_5_maps_and_lists_of_unknown_length_are_read() -> None:
    assert decode_event(cbor("bf 61 61 9f 01 02 ff ff")).fields == {"a": [1, 2]}


def test_row_6_text_in_parts_is_read_and_a_key_that_is_no_text_is_not() -> None:
    assert decode_event(cbor("a1 61 61 7f 61 62 61 63 ff")).fields == {"a": "bc"}
    with pytest.raises(UndecodableEvent, match="not text"):
        decode_event(cbor("a1 01 02"))
    with pytest.raises(InvalidEvent, match="a key that is of type int"):
        encode_event(Event(0, 0, {}, {1: 2}))  # type: ignore[dict-item]


def test_row_7_tags_are_neither_written_nor_read_and_half_floats_are_not_written() -> None:
    with pytest.raises(UndecodableEvent, match="a tag"):
        decode_event(cbor("a1 61 61 c0 60"))
    assert decode_event(cbor("a1 61 61 f9 3e00")).fields == {"a": 1.5}
    for value in (2**64, -(2**63) - 1, 1 + 2j, {1}, object(), cbor2.CBORTag(1, 2)):
        with pytest.raises(InvalidEvent):
            encode_event(Event(0, 0, {}, {"a": value}))


def test_row_8_undefined_is_read_as_null() -> None:
    assert decode_event(cbor("a2 61 61 f7 61 62 82 f7 01")).fields == {"a": None, "b": [None, 1]}


def test_row_9_a_byte_behind_the_event_is_no_event() -> None:
    with pytest.raises(UndecodableEvent, match="bytes follow"):
        decode_event(cbor("a0") + b"\0")


@pytest.mark.parametrize("flags", [-1, 256, 2**32, True, 1.0, None, "1"])
def test_row_10_flags_of_more_than_8_bits_are_refused(flags: Any) -> None:
    with pytest.raises(InvalidEvent, match="flags"):
        encode_event(Event(0, flags))


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1, True, 1.5, None, "now"])
def test_a_timestamp_that_has_no_64_bits_is_refused(time: Any) -> None:
    with pytest.raises(InvalidEvent, match="timestamp_ns"):
        encode_event(Event(time))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (datetime(2021, 2, 3), "without a time zone"),
        (timedelta(days=200_000), "out of range"),
        ("\ud800", "lone surrogate"),
        ({"k": object()}, "fields.a.k is of type object"),
        ([1, [2, {3}]], r"fields.a\[1\]\[1\] is of type set"),
    ],
)
def test_what_an_event_cannot_hold_is_refused_by_its_place(value: Any, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        encode_event(Event(0, 0, {}, {"a": value}))


def test_nesting_ends_at_its_cap_on_both_sides() -> None:
    deepest = Event(0, 0, {}, {"a": nested(NESTING_MAX - 2)})

    assert decode_event(encode_event(deepest)) == deepest
    with pytest.raises(InvalidEvent, match="nested deeper"):
        encode_event(Event(0, 0, {}, {"a": nested(NESTING_MAX - 1)}))
    with pytest.raises(UndecodableEvent, match="nested deeper"):
        decode_event(cbor2.dumps({"fields": {"a": nested(NESTING_MAX - 1)}}))


def test_a_value_that_holds_itself_is_refused() -> None:
    fields: dict[str, Any] = {}
    fields["self"] = [fields]

    with pytest.raises(InvalidEvent, match="nested deeper"):
        encode_event(Event(0, 0, {}, fields))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends within"),
        (b"\x81" * 1_000_000, "not a map"),
        (cbor("81" * 1_000_000), "nested deeper"),
        (cbor("9f" * 1_000_000), "nested deeper"),
        (cbor("a1 61 61 d8 1c 81 d8 1d 00"), "a tag"),
        (cbor("a1 61 61 c2 5a 00989680") + bytes(10_000_000), "a tag"),
        (cbor("a1 61 61 9b ffffffffffffffff"), "ends within"),
        (cbor("a1 61 61 5b 7fffffffffffffff"), "ends within"),
        (cbor("bb ffffffffffffffff"), "ends within"),
        (cbor("a1 61 61 1c"), "not CBOR"),
        (cbor("a1 61 61 e0"), "simple value"),
        (cbor("a1 61 61 ff"), "not CBOR"),
        (cbor("bf 61 61 ff"), "not CBOR"),
        (cbor("a1 61 61"), "ends within"),
        (cbor2.dumps({"timestamp": 2**63}), "timestamp"),
        (cbor2.dumps({"timestamp": 1.5}), "timestamp"),
        (cbor2.dumps({"flags": -1}), "flags"),
        (cbor2.dumps({"fields": [1]}), "not a map"),
    ],
)
def test_bytes_that_are_no_event_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableEvent, match=reason):
        decode_event(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_are_refused(data: bytes) -> None:
    try:
        event = decode_event(data)
    except UndecodableEvent:
        return
    assert isinstance(event, Event)


@pytest.mark.slow
@given(events, st.data())
def test_an_event_that_is_cut_is_refused(event: Event, draw: st.DataObject) -> None:
    data = encode_event(event)
    size = draw.draw(st.integers(0, len(data) - 1))

    with pytest.raises(UndecodableEvent):
        decode_event(data[:size])


@pytest.mark.slow
def test_an_event_beyond_the_cap_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match=str(EVENT_BYTES_MAX)):
        encode_event(Event(0, 0, {}, {"a": "x" * EVENT_BYTES_MAX}))


def test_a_json_event_is_read_by_its_first_byte() -> None:
    text = '{"timestamp":-1,"flags":1,"meta":{"a":[1,2.5,"ü\\u2028",null]},"fields":{}}'

    assert decode_event(text.encode()) == Event(-1, 1, {"a": [1, 2.5, "ü\u2028", None]}, {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "not an event"),
        (b'{"fields":{"a":NaN}}', "NaN is not JSON"),
        (b'{"fields":{"a":-Infinity}}', "not JSON"),
        (b'{"fields":{"a":1e999}}', "too large"),
        (b'{"fields":{"a":' + b"9" * 21 + b"}}", "64 bits"),
        (b'{"fields":{"a":18446744073709551616}}', "64 bits"),
        (b'{"fields":{"a":' + b"9" * 1_000_000 + b"}}", "64 bits"),
        (b'{"fields":{"a":' + b"[" * 1_000_000, "nested deeper"),
        (b'{"fields":{"a":' + b"[" * 99 + b"]" * 99 + b"}}", "nested deeper"),
        (b'{"fields":null}', "not a map"),
        (b'{"timestamp":1.0}', "timestamp"),
        (b'{"Fields":{}}', "unknown key"),
        (b"{}x", "not an event"),
    ],
)
def test_json_that_is_no_event_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(UndecodableEvent, match=reason):
        decode_event(text)


def test_brackets_in_text_are_no_nesting() -> None:
    fields = {"a": "[" * 1000, "b\\": '"' * 3 + "{" * 1000, "c": nested(NESTING_MAX - 2)}

    assert decode_event(json.dumps({"fields": fields}).encode()).fields == fields


def test_json_that_is_not_utf_8_or_half_a_pair_is_read_with_the_sign_for_it() -> None:
    assert decode_event(b'{"fields":{"a":"\xff"}}').fields == {"a": "\ufffd"}
    assert decode_event(b'{"fields":{"\\ud800":["\\udc80","\\ud83d\\ude00"]}}').fields == {
        "\ufffd": ["\ufffd", "\U0001f600"]
    }
