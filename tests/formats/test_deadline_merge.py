"""Merging sorted runs: order, cancelled pairs, tombstones without an item."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.deadline.items import Entry, Item, Key, Tombstone
from forebay.formats.deadline.original import in_unsigned_order, merge
from tests.formats.deadline_entries import by_key, golden_entries

A = ["0000000000.p-idx"]
B = ["0000000001.p-idx", "0000000001.t-idx"]
C = ["0000000002.p-idx", "0000000002.t-idx"]

few_keys = st.builds(Key, st.integers(0, 3), st.integers(0, 2))
few_values = st.sampled_from([b"u", b"v", b"w"])
few_entries = st.one_of(st.builds(Tombstone, few_keys), st.builds(Item, few_keys, few_values))


def golden_runs(names: list[str]) -> list[list[Entry]]:
    return [list(in_unsigned_order(golden_entries(name))) for name in names]


def test_a_partial_merge_is_what_the_original_wrote() -> None:
    merged = list(merge(golden_runs(B + C), full=False))

    assert merged == golden_entries("bc.c-idx")


def test_a_full_merge_leaves_the_items_without_a_tombstone() -> None:
    a, b, c = golden_entries(A[0]), golden_entries(B[0]), golden_entries(C[0])
    # B kills 3 and 1 of A and its own 10; C kills 4 of A, and 99, which nobody has.
    zero, _, above_2_63, _, _, above_2_62, two, year_9999 = a

    merged = list(merge(golden_runs(A + B + C), full=True))

    assert merged == [zero, b[0], above_2_62, above_2_63, c[0], two, year_9999]


def test_a_merge_in_steps_gives_what_a_merge_at_once_gives() -> None:
    steps = merge([*golden_runs(A), list(merge(golden_runs(B + C), full=False))], full=True)

    assert list(steps) == list(merge(golden_runs(A + B + C), full=True))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_tombstone_cancels_one_item_on_whichever_side_it_is(swapped: bool) -> None:
    old, new = Item(Key(1, 1), b"old"), Item(Key(1, 1), b"new")
    runs: list[list[Entry]] = [[old], [Tombstone(Key(1, 1))], [new]]
    if swapped:
        runs.insert(0, runs.pop(1))

    assert list(merge(runs, full=True)) == [new]
    assert list(merge(runs, full=False)) == [new]


def test_the_same_item_in_two_runs_is_one() -> None:
    item = Item(Key(1, 1), b"v")

    assert list(merge([[item], [item]], full=True)) == [item]
    assert not list(merge([[item], [item], [Tombstone(item.key)]], full=True))


def test_a_tombstone_of_another_deadline_or_id_cancels_nothing() -> None:
    item = Item(Key(5, 5), b"v")
    others: list[Entry] = [Tombstone(Key(4, 5)), Tombstone(Key(5, 4)), Tombstone(Key(6, 5))]

    assert list(merge([[item], others], full=True)) == [item]
    assert list(merge([[item], others], full=False)) == sorted([item, *others], key=by_key)


@pytest.mark.slow
@given(st.lists(st.lists(few_entries, max_size=8), max_size=4), st.booleans())
def test_what_is_left_is_the_difference_by_key(runs: list[list[Entry]], full: bool) -> None:
    for run in runs:
        run.sort(key=by_key)
    entries = [entry for run in runs for entry in run]
    balance = Counter(item.key for item in {entry for entry in entries if isinstance(entry, Item)})
    balance.subtract(entry.key for entry in entries if isinstance(entry, Tombstone))

    merged = list(merge(runs, full=full))

    assert merged == sorted(merged, key=by_key)
    left = Counter(entry.key for entry in merged if isinstance(entry, Item))
    rogue = Counter(entry.key for entry in merged if isinstance(entry, Tombstone))
    assert left == +balance
    assert rogue == (Counter() if full else -balance)


def test_an_unsorted_run_is_refused() -> None:
    with pytest.raises(ValueError, match="only sorted runs"):
        list(merge([[Tombstone(Key(2, 0)), Tombstone(Key(1, 0))]], full=True))
