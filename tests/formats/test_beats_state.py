"""`state.dat` of a Beats queue, in both versions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged, InvalidOption
from forebay.formats.beats.state import State, decode_state

number = st.integers(0, 2**64 - 1)
state_strategy = st.builds(State, number, number, st.none() | number)


@given(state_strategy)
def test_a_state_is_what_the_page_says_and_reads_back(state: State) -> None:
    data = state.encode()

    words = [state.segment_id, state.byte_index]
    if state.frame_index is None:
        assert data == struct.pack("<IQQ", 0, *words)
    else:
        assert data == struct.pack("<IQQQ", 1, *words, state.frame_index)
    assert decode_state(data, "state.dat") == state


def test_an_empty_file_is_no_state() -> None:
    assert decode_state(b"", "state.dat") is None


@pytest.mark.parametrize("state", [State(3, 100), State(3, 100, 2)])
def test_a_state_that_is_cut_is_torn(state: State) -> None:
    data = state.encode()

    for size in range(1, len(data)):
        with pytest.raises(Damaged, match="ends within the state") as caught:
            decode_state(data[:size], "state.dat")
        assert caught.value.damage.torn


def test_a_state_of_a_version_that_is_not_is_damage() -> None:
    with pytest.raises(Damaged, match="state version 2"):
        decode_state(struct.pack("<IQQQ", 2, 0, 0, 0), "state.dat")


def test_bytes_behind_a_state_are_ignored() -> None:
    assert decode_state(State(3, 100, 2).encode() + b"more", "state.dat") == State(3, 100, 2)


@pytest.mark.parametrize(
    ("state", "position"),
    [
        (State(1, 0), 4),
        (State(1, 96), 100),
        (State(1, 0, 0), 4),
        (State(1, 100, 2), 100),
        (State(1, 100, 0), 4),
        (State(1, 0, 5), 4),
    ],
)
def test_a_state_tells_where_to_go_on(state: State, position: int) -> None:
    assert state.position(4) == position


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (2**64, 0, 0)])
def test_a_number_that_has_no_64_bits_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidOption, match="2\\*\\*64 - 1"):
        State(*wrong)
