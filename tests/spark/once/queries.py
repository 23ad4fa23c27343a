"""A stream from queues into files, as the tests of this directory start, fail and kill it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.cursors import wait_for_cursors
from tests.spark.once.checking import Row
from tests.spark.once.failing import FORMAT, FailingSource
from tests.spark.once.points import Points
from tests.support.planting import Broken

OPTIONS: dict[str, Any] = {"startingOffsets": "earliest", "consumerId": "spark"}
# The rows are in the sink, but Spark has not taken note of it: the batch will come again.
LANDED = "after landing"
_SECONDS_MAX = 240


class Query:
    """The query: its checkpoint, its points and what landed are in one directory, and stay."""

    def __init__(self, path: str | Path, directory: Path, **options: Any) -> None:
        self.points = Points(directory / "points")
        self.landing = Landing(directory / "landed", self.points)
        self._path = str(path)
        self._checkpoint = str(directory / "checkpoint")
        self._options = {**OPTIONS, "pointsAt": self.points.directory, **options}

    def start(self, spark: SparkSession, **trigger: Any) -> StreamingQuery:
        """Starts it, or starts it again."""
        wait_for_cursors(self._path, self._options["consumerId"])
        spark.dataSource.register(FailingSource)
        stream = spark.readStream.format(FORMAT).options(**self._options).load(self._path)
        writer = stream.writeStream.foreachBatch(self.landing.land)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", self._checkpoint).start()

    def run(self, spark: SparkSession) -> str | None:
        """Runs it to the end of what is there; gives the error if it failed."""
        query = self.start(spark, availableNow=True)
        try:
            ended = query.awaitTermination(_SECONDS_MAX)
        except StreamingQueryException as error:
            return str(error)
        finally:
            query.stop()
        assert ended, "the stream does not end"
        return None

    def first_batch(self) -> tuple[int, int]:
        """Returns the first offset of the first batch, and the one behind it; of one queue."""
        *_, line = Path(self._checkpoint, "offsets", "0").read_text().splitlines()
        (place,) = json.loads(line)["queues"].values()
        return place["from"], place["offset"]


class Landing:
    """A sink that is idempotent by the number of the batch: one file each, in the order of rows.

    Also sees whether a batch that is replayed has the same rows as before.
    """

    def __init__(self, directory: Path, points: Points) -> None:
        self._directory = directory
        self._points = points
        self.count = 0
        self.replays = 0

    def land(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark for each batch."""
        table = frame.select("queue", "offset", "value").toArrow()
        file = self._directory / f"{batch:06d}.parquet"
        if file.exists():
            self.replays += 1
            if not pyarrow.parquet.read_table(file).equals(table):
                raise Broken(f"batch {batch} has other rows when it is replayed")
            return
        self._directory.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)
        self.count += len(table)
        self._points.meet(LANDED)

    def rows(self) -> list[Row]:
        """Returns what arrived, batch after batch."""
        found: list[Row] = []
        for file in sorted(self._directory.glob("*.parquet")):
            columns = pyarrow.parquet.read_table(file).to_pydict()
            found += zip(columns["queue"], columns["offset"], columns["value"], strict=True)
        return found
