"""Tests of the ingest from the outside: real queues, a real stream, tables as users read them."""

from __future__ import annotations

import glob
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pyarrow.parquet
import pytest

import forebay.spark
from forebay import Log
from forebay.errors import InvalidOption, Locked
from forebay.pipelines import Counts, Progress
from forebay.pipelines.ingest.output import DAMAGE, DECODED, DROPPED, LANDED, REJECTED, Output
from tests.pipelines.conftest import Made
from tests.pipelines.helpers import append, event, numbered, places, proof_of, run
from tests.queues.helpers import frame_position, segment_files
from tests.spark.cursors import wait_for_cursors
from tests.support.values import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_records_land_once_whatever_becomes_of_them(spark: SparkSession, made: Made) -> None:
    found = {
        table: places(spark, made.out, table) for table in (LANDED, DECODED, REJECTED, DROPPED)
    }

    # The first of a key wins: over queues, over batches, until an hour has passed.
    assert found == {
        LANDED: numbered("a", range(6)) + numbered("b", range(6)),
        DECODED: numbered("a", [0, 1]) + numbered("b", [1, 2, 3, 4, 5]),
        REJECTED: [("a", 4)],
        DROPPED: numbered("a", [2, 3, 5]) + numbered("b", [0]),
    }
    assert made.result.batches == (0, 1)
    assert made.result.queues == {
        f"{made.path}/a": Counts(landed=6, decoded=2, rejected=1, deduplicated=2, filtered=1),
        f"{made.path}/b": Counts(landed=6, decoded=5, deduplicated=1),
    }


def test_the_tables_are_ordinary_tables_for_every_reader(spark: SparkSession, made: Made) -> None:
    decoded = f"{made.out}/{DECODED}"
    frame = spark.read.parquet(decoded)

    (row,) = frame.where("offset = 0 AND batch = 0").collect()
    (landed,) = spark.read.parquet(f"{made.out}/{LANDED}").where("value = 'bad'").collect()
    table = pyarrow.dataset.dataset(decoded, partitioning="hive").to_table()
    files = glob.glob(f"{decoded}/*/*.parquet")

    assert frame.columns == ["queue", "offset", "timestamp", "id", "name", "_rescued", "batch"]
    assert (row["name"], row["_rescued"]) == ("event 1", '{"more":1}')
    assert (Path(landed["queue"]).name, landed["kind"], landed["offset"]) == ("a", "log", 4)
    assert landed["segment"] in [file.name for file in segment_files(made.path / "a")]
    assert sorted(table.column("batch").to_pylist()) == [0, 0, 0, 0, 1, 1, 1]
    assert len(pyarrow.parquet.read_table(decoded)) == 7
    assert sum(pyarrow.parquet.ParquetFile(file).metadata.num_rows for file in files) == 7


def test_times_of_any_century_are_the_same_for_every_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = ["9999-12-31T23:59:59.999999+00:00", "1066-10-14T09:00:00+00:00"]
    append(tmp_path / "q", [json.dumps({"at": time}).encode() for time in times])

    run(spark, tmp_path / "q", tmp_path / "out", schema="at TIMESTAMP")

    expected = [datetime.fromisoformat(time) for time in times]
    decoded = f"{tmp_path}/out/{DECODED}"
    table = pyarrow.dataset.dataset(decoded, partitioning="hive").to_table().sort_by("offset")
    (file,) = glob.glob(f"{decoded}/batch=0/*.parquet")
    found = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    columns = [found.column(number) for number in range(found.num_columns)]
    (statistics,) = [one.statistics for one in columns if one.path_in_schema == "at"]
    micros = [
        row["us"] for row in spark.read.parquet(decoded).selectExpr("unix_micros(at) us").collect()
    ]
    assert table.column("at").to_pylist() == expected
    assert (statistics.min, statistics.max) == (expected[1], expected[0])
    assert sorted(micros) == sorted(
        (time - EPOCH) // timedelta(microseconds=1) for time in expected
    )


