"""The `index` file: what the seed says, to the letter, and nothing that is not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import InvalidOption
from forebay.formats.fflg import check_name, decode_index, encode_index

positions_strategy = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(0, 2**64 - 1),
    max_size=8,
)


def as_the_seed_says(positions: dict[str, int]) -> bytes:
    entries = [(name.encode("utf-8"), offset) for name, offset in positions.items()]
    return b"".join(
        len(name).to_bytes(4, "big") + offset.to_bytes(8, "big") + name for name, offset in entries
    )


@given(positions_strategy)
def test_the_index_is_what_the_seed_says_and_reads_back(positions: dict[str, int]) -> None:
    data = encode_index(positions)

    assert data == as_the_seed_says(positions)
    assert decode_index(data, "index") == (positions, None)


def test_no_consumers_are_an_empty_file() -> None:
    assert encode_index({}) == b""
    assert decode_index(b"", "index") == ({}, None)


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    data = encode_index({"a": 1, "b": 2}) + encode_index({"a": 9})

    assert decode_index(data, "index") == ({"a": 9, "b": 2}, None)


def test_a_cut_gives_whole_entries_or_damage_and_never_another_offset() -> None:
    positions = {"alpha": 500, "ß": 2**63, "": 1}
    data = encode_index(positions)
    ends = [0, 17, 31, 43]

    for cut in range(len(data) + 1):
        whole = [end for end in ends if end <= cut]
        found, damage = decode_index(data[:cut], "index")

        assert found == dict(list(positions.items())[: len(whole) - 1])
        assert (damage is None) == (cut in ends)
        assert damage is None or (damage.path, damage.position) == ("index", whole[-1])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0", "ends within an entry"),
        (struct.pack(">IQ", 2**32 - 1, 0), "an id of 4294967295 bytes does not fit"),
        (struct.pack(">IQ", 2, 0) + b"x", "an id of 2 bytes does not fit"),
        (struct.pack(">IQ", 1, 0) + b"\xff", "an id is not UTF-8"),
        (b"FFLG" + bytes(12), "does not fit"),
    ],
)
def test_a_wrong_index_is_damage_with_its_reason(data: bytes, reason: str) -> None:
    found, damage = decode_index(encode_index({"good": 3}) + data, "spool/index")

    assert found == {"good": 3}
    assert damage is not None
    assert reason in damage.reason
    assert (damage.path, damage.position) == ("spool/index", 16)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_index_or_damage_within_the_file(data: bytes) -> None:
    position = damaged_at(data)

    assert position is None or 0 <= position < len(data)


def damaged_at(data: bytes) -> int | None:
    _, damage = decode_index(data, "index")
    return None if damage is None else damage.position


@pytest.mark.parametrize("name", ["billing", "consumer-ß", "a b", "x" * 255, "../up"])
def test_printable_names_of_up_to_255_bytes_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 256, "ß" * 128, "a\nb", "a\0", "\u202e"])
def test_other_names_are_refused_with_the_bound(name: str) -> None:
    with pytest.raises(InvalidOption, match="1 to 255 bytes of printable text"):
        check_name(name)
