"""Values that an event can hold as they are."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given

from forebay.errors import InvalidEvent
from forebay.formats.beats.events import Event, _prepare, encode_event
from forebay.kernels.beats import is_simple
from tests.formats.test_beats_events import events, nested


class Colour(IntEnum):
    RED = 1


class Name(str):
    """A text of another type."""

    __slots__ = ()


@pytest.mark.slow
@given(events)
def test_a_plain_value_is_what_the_slow_way_gives_unchanged(event: Event) -> None:
    for value in (event.meta, event.fields):
        if is_simple(value):
            assert _prepare(value, "fields", 2) == value


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "ü", b"", [], {}, [1, [2.5, {"a": "b"}]]],
)
def test_the_types_of_json_and_bytes_are_plain(value: Any) -> None:
    assert is_simple({"k": value})


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        math.nan,
        math.inf,
        -math.inf,
        "\ud800",
        "ab\udcff",
        (1,),
        {1},
        bytearray(b"x"),
        Colour.RED,
        Name("x"),
        object(),
        {"": 1},
        {1: 1},
        {"\udcff": 1},
        {Name("x"): 1},
        [[{"a": math.nan}]],
    ],
)
def test_everything_else_is_not_plain(value: Any) -> None:
    assert not is_simple({"k": value})


def test_nesting_is_plain_up_to_the_cap_of_events() -> None:
    assert is_simple({"a": nested(98)})
    assert not is_simple({"a": nested(99)})
    encode_event(Event(0, 0, {}, {"a": nested(98)}))
    with pytest.raises(InvalidEvent, match="nested deeper"):
        encode_event(Event(0, 0, {}, {"a": nested(99)}))


def test_a_value_that_holds_itself_is_not_plain() -> None:
    value: list[Any] = []
    value.append(value)

    assert not is_simple(value)
