"""Tests of what a batch says of itself, and of the arithmetic of what is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pipelines.ingest.output import Counts, Lost, Manifest, Offsets, Share, account, total
from forebay.tables.protocol import DataFile


def offsets(start: int = 0, end: int = 100, begin: int | None = None) -> Offsets:
    return Offsets("ab", 1, start, end, begin)


def test_a_manifest_survives_its_bytes() -> None:
    counts = Counts(landed=3, decoded=2, rejected=1)
    keys = (DataFile("_keys/x.parquet", 10, 2),)
    queues = {"/q": Share(offsets(begin=4), counts, 10, 20)}
    manifest = Manifest(7, "digest", queues, (5, 6), keys, {"/q": {"offset": 9}})

    assert Manifest.decode(manifest.encode()) == manifest
    assert Manifest.decode(Manifest(0, "d").encode()) == Manifest(0, "d")


def test_counts_add_up_by_name() -> None:
    both = total([Counts(landed=1, trimmed=2), Counts(landed=10, decoded=5)])

    assert both == Counts(landed=11, decoded=5, trimmed=2)


@pytest.mark.parametrize(
    ("covered", "landed", "below", "damage", "expected"),
    [
        (offsets(), 100, 0, [], (0, 0, 0)),
        (offsets(), 97, 0, [Lost(10, 3)], (3, 0, 0)),
        (offsets(), 97, 0, [Lost(10, 3), Lost(11, 1), Lost(10, 2)], (3, 0, 0)),
        (offsets(50, 100), 45, 0, [Lost(40, 15)], (5, 0, 0)),
        (offsets(50, 100), 45, 0, [Lost(95, 15)], (5, 0, 0)),
        (offsets(begin=20), 80, 0, [], (0, 20, 0)),
        (offsets(begin=20), 85, 5, [], (0, 15, 0)),
        (offsets(begin=20), 78, 0, [Lost(18, 4)], (4, 18, 0)),
        (offsets(begin=500), 0, 0, [], (0, 100, 0)),
        (offsets(50, 100, begin=20), 50, 0, [], (0, 0, 0)),
        (offsets(), 90, 0, [Lost(7, None)], (10, 0, 0)),
        (offsets(begin=5), 90, 0, [Lost(None, None)], (5, 5, 0)),
        (offsets(), 99, 0, [], (0, 0, 1)),
        (offsets(), 101, 0, [], (0, 0, -1)),
    ],
)
def test_what_is_missing_is_damaged_trimmed_or_unexplained(
    covered: Offsets, landed: int, below: int, damage: list[Lost], expected: tuple[int, int, int]
) -> None:
    assert account(covered, landed, below, damage) == expected


@given(
    fates=st.lists(st.sampled_from(["landed", "damaged", "trimmed"]), max_size=60),
    start=st.integers(0, 1000),
)
def test_every_mixture_of_fates_is_explained(fates: list[str], start: int) -> None:
    begin = max((n for n, fate in enumerate(fates, start + 1) if fate == "trimmed"), default=start)
    places = dict(enumerate(fates, start))
    below = sum(1 for n, fate in places.items() if n < begin and fate == "landed")
    damage = [Lost(n, 1) for n, fate in places.items() if fate == "damaged"]

    found = account(offsets(start, start + len(fates), begin), fates.count("landed"), below, damage)

    assert found == (fates.count("damaged"), fates.count("trimmed"), 0)
