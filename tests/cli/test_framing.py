from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.framing import OUTPUT_FRAMINGS, BadInput, join, make_splitter

FORBIDDEN = {"lines": b"\n", "nul": b"\0", "length": b""}
values = st.lists(st.binary(max_size=40), max_size=30)


def split(framing: str, data: bytes, step: int) -> list[bytes]:
    splitter = make_splitter(framing, 1_000)
    chunks = [data[start : start + step] for start in range(0, len(data), step)]
    return [*(record for chunk in chunks for record in splitter.feed(chunk)), *splitter.finish()]


@pytest.mark.parametrize("framing", OUTPUT_FRAMINGS)
@given(values=values, step=st.integers(1, 50))
def test_what_is_joined_splits_into_the_same_records(
    framing: str, values: list[bytes], step: int
) -> None:
    mark = FORBIDDEN[framing]
    values = [value.replace(mark, b"") if mark else value for value in values]

    assert split(framing, join(values, framing), step) == values


def test_a_last_line_without_a_newline_is_a_record() -> None:
    assert split("lines", b"one\n\ntwo", 4) == [b"one", b"", b"two"]


def test_a_whole_file_is_one_record_even_if_it_is_empty() -> None:
    assert split("files", b"one\ntwo\n", 3) == [b"one\ntwo\n"]
    assert split("files", b"", 3) == [b""]


def test_an_end_within_a_record_is_bad_input_after_the_whole_ones() -> None:
    splitter = make_splitter("length", 1_000)

    whole = splitter.feed(b"\0\0\0\1a\0\0\0\5b")

    assert whole == [b"a"]
    with pytest.raises(BadInput, match="ends inside a record, 5 bytes into it"):
        splitter.finish()


def test_a_length_that_no_segment_takes_is_bad_input_after_the_whole_ones() -> None:
    splitter = make_splitter("length", 1_000)

    whole = splitter.feed(b"\0\0\0\1a\xff\0\0\0b")

    assert whole == [b"a"]
    with pytest.raises(BadInput, match="claims 4278190080 bytes"):
        splitter.finish()


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    splitter = make_splitter("lines", 1_000)

    for _ in range(10):
        splitter.feed(b"x" * 100)

    with pytest.raises(BadInput, match="exceeds the 1000 bytes"):
        splitter.feed(b"x")
