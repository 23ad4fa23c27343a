"""The runs that the original program wrote are read to the bit, and written again."""

from __future__ import annotations

import pytest

from forebay.formats.deadline.items import Footer, Key, RunEncoder, decode_footer, scan_run
from forebay.formats.deadline.original import in_unsigned_order, merge
from tests.formats.deadline_entries import golden_bytes, golden_entries

RUNS = [
    "0000000000.p-idx",
    "0000000001.p-idx",
    "0000000001.t-idx",
    "0000000002.p-idx",
    "0000000002.t-idx",
]
MERGED = "merged/bc.c-idx"


@pytest.mark.parametrize("name", [*RUNS, MERGED])
def test_a_run_of_the_original_is_read_exactly(name: str) -> None:
    expected = golden_entries(name.removeprefix("merged/"))

    assert list(scan_run(golden_bytes(name), name)) == expected


@pytest.mark.parametrize("name", [*RUNS[1:], MERGED])
def test_a_run_of_the_original_is_written_to_the_same_bytes(name: str) -> None:
    encoder = RunEncoder()
    data = encoder.encode(golden_entries(name.removeprefix("merged/")))

    assert data + encoder.finish() == golden_bytes(name)


def test_the_merge_of_two_of_its_runs_is_written_to_the_bytes_of_the_original() -> None:
    encoder = RunEncoder()
    data = encoder.encode(merge(map(golden_entries, RUNS[1:]), full=False))

    assert data + encoder.finish() == golden_bytes(MERGED)


def test_signed_order_and_the_largest_signed_id_are_accepted() -> None:
    entries = golden_entries(RUNS[0])
    encoder = RunEncoder()

    data = encoder.encode(in_unsigned_order(entries)) + encoder.finish()

    last = Key(253402300799999, 6)
    assert decode_footer(golden_bytes(RUNS[0]), "r") == Footer(8, 0, last, False, 2**62 + 7)
    assert decode_footer(data, "r") == Footer(8, 0, last, False, 2**63 + 2**62 + 9)
    assert list(scan_run(data, "r")) == list(in_unsigned_order(entries))
