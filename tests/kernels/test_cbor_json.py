"""JSON text from CBOR without objects: the same text as the slow way, or none."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.beats import Transcoder

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
floats32 = st.floats(width=32)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64) + 1, 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=5,
)
maps = st.dictionaries(texts, values, max_size=4)


def plain(value: Any) -> Any:
    """Returns a value in the text form of the page."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes_b64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def text(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode()


def dumps(value: Any) -> bytes:
    """Writes floats as Beats does, never as half floats."""
    return cbor2.dumps(
        value, encoders={float: lambda encoder, v: encoder.write(struct.pack(">Bd", 0xFB, v))}
    )


def with_fields(data: str) -> bytes:
    return b"\xa1\x66fields" + bytes.fromhex(data)


@pytest.mark.slow
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), maps, maps)
def test_the_text_is_that_of_the_slow_way(
    timestamp: int, flags: int, meta: dict[str, Any], fields: dict[str, Any]
) -> None:
    event = {"timestamp": timestamp, "flags": flags, "meta": meta, "fields": fields}

    found = Transcoder().event(dumps(event))

    assert found == (timestamp, flags, text(meta), text(fields))


@given(st.lists(floats32, max_size=6))
def test_single_floats_are_the_text_of_their_double(numbers: list[float]) -> None:
    data = b"".join(struct.pack(">Bf", 0xFA, number) for number in numbers)

    found = Transcoder().event(b"\xa1\x66fields\xa1\x61a" + bytes([0x80 + len(numbers)]) + data)

    assert found == (0, 0, b"{}", text({"a": numbers}))


@given(st.binary(max_size=60), st.sampled_from(["a16161", "a26161f66162", "a1616182f6"]))
def test_any_bytes_give_the_text_of_the_slow_way_or_none(data: bytes, start: str) -> None:
    found = Transcoder().event(with_fields(start) + data)

    if found is None:
        return
    document = cbor2.loads(with_fields(start) + data)
    assert cbor2.dumps(document, indefinite_containers=False)[:1] == b"\xa1"
    assert found == (0, 0, b"{}", text(undefined_to_none(document["fields"])))


def undefined_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: undefined_to_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [undefined_to_none(item) for item in value]
    return None if value is cbor2.undefined else value


def test_every_ascii_sign_is_escaped_as_json_does() -> None:
    signs = "".join(map(chr, range(128)))

    found = Transcoder().event(cbor2.dumps({"fields": {signs: signs}}))

    assert found is not None
    assert found[3] == text({signs: signs})


def test_one_transcoder_does_for_many_events() -> None:
    transcoder = Transcoder()
    fields = [{"a": "x" * size} for size in (1, 100_000, 3)]

    found = [transcoder.event(cbor2.dumps({"fields": item})) for item in fields]

    assert found == [(0, 0, b"{}", text(item)) for item in fields]


def test_what_grows_most_has_room() -> None:
    fields = {"a": [b""] * 5000, "b": "\x00" * 5000, "c": [math.inf] * 50}

    found = Transcoder().event(dumps({"fields": fields}))

    assert found == (0, 0, b"{}", text(fields))


@pytest.mark.parametrize(
    "data",
    [
        "",
        "80",
        "a0 00",
        "a5",
        "a1 61 78 00",
        "a2 66 6669656c6473 a0 66 6669656c6473 a0",
        "a1 69 74696d657374616d70 1b 8000000000000000",
        "a1 69 74696d657374616d70 f9 0000",
        "a1 65 666c616773 1b 0000000100000000",
        "a1 65 666c616773 20",
        "a1 64 6d657461 f6",
        "a1 64 6d657461 80",
        "a1 64 6d6574",
    ],
)
def test_what_is_unusual_is_left_to_the_slow_way(data: str) -> None:
    assert Transcoder().event(bytes.fromhex(data)) is None


@pytest.mark.parametrize(
    "fields",
    [
        "a1 61 61",
        "a1 61 61 f9 3c00",
        "a1 61 61 c0 60",
        "a1 61 61 61 ff",
        "a1 61 ff 00",
        "a1 61 61 62 c0 80",
        "a1 61 61 63 ed a0 80",
        "a1 61 61 64 f4 90 80 80",
        "a1 61 61 64 f0 80 80 80",
        "a1 61 61 62 e2 82",
        "a1 00 00",
        "a1 41 61 00",
        "a2 61 61 00 61 61 01",
        "a2 60 00 60 01",
        "bf ff",
        "a1 61 61 9f ff",
        "a1 61 61 7f ff",
        "a1 61 61 3b ffffffffffffffff",
        "a1 61 61 e0",
        "a1 61 61 f8 20",
        "a1 61 61 5a 00000005 00",
        "a1 61 61 9b ffffffffffffffff",
        "b8 41" + "".join(f"62 {number:04x} 00" for number in range(0x3030, 0x3071)),
    ],
)
def test_values_that_beats_does_not_write_are_left_to_the_slow_way(fields: str) -> None:
    assert Transcoder().event(with_fields(fields)) is None


def test_a_large_event_is_left_to_the_slow_way() -> None:
    assert Transcoder().event(cbor2.dumps({"fields": {"a": "x" * 1_100_000}})) is None
