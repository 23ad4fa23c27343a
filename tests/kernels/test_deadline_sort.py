"""Sorting digit by digit, against Python's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.deadline import sort

# Few distinct ones, so that some are the same; in all digits, the first and the last bit too.
numbers = st.one_of(
    st.sampled_from((0, 1, 2047, 2048, 2**33, 2**63, 2**64 - 1)), st.integers(0, 2**64 - 1)
)


def sorted_cells(cells: list[tuple[int, ...]], size: int, words: int) -> list[tuple[int, ...]]:
    array = memoryview(bytearray(16 * size * len(cells))).cast("Q")
    for at, number in enumerate(number for cell in cells for number in cell):
        array[at] = number
    start = sort(array, len(cells), size, words)
    rows = range(start, start + size * len(cells), size)
    return [tuple(array[row : row + size]) for row in rows]


@given(st.lists(st.tuples(numbers), min_size=1))
def test_numbers_come_sorted(cells: list[tuple[int, ...]]) -> None:
    assert sorted_cells(cells, 1, 1) == sorted(cells)


@pytest.mark.slow
@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=50))
def test_cells_come_by_their_first_words_and_the_rest_as_it_was(
    cells: list[tuple[int, ...]],
) -> None:
    assert sorted_cells(cells, 3, 2) == sorted(cells, key=lambda cell: cell[:2])


def test_many_numbers_come_sorted() -> None:
    cells: list[tuple[int, ...]] = [((at * 0x9E3779B97F4A7C15) % 2**64,) for at in range(5_000)]

    assert sorted_cells(cells, 1, 1) == sorted(cells)
