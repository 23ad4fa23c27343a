"""What a batch takes before it is encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.buffers import fit, measure

values_strategy = st.lists(st.binary(max_size=60), min_size=1, max_size=30)


@given(values_strategy)
def test_measure_gives_the_sum_the_largest_and_the_smallest(values: list[bytes]) -> None:
    sizes = [len(value) for value in values]

    assert measure(values) == (sum(sizes), max(sizes), min(sizes))


def test_measure_of_nothing_is_larger_than_any_record_and_smaller() -> None:
    assert measure([]) == (0, 0, 0xFFFFFFFF)


@pytest.mark.parametrize("value", ["text", bytearray(b"x"), memoryview(b"x"), 1, None])
def test_measure_refuses_what_is_not_bytes(value: bytes) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        measure([b"good", value])


@given(values_strategy, st.integers(0, 30), st.integers(0, 2000), st.sampled_from([4, 12]))
def test_fit_takes_as_many_as_there_is_room_for(
    values: list[bytes], first: int, room: int, frame_bytes: int
) -> None:
    count, size = fit(values, first, room, frame_bytes)

    taken, rest = values[first : first + count], values[first + count :]
    assert size == sum(len(value) + frame_bytes for value in taken)
    assert size <= room
    assert not rest or size + len(rest[0]) + frame_bytes > room


def test_fit_takes_a_value_that_fills_the_room_exactly() -> None:
    assert fit([b"12345678"], 0, 20, 12) == (1, 20)
    assert fit([b"12345678"], 0, 19, 12) == (0, 0)
