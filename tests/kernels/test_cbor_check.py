"""The walk over an event's CBOR: it lets through what a decoder may have, and nothing else."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels import beats as kernel
from forebay.kernels.beats import NESTING_MAX, check_cbor

texts = st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | texts
values = st.recursive(
    scalars | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=5,
)
maps = st.dictionaries(texts, values, max_size=3)


def holds_only_what_is_known(value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and holds_only_what_is_known(item) for key, item in value.items()
        )
    if isinstance(value, list):
        return all(map(holds_only_what_is_known, value))
    known = str, bytes, int, float, bool, type(None), type(cbor2.undefined)
    return isinstance(value, known)


@pytest.mark.slow
@given(maps)
def test_what_a_library_writes_of_known_values_passes(document: dict[str, Any]) -> None:
    assert check_cbor(cbor2.dumps(document)) == 0
    assert check_cbor(cbor2.dumps(document, indefinite_containers=True)) == 0


@pytest.mark.slow
@given(maps, st.data())
def test_an_event_that_is_cut_does_not_pass(document: dict[str, Any], draw: st.DataObject) -> None:
    data = cbor2.dumps(document)
    size = draw.draw(st.integers(0, len(data) - 1))

    assert check_cbor(data[:size]) < 0


@pytest.mark.slow
@given(maps)
def test_bytes_behind_the_event_do_not_pass(document: dict[str, Any]) -> None:
    assert check_cbor(cbor2.dumps(document) + b"\0") == kernel.TRAILING


@given(st.binary(max_size=60).map(lambda data: b"\xa1\x61\x61" + data))
def test_what_passes_is_decoded_to_known_values_only(data: bytes) -> None:
    if check_cbor(data) < 0:
        return
    assert holds_only_what_is_known(cbor2.loads(data, str_errors="surrogateescape"))


@pytest.mark.parametrize(
    ("data", "result"),
    [
        ("", kernel.TRUNCATED),
        ("a0", 0),
        ("bfff", 0),
        ("80", kernel.NOT_A_MAP),
        ("f6", kernel.NOT_A_MAP),
        ("c1a0", kernel.NOT_A_MAP),
        ("a1", kernel.TRUNCATED),
        ("a16161", kernel.TRUNCATED),
        ("a16161f7", kernel.UNDEFINED),
        ("a161619ff7ff", kernel.UNDEFINED),
        ("a16161c1", kernel.TAGGED),
        ("a16161d81c80", kernel.TAGGED),
        ("a1c16161", kernel.KEY_NOT_TEXT),
        ("a14161f6", kernel.KEY_NOT_TEXT),
        ("bf00f6ff", kernel.KEY_NOT_TEXT),
        ("a161611f", kernel.MALFORMED),
        ("a161613f", kernel.MALFORMED),
        ("a16161df", kernel.TAGGED),
        ("a161615c", kernel.MALFORMED),
        ("a161617f4161ff", kernel.MALFORMED),
        ("a161617f7f6161ffff", kernel.MALFORMED),
        ("a161617f6161", kernel.TRUNCATED),
        ("a161615fff", 0),
        ("a16161ff", kernel.MALFORMED),
        ("ff", kernel.NOT_A_MAP),
        ("a1ff", kernel.MALFORMED),
        ("bf6161ff", kernel.MALFORMED),
        ("a16161f820", kernel.SIMPLE_VALUE),
        ("a16161f0", kernel.SIMPLE_VALUE),
        ("a16161fb00", kernel.TRUNCATED),
        ("bbffffffffffffffff", kernel.TRUNCATED),
        ("a161619bffffffffffffffff", kernel.TRUNCATED),
        ("a161617bffffffffffffffff", kernel.TRUNCATED),
        ("a161618101", 0),
        ("a1616181", kernel.TRUNCATED),
    ],
)
def test_the_result_is_that_of_the_first_trouble(data: str, result: int) -> None:
    assert check_cbor(bytes.fromhex(data)) == result


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xa1\x60", b"\xbf\x60"])
def test_nesting_ends_at_its_cap(opening: bytes) -> None:
    deepest = b"\xa1\x60" + opening * (NESTING_MAX - 1)

    assert check_cbor(deepest) == kernel.TRUNCATED
    assert check_cbor(deepest + opening) == kernel.TOO_DEEP
    assert check_cbor(b"\xa1\x60" + opening * 1_000_000) == kernel.TOO_DEEP