def test_a_second_run_goes_on_behind_the_first_and_trimming_follows(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "q", [event(number).ljust(100) for number in range(30)])
    told: list[Progress] = []

    first = run(spark, tmp_path / "q", tmp_path / "out", consumer_id="tables")
    append(tmp_path / "q", [event(30)])
    wait_for_cursors(tmp_path / "q", "tables")
    second = run(
        spark, tmp_path / "q", tmp_path / "out", consumer_id="tables", on_progress=told.append
    )
    with Log(tmp_path / "q", segment_bytes=1_000) as log:
        trimmed = log.trim()

    assert (first.batches, second.batches) == ((0,), (1,))
    assert second.counts == Counts(landed=1, decoded=1)
    assert [(progress.batch, progress.total) for progress in told] == [(1, second.counts)]
    assert places(spark, tmp_path / "out", LANDED) == numbered("q", range(31))
    assert trimmed == 30


def test_damaged_and_trimmed_records_are_counted_and_the_others_land(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("damaged", "trimmed"):
        append(tmp_path / name, [event(number).ljust(100) for number in range(40)])
    flip(segment_files(tmp_path / "damaged")[1], frame_position(3) + 50)
    with Log(tmp_path / "trimmed", segment_bytes=1_000) as log:
        log.consumer("reader", start=20)
        log.trim()

    result = run(spark, tmp_path / "*ed", tmp_path / "out", format="delta")

    assert result.queues == {
        str(tmp_path / "damaged"): Counts(landed=39, decoded=39, damaged=1),
        str(tmp_path / "trimmed"): Counts(landed=24, decoded=24, trimmed=16),
    }
    (damage,) = forebay.spark.table(spark, tmp_path / "out", DAMAGE).collect()
    assert (damage["offset"], damage["count"], damage["torn"]) == (11, 1, False)
    assert damage["position"] == frame_position(3)
    there = numbered("damaged", [*range(11), *range(12, 40)]) + numbered("trimmed", range(16, 40))
    assert places(spark, tmp_path / "out", LANDED) == there
    assert [proof.range for proof in proof_of(spark, tmp_path / "out").queues] == [40, 40]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": "id STRING, name STRING"},
            "schema: the column id changes from bigint to string, .* or rebuild the existing",
        ),
        ({"schema": "id BIGINT"}, "schema: the column name is missing, and"),
        ({"sql": "SELECT queue, offset FROM records"}, "sql differs"),
        ({"format": "delta"}, "format differs from the definition .*: use another out$"),
        ({"deduplicate": None}, "deduplicate differs"),
        ({"source": "/elsewhere", "starting": 5}, "source and starting differ"),
        ({"source": "/elsewhere"}, "source: .* is missing, .* leave it in"),
    ],
)
def test_another_definition_is_refused_with_the_remedy(
    spark: SparkSession, made: Made, change: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"source": made.path / "?", "out": made.out, **made.options, **change}

    with pytest.raises(InvalidOption, match=message):
        run(spark, **given)


def test_a_second_ingest_into_the_same_tables_is_refused(spark: SparkSession, made: Made) -> None:
    with Output.at(made.out).locked(), pytest.raises(Locked):
        run(spark, made.path / "?", made.out, **made.options)


def test_with_a_trigger_it_goes_on_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "q", [event(number) for number in range(10)])
    stop = threading.Event()
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 1:
            append(tmp_path / "q", [event(10)])
        else:
            stop.set()

    result = run(
        spark,
        tmp_path / "q",
        tmp_path / "out",
        starting="latest",
        trigger="100ms",
        on_progress=tell,
        stop=stop,
    )

    assert result.counts == Counts(landed=1, decoded=1)
    assert Output.at(tmp_path / "out").document()["starts"] == {str(tmp_path / "q"): 10}
    assert places(spark, tmp_path / "out", DECODED) == [("q", 10)]
    assert proof_of(spark, tmp_path / "out").queues[0].range == 1
