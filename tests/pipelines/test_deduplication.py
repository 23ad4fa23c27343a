"""Tests of the search for duplicates, against one that remembers everything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pipelines.ingest.deduplication import find_duplicates, keys_of
from forebay.pipelines.ingest.definition import Deduplicate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN = 10
# key, time, whether it is of this batch
Row = tuple[int, int, bool]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.booleans()), max_size=40)


def arrow_batches(rows: list[Row], size: int) -> Iterator[Any]:
    """Yields rows as Spark does: sorted, earlier batches first, in record batches."""
    numbered = sorted((key, new, number, time) for number, (key, time, new) in enumerate(rows))
    for first in range(0, len(numbered), size):
        part = numbered[first : first + size]
        yield pyarrow.record_batch(
            {
                "key": pyarrow.array([bytes([row[0]]) for row in part], pyarrow.binary()),
                "time_us": pyarrow.array([row[3] for row in part], pyarrow.int64()),
                "queue": pyarrow.array(["q"] * len(part), pyarrow.string()),
                "offset": pyarrow.array([row[2] for row in part], pyarrow.int64()),
                "new": pyarrow.array([row[1] for row in part], pyarrow.bool_()),
            }
        )


def found_in(rows: list[Row], size: int) -> list[int]:
    batches = find_duplicates(arrow_batches(rows, size), WITHIN)
    return sorted(offset for batch in batches for offset in batch.column("offset").to_pylist())


def expected_of(rows: list[Row]) -> list[int]:
    kept: dict[int, list[int]] = {}
    dropped = []
    numbered = sorted(enumerate(rows), key=lambda item: (item[1][2], item[0]))
    for number, (key, time, new) in numbered:
        times = kept.setdefault(key, [])
        if new and any(abs(time - other) <= WITHIN for other in times):
            dropped.append(number)
        else:
            times.append(time)
    return sorted(dropped)


@given(rows=ROWS, size=st.integers(1, 7))
def test_the_search_drops_what_a_full_memory_would_drop(rows: list[Row], size: int) -> None:
    assert found_in(rows, size) == expected_of(rows)


def test_a_key_that_keeps_coming_is_kept_again_when_the_time_has_passed() -> None:
    rows = [(0, time, True) for time in range(0, 40, 4)]

    assert found_in(rows, 3) == [1, 2, 4, 5, 7, 8]


# Column, and two values that a key must tell apart.
KEYS = {
    "TIMESTAMP": "TIMESTAMP '2026-11-01 00:00:00.000001Z'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ '2026-11-01 00:00:00.000001'",
    "ARRAY<TIMESTAMP>": "array(TIMESTAMP '2026-11-01 00:00:00.000001Z')",
    "STRUCT<at: TIMESTAMP>": "named_struct('at', TIMESTAMP '2026-11-01 00:00:00.000001Z')",
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_a_microsecond_apart_are_two_keys_in_any_time_zone(
    spark: SparkSession, kind: str
) -> None:
    one = KEYS[kind]
    other = one.replace("000001", "000002")
    place = "'q' AS queue, 0L AS offset, current_timestamp() AS timestamp"
    rows = spark.sql(f"SELECT {one} AS k, {place} UNION ALL SELECT {other}, {place}")
    same = Deduplicate(("k",), "1h", 3_600_000)
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    found = []
    try:
        for zone in ("UTC", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            found.append(sorted(row["key"] for row in keys_of(rows, same).collect()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

    assert len(set(found[0])) == 2
    assert found[0] == found[1]


def test_keys_without_times_are_those_of_earlier_versions(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT 7L AS id, 'a' AS name, 'q' AS queue, 0L AS offset, current_timestamp() AS timestamp"
    )

    (row,) = keys_of(rows, Deduplicate(("id", "name"), "1h", 3_600_000)).collect()

    assert row["key"] == hashlib.sha256(b'{"id":7,"name":"a"}').digest()[:16]


def test_a_record_of_an_earlier_batch_is_never_dropped() -> None:
    assert found_in([(0, 5, False), (0, 6, False), (0, 7, True)], 1) == [2]
