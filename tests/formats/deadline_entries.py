"""Entries for the tests of the deadline formats: strategies, golden ones, and helpers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from forebay.damage import Damage
from forebay.formats.deadline.items import (
    DEQUEUE_COUNT_MAX,
    ID_MAX,
    TIME_MS_MAX,
    Entry,
    Item,
    Key,
    Stats,
    Tombstone,
)

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "qrono"
NOW_MS = 1_700_000_000_000

times = st.integers(0, TIME_MS_MAX)
keys = st.builds(
    Key,
    st.one_of(times, st.integers(NOW_MS, NOW_MS + 5)),
    st.one_of(st.integers(0, ID_MAX), st.integers(0, 5)),
)
all_stats = st.builds(Stats, times, times, st.integers(0, DEQUEUE_COUNT_MAX))
tombstones = st.builds(Tombstone, keys)
plain_items = st.builds(Item, keys, st.binary(max_size=40), all_stats)
items = st.builds(
    Item, keys, st.binary(max_size=40), all_stats, st.booleans(), st.binary(max_size=9)
)


def by_key(entry: Entry) -> Key:
    return entry.key


def golden_bytes(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def golden_entries(name: str) -> list[Entry]:
    """Returns the entries that a golden file must give, in its own order."""
    text = (GOLDEN / "expected" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [_entry(json.loads(line)) for line in text.splitlines()]


def _entry(row: dict[str, object]) -> Entry:
    number = {name: value for name, value in row.items() if isinstance(value, int)}
    key = Key(number["deadline_ms"], number["id"])
    if row["type"] == "tombstone":
        return Tombstone(key)
    stats = Stats(number["enqueue_ms"], number["requeue_ms"], number["dequeue_count"])
    return Item(key, base64.b64decode(str(row["value_b64"])), stats)


def split(found: Iterable[Any]) -> tuple[list[Any], list[Damage]]:
    """Parts what a scan yields: entries or records, and damage."""
    entries: list[Any] = []
    damage: list[Damage] = []
    for each in found:
        if isinstance(each, Damage):
            damage.append(each)
        else:
            entries.append(each)
    return entries, damage
