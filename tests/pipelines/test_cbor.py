"""Tests of CBOR: what becomes of values, and that hostile ones cost a reason and no more."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pipelines.ingest import cbor

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(JSON_VALUES)
def test_what_json_knows_arrives_as_it_is(value: Any) -> None:
    text, reason = cbor.decode(cbor2.dumps(value))

    assert reason is None
    assert text is not None
    assert json.loads(text) == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_text_or_a_reason(value: bytes) -> None:
    text, reason = cbor.decode(value)

    assert (text is None) != (reason is None)


def test_what_json_does_not_know_becomes_text() -> None:
    value = {
        "bytes": b"\xff\x00",
        "time": datetime(2026, 11, 1, 9, tzinfo=UTC),
        "money": Decimal("1.10"),
        "id": UUID(int=1),
        "nothing": cbor2.undefined,
    }

    text, _ = cbor.decode(cbor2.dumps(value))

    assert json.loads(text or "") == {
        "bytes": "/wA=",
        "time": "2026-11-01T09:00:00+00:00",
        "money": "1.10",
        "id": "00000000-0000-0000-0000-000000000001",
        "nothing": None,
    }


def test_a_self_described_map_is_a_map() -> None:
    assert cbor.decode(bytes.fromhex("d9d9f7a16161a0")) == ('{"a":{}}', None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "premature end"),
        (cbor2.dumps({"a": 1}) + b"\x00", "1 bytes after the value"),
        (b"\x81" * 1000, "nesting depth"),
        (b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff", "premature end"),
        (b"\xa2\x61a\x01\x61a\x02", "Duplicate map key"),
        (cbor2.dumps({"a": [[1]]}, value_sharing=True), "refer to one another"),
        (cbor2.dumps(["long string"] * 3, string_referencing=True), "refer to one another"),
        (cbor2.dumps({"a": {1, 2}}), "type set has no JSON form"),
        (cbor2.dumps({b"key": 1}), "keys must be str"),
        (b"\x00" * (cbor.BYTES_MAX + 1), "at most 16777216"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason(value: bytes, reason: str) -> None:
    text, found = cbor.decode(value)

    assert text is None
    assert reason in str(found)
