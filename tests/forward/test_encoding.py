"""Records as lines of JSON: an object as it is, anything else in a documented form."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import Record
from forebay.forward.encoding import as_object, gap_document, json_lines, with_field
from forebay.forward.outputs import Context, EventRecord, Gap


def records(values: list[bytes]) -> list[Record]:
    return [Record(number, None, value) for number, value in enumerate(values)]


def value_of(line: bytes) -> bytes | None:
    """Returns the record that a line stands for; None if it went as it is."""
    found = json.loads(line)
    if set(found) == {"value"}:
        return str(found["value"]).encode()
    return base64.b64decode(found["value_b64"]) if set(found) == {"value_b64"} else None


@pytest.mark.parametrize(
    "value",
    [b"{}", b' {"a":1}', b'{"a":[1,{"b":null}]}\t', b'{"a":"\xc3\xbc"}', b'{"a":1e9}'],
)
def test_an_object_goes_as_it_is(value: bytes) -> None:
    assert as_object(value) == value


@pytest.mark.parametrize("value", [b'{\n"a":\r\n1}', b'{"a":1}\n'])
def test_line_breaks_between_tokens_become_spaces(value: bytes) -> None:
    assert b"\n" not in as_object(value)
    assert json.loads(as_object(value)) == json.loads(value)


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"1", b"[]", b'"a"', b"null", b"text", b'{"a":1', b'{"a":1}}', b'{"a":1}{}'),
        *(b'{"a":"\n"}', b'{"a":"\xff"}', b'{"\xff":1}', b'{"a":NaN}', b"\xff\xfe", b"{}\n{}"),
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_anything_else_is_wrapped_and_comes_back(value: bytes) -> None:
    assert value_of(as_object(value)) == value


@given(st.lists(st.binary(max_size=20) | st.just(b'{"a":1}') | st.just(b"{}\n{}"), min_size=1))
def test_a_batch_has_one_line_for_each_record(values: list[bytes]) -> None:
    lines = json_lines(records(values)).split(b"\n")

    assert lines.pop() == b""
    assert lines == [as_object(value) for value in values]


def test_an_event_has_its_metadata_in_the_line() -> None:
    event = EventRecord(0, 0, b'{"@timestamp":"x"}', b'{"index":"i"}')
    plain = EventRecord(1, 0, b'{"@timestamp":"y"}', b"{}")

    first, second, _ = json_lines([event, plain]).split(b"\n")

    assert json.loads(first) == {"@timestamp": "x", "@metadata": {"index": "i"}}
    assert second == b'{"@timestamp":"y"}'


def test_a_field_is_added_to_an_empty_object_too() -> None:
    assert with_field(b"{ }", b'"a":1') == b'{"a":1}'
    assert with_field(b'{"b":2} ', b'"a":1') == b'{"b":2,"a":1}'


def test_a_gap_says_what_is_missing() -> None:
    known = json.loads(gap_document(Gap(3, True, 5, 8), Context("q", 1)))
    unknown = json.loads(gap_document(Gap(2, False), Context("q", 1)))

    assert known == {
        "forebay_gap": {
            "queue": "q",
            "first": 5,
            "last": 7,
            "count": 3,
            "reason": "dropped by a limit",
        }
    }
    assert unknown["forebay_gap"]["first"] is None
    assert unknown["forebay_gap"]["reason"] == "destroyed by damage"
