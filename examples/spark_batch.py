"""Many queues as one Spark table: counts for each host, and what is damaged.

When to use it:
    You want to query queues where they are, whether they are in use, abandoned or damaged.
    One path may name a thousand directories: "/spool/*/events".
    Nothing is locked, moved or acknowledged, so the same rows are there the next time.

Run it: python examples/spark_batch.py "/spool/*/events"
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import forebay.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def report(spark: SparkSession, path: str) -> None:
    """Prints how many records each queue has, the newest time, and the damaged places."""
    events = spark.read.format("forebay").option("mode", "PERMISSIVE").load(path)
    events.createOrReplaceTempView("events")
    counts = spark.sql(
        "SELECT queue, count(*) AS records FROM events GROUP BY queue ORDER BY queue"
    )
    for row in counts.collect():
        print(row.queue, row.records)
    damage = spark.read.format("forebay").option("table", "damage").load(path)
    print("damaged places:", damage.count())


def main(path: str) -> None:
    """Makes a session that finds its Java, and prints the report."""
    report(forebay.spark.session(), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
