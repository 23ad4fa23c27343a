"""Forebay's source and sink beside Spark's own formats, on the same rows, in one session.

    python benchmarks/spark.py [--rows 4000000] [--rounds 3] [--dir DIR]
    python benchmarks/spark.py --sizes 1,4,16

Prints medians of interleaved rounds and the ratios that count; the seconds of a shared machine mean
little. Payloads are words, 278 bytes each; all our reads verify every checksum. With --sizes it
prints a table of sum(length) over so many million rows instead.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay.spark import session

VALUE_BYTES = 278
WORDS = (
    b"status error warning info request response client server user session token path query index "
    b"segment record offset cursor reader writer owner queue stream batch driver executor task "
    b"temperature pressure humidity voltage current door window lamp open closed on off north south"
).split()


def values(count: int) -> list[bytes]:
    """Makes payloads of words, so that they compress as texts do."""
    chance = random.Random(7)
    texts = []
    for _ in range(20_000):
        text = b" ".join(chance.choices(WORDS, k=60))
        texts.append(text[: VALUE_BYTES - 12])
    return [texts[number * 7 % len(texts)] + b"%012d" % number for number in range(count)]


def write_queue(path: Path, rows: int) -> None:
    with forebay.Log(path, sync="os") as log:
        for first in range(0, rows, 100_000):
            count = min(100_000, rows - first)
            log.append_many(values(count))


class Bench:
    """One session, one queue, and the same rows in Spark's formats."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        self.spark = spark
        self.directory = directory
        self.rows = rows
        self.queue = directory / "queue"

    def prepare(self) -> None:
        self.prepare_parquet()
        text = self.read(columns="offset,value").selectExpr("offset", "string(value) AS value")
        text.write.json(str(self.directory / "json"))

    def prepare_parquet(self) -> None:
        write_queue(self.queue, self.rows)
        self.read().write.parquet(str(self.directory / "parquet"))

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("forebay").options(**options).load(str(self.queue))

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.directory / "parquet"))

    def json(self) -> DataFrame:
        frame = self.spark.read.schema("offset BIGINT, value STRING")
        return frame.json(str(self.directory / "json"))

    def total(self, frame: DataFrame) -> None:
        (row,) = frame.selectExpr("sum(length(value))").collect()
        assert row[0] == self.rows * VALUE_BYTES

    def sum_offsets(self, frame: DataFrame) -> None:
        (row,) = frame.selectExpr("sum(offset)").collect()
        assert row[0] == self.rows * (self.rows - 1) // 2

    def ten(self, frame: DataFrame) -> None:
        offsets = [number * self.rows // 10 for number in range(10)]
        (row,) = (
            frame.filter(frame["offset"].isin(offsets)).selectExpr("sum(length(value))").collect()
        )
        assert row[0] == 10 * VALUE_BYTES

    def count_segments(self) -> None:
        (row,) = self.read(table="segments").selectExpr("sum(count)").collect()
        assert row[0] == self.rows

    def to_parquet(self, frame: DataFrame) -> None:
        target = self.directory / "copy"
        shutil.rmtree(target, ignore_errors=True)
        frame.write.parquet(str(target))

    def to_queue(self) -> None:
        target = self.directory / "copied"
        shutil.rmtree(target, ignore_errors=True)
        self.parquet().select("value").write.format("forebay").mode("append").save(str(target))

    def measures(self) -> dict[str, Callable[[], None]]:
        return {
            "sum(length): Parquet": lambda: self.total(self.parquet()),
            "sum(length): forebay": lambda: self.total(self.read()),
            "sum(length): forebay, 512 MB": lambda: self.total(self.read(maxPartitionBytes="512m")),
            "sum(length): forebay, value only": lambda: self.total(self.read(columns="value")),
            "sum(length): JSON lines": lambda: self.total(self.json()),
            "sum(offset): all columns": lambda: self.sum_offsets(self.read()),
            "sum(offset): columns=offset": lambda: self.sum_offsets(self.read(columns="offset")),
            "count: scan": self._count_scan,
            "count: table=segments": self.count_segments,
            "ten offsets: Parquet": lambda: self.ten(self.parquet()),
            "ten offsets: forebay": lambda: self.ten(self.read()),
            "ten offsets: forebay, no pushdown": lambda: self.ten(self.read(pushdown="false")),
            "to Parquet: from Parquet": lambda: self.to_parquet(self.parquet()),
            "to Parquet: from forebay": lambda: self.to_parquet(self.read()),
            "write value: Parquet": lambda: self.to_parquet(self.parquet().select("value")),
            "write value: forebay": self.to_queue,
        }

    def _count_scan(self) -> None:
        assert self.read().count() == self.rows


RATIOS = (
    ("sum(length), default partitions", "sum(length): Parquet", "sum(length): forebay", 0.95),
    ("sum(length), 512 MB", "sum(length): Parquet", "sum(length): forebay, 512 MB", 1.0),
    ("sum(length), value only", "sum(length): Parquet", "sum(length): forebay, value only", None),
    ("sum(length) against JSON", "sum(length): JSON lines", "sum(length): forebay", 2.5),
    ("columns=offset against all", "sum(offset): all columns", "sum(offset): columns=offset", 2.0),
    ("count by segments", "count: scan", "count: table=segments", 10.0),
    ("ten offsets", "ten offsets: Parquet", "ten offsets: forebay", 0.8),
    ("to Parquet", "to Parquet: from Parquet", "to Parquet: from forebay", 0.95),
    ("write", "write value: Parquet", "write value: forebay", 1.0),
)


def table(spark: SparkSession, directory: Path, millions: list[int], rounds: int) -> None:
    """Prints how the time grows with the rows."""
    print(f"{'million rows':>12} {'Parquet':>9} {'forebay':>9} {'ratio':>7}")
    for size in millions:
        bench = Bench(spark, directory / str(size), size * 1_000_000)
        bench.directory.mkdir()
        bench.prepare_parquet()
        times: list[list[float]] = [[], []]
        for _ in range(rounds + 1):
            for found, frame in zip(times, (bench.parquet, bench.read), strict=True):
                start = time.perf_counter()
                bench.total(frame())
                found.append(time.perf_counter() - start)
        theirs, ours = (statistics.median(found[1:]) for found in times)
        print(f"{size:>12} {theirs:>7.2f} s {ours:>7.2f} s {theirs / ours:>6.2f} x")
        shutil.rmtree(bench.directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measures whose name has this in it")
    parser.add_argument("--sizes", default="", help="millions of rows, with commas")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.dir))
    spark = session("local[2]", **{"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        if options.sizes:
            return table(spark, directory, list(map(int, options.sizes.split(","))), options.rounds)
        bench = Bench(spark, directory, options.rows)
        bench.prepare()
        chosen = {n: m for n, m in bench.measures().items() if options.only in n}
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for number in range(options.rounds + 1):
            for name, measure in chosen.items():
                start = time.perf_counter()
                measure()
                if number:
                    times[name].append(time.perf_counter() - start)
        report({name: statistics.median(found) for name, found in times.items()}, options.rows)
    finally:
        spark.stop()
        shutil.rmtree(directory)


def report(seconds: dict[str, float], rows: int) -> None:
    for name, median in seconds.items():
        print(f"{name:34} {median:8.2f} s  {rows / median / 1e6:6.2f} M rows/s")
    for name, theirs, ours, wanted in RATIOS:
        if theirs in seconds and ours in seconds:
            goal = f"wanted {wanted}" if wanted else ""
            print(f"{name:34} {seconds[theirs] / seconds[ours]:8.2f} x  {goal}")


if __name__ == "__main__":
    main()
