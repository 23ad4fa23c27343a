"""A kind that has no module for Spark is read by its record alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.errors import Damaged, InvalidOption
from forebay.spark import kinds
from tests.kinds.toy import toys
from tests.spark.toy_source import ToySource
from tests.support.toy import Toy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    with toys(), Toy(tmp_path / "q") as toy:
        toy.put_many([b"one", b"two?", b"three", b"four"])
    with toys():
        yield str(tmp_path / "q")


def read(path: str, **options: str) -> list[dict[str, Any]]:
    """Plans and reads in this process, as Spark would have it done in others."""
    source = ToySource({"path": path, **options})
    reader = source.reader(source.schema())
    batches: list[Any] = [it for part in reader.partitions() for it in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_read_goes_round_damage_and_numbers_the_records(path: str) -> None:
    rows = read(path, mode="DROPMALFORMED")

    assert [(row["offset"], row["value"]) for row in rows] == [
        *((0, b"one"), (2, b"three"), (3, b"four"))
    ]
    assert {(row["queue"], row["kind"]) for row in rows} == {(path, "toy")}


def test_offsets_bound_a_read(path: str) -> None:
    rows = read(path, startingOffsets="2", endingOffsets="3")

    assert [row["value"] for row in rows] == [b"three"]


def test_damage_ends_a_read_that_does_not_allow_it(path: str) -> None:
    with pytest.raises(Damaged, match="a question"):
        read(path)


def test_no_stream_reads_it(path: str) -> None:
    with pytest.raises(InvalidOption, match="is a toy, which no stream reads"):
        kinds.check_streamed(path)


def test_it_is_a_table_of_spark(spark: SparkSession, path: str) -> None:
    spark.dataSource.register(ToySource)

    frame = spark.read.format("toys").option("mode", "DROPMALFORMED").load(path)

    rows = frame.orderBy("offset").collect()
    assert [(row.kind, row.offset, bytes(row.value)) for row in rows] == [
        *(("toy", 0, b"one"), ("toy", 2, b"three"), ("toy", 3, b"four"))
    ]
