"""A stream from queues to files, in which every record arrives exactly once.

When to use it:
    Records must be in the lake soon after they were appended, each once, also after a crash.
    The stream keeps its place under a name; trimming leaves what it has not read.
    Run it all the time, or from a timer, with `available_now=True`, which ends when it caught up.

Run it: python examples/spark_stream.py "/spool/*/events" /lake
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import forebay.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(spark: SparkSession, path: str, lake: str, *, available_now: bool = False) -> None:
    """Copies what is appended to the queues to Parquet files below `lake`."""
    events = (
        spark.readStream.format("forebay")
        .option("consumerId", "lake")
        .option("startingOffsets", "earliest")  # of the first run; later ones go on
        .load(path)
    )
    writer = (
        events.select("queue", "offset", "timestamp", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{lake}/checkpoint")
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    writer.start(f"{lake}/events").awaitTermination()


def main(path: str, lake: str) -> None:
    """Makes a session that finds its Java, and copies what is there now."""
    copy(forebay.spark.session(), path, lake, available_now=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
