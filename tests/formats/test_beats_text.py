"""Events as JSON text: readable, complete, and read back as the same event."""

from __future__ import annotations

import json
import math
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidEvent, UndecodableEvent
from forebay.formats.beats.events import Event, decode_event, encode_event
from forebay.formats.beats.text import (
    TextDecoder,
    decode_parts,
    event_document,
    event_text,
    make_event,
    parse_event,
)
from forebay.kernels.beats import NESTING_MAX
from tests.formats.test_beats_events import events, maps, nested

EVENT = Event(
    -1,
    1,
    {"_id": "a"},
    {"b": b"\x00\xff", "f": [math.nan, math.inf, -math.inf, 0.1], "s": "a\udcff", "k\udcfe": None},
)
TEXT = (
    '{"timestamp_ns":-1,"flags":1,"meta":{"_id":"a"},"fields":{"b":{"$bytes_b64":"AP8="},'
    '"f":[{"$float":"nan"},{"$float":"inf"},{"$float":"-inf"},0.1],"s":{"$str_b64":"Yf8="},'
    '"$str_b64:a/4=":null}}'
)


def is_tag(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in ("$bytes_b64", "$float", "$str_b64")


def test_the_text_of_an_event_is_that_of_the_page() -> None:
    assert event_text(EVENT) == TEXT


def test_the_text_of_an_event_reads_back() -> None:
    assert event_text(parse_event(TEXT)) == TEXT
    assert parse_event(TEXT).fields["b"] == b"\x00\xff"
    assert parse_event(TEXT).fields["s"] == "a\udcff"
    assert math.isnan(parse_event(TEXT).fields["f"][0])


@pytest.mark.slow
@given(events)
def test_the_text_of_every_event_reads_back_as_the_same_bytes(event: Event) -> None:
    same = Event(event.timestamp_ns, event.flags, one_nan(event.meta), one_nan(event.fields))

    assert encode_event(parse_event(event_text(event))) == encode_event(same)


def one_nan(value: Any) -> Any:
    """Makes all NaNs the same one: the text does not tell their bits."""
    if isinstance(value, dict):
        return {key: one_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [one_nan(item) for item in value]
    return math.nan if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.slow
@given(events)
def test_the_text_is_json_in_utf_8_on_one_line(event: Event) -> None:
    text = event_text(event)

    text.encode("utf-8")
    assert "\n" not in text
    assert json.loads(text) == event_document(event)


@pytest.mark.slow
@given(maps, maps)
def test_the_parts_are_the_same_on_both_ways(meta: dict[str, Any], fields: dict[str, Any]) -> None:
    data = encode_event(Event(5, 1, meta, fields))

    assert TextDecoder().decode(data) == decode_parts(data)


@given(st.binary(max_size=80))
def test_any_bytes_give_the_same_parts_or_are_refused_on_both_ways(data: bytes) -> None:
    try:
        expected = decode_parts(data)
    except UndecodableEvent:
        with pytest.raises(UndecodableEvent):
            TextDecoder().decode(data)
        return
    assert TextDecoder().decode(data) == expected


def test_the_parts_of_a_json_event_are_given_too() -> None:
    assert TextDecoder().decode(b'{"timestamp":7,"meta":{"a": "\xc3\xbc"}}') == (
        7,
        0,
        b'{"a":"\xc3\xbc"}',
        b"{}",
    )


@pytest.mark.parametrize("depth", [NESTING_MAX - 2, NESTING_MAX - 1])
def test_nesting_ends_at_the_same_cap_on_both_ways(depth: int) -> None:
    data = cbor2.dumps({"fields": {"a": nested(depth)}})

    results = []
    for decode in (TextDecoder().decode, decode_parts):
        try:
            results.append(decode(data))
        except UndecodableEvent:
            results.append((depth, 0, b"", b"refused"))
    assert results[0] == results[1]


def test_an_event_may_lack_what_has_a_default() -> None:
    assert make_event({"fields": {"a": 1}}, 77) == Event(77, 0, {}, {"a": 1})
    assert make_event({"timestamp_ns": 5}, 77) == Event(5)
    with pytest.raises(InvalidEvent, match="no timestamp_ns"):
        make_event({"fields": {}})


def test_what_cat_prints_can_be_put() -> None:
    line = {"kind": "beats", "segment": "7.seg", **event_document(EVENT)}

    assert event_text(parse_event(json.dumps(line))) == TEXT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[1]", "a JSON map, not of type list"),
        ('{"message":"x","timestamp_ns":1}', "no key 'message'; it has timestamp_ns"),
        ('{"timestamp_ns":1,"fields":{"a":{"$float":"1.5"}}}', "nan, inf or -inf"),
        ('{"timestamp_ns":1,"fields":{"a":{"$float":1}}}', "not text"),
        ('{"timestamp_ns":1,"fields":{"a":{"$bytes_b64":"!"}}}', "not base64"),
        ('{"timestamp_ns":1,"fields":{"a":{"$str_b64":"YQ"}}}', "not base64"),
        ('{"timestamp_ns":1,"fields":{"$str_b64:YQ":1}}', "not base64"),
        ('{"timestamp_ns":1,"fields":{"a":' + "9" * 5000 + "}}", "not JSON"),
        ('{"timestamp_ns":1,"fields":{"a":' + "[" * 900 + "]" * 900 + "}}", "nested deeper"),
        ('{"timestamp_ns":1,"fields":{"a":' + "[" * 100_000, "not JSON"),
    ],
)
def test_text_that_is_no_event_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        parse_event(text)


@pytest.mark.parametrize(
    "document",
    [{"fields": None}, {"meta": None}, {"fields": {"": 1}}, {"flags": 300}, {"timestamp_ns": 1.5}],
)
def test_what_beats_would_not_read_is_refused_when_it_is_encoded(document: dict[str, Any]) -> None:
    event = make_event(document, 0)

    with pytest.raises(InvalidEvent):
        encode_event(event)


def test_a_map_that_looks_like_a_tag_reads_back_as_what_the_tag_stands_for() -> None:
    event = Event(0, 0, {}, {"a": {"$float": "inf"}})

    assert is_tag(event.fields["a"])
    assert parse_event(event_text(event)).fields == {"a": math.inf}
    assert decode_event(encode_event(event)) == event
