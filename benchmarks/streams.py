"""A stream over a log: how soon a record is in the sink, and how fast a backlog is caught up.

    python benchmarks/streams.py [--rows 4000000] [--records 60] [--dir DIR]

The latency is from the moment before `append` until a reader of the sink, another log, sees the
record. Catching up reads a backlog with the trigger `availableNow`, beside a batch read of the same
rows, both into nothing.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from spark import write_queue

import forebay
from forebay.spark import session

_GAP_SECONDS = 0.7


def latency(spark: SparkSession, directory: Path, records: int) -> list[float]:
    """Appends records one by one, and gives how long each took to the sink."""
    source, sink = directory / "source", directory / "sink"
    with forebay.Log(source) as log:
        log.append(b"first")
        query = (
            spark.readStream.format("forebay")
            .option("startingOffsets", "earliest")
            .option("columns", "value")
            .load(str(source))
            .writeStream.format("forebay")
            .option("checkpointLocation", str(directory / "latency"))
            .start(str(sink))
        )
        try:
            _wait_for(sink, 1)
            found = []
            for number in range(records):
                start = time.perf_counter()
                log.append(b"%d" % number)
                _wait_for(sink, number + 2)
                found.append(time.perf_counter() - start)
                # Not in step with the polls of the stream.
                time.sleep(_GAP_SECONDS * (number % 7) / 7)
        finally:
            query.stop()
    return found


def _wait_for(sink: Path, count: int) -> None:
    """Waits until a log has so many records."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            with forebay.read(sink) as reader:
                if len(reader) >= count:
                    return
        except (FileNotFoundError, forebay.NotAQueue):
            pass
        time.sleep(0.005)
    raise TimeoutError(f"{sink} has fewer than {count} records")


def batch_read(spark: SparkSession, queue: Path) -> float:
    """Reads all of a queue, into nothing."""
    start = time.perf_counter()
    spark.read.format("forebay").load(str(queue)).write.format("noop").mode("append").save()
    return time.perf_counter() - start


def catch_up(spark: SparkSession, queue: Path, checkpoint: Path) -> float:
    """Reads all of a queue as a stream, into nothing."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    start = time.perf_counter()
    (
        spark.readStream.format("forebay")
        .option("startingOffsets", "earliest")
        .load(str(queue))
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.dir))
    spark = session("local[2]", **{"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        found = sorted(latency(spark, directory, options.records))
        p50, p95 = found[len(found) // 2], found[len(found) * 19 // 20]
        print(f"append to row in the sink: p50 {p50:.2f} s, p95 {p95:.2f} s, {len(found)} records")
        write_queue(directory / "queue", options.rows)
        reads, streams = [], []
        for _ in range(options.rounds + 1):
            reads.append(batch_read(spark, directory / "queue"))
            streams.append(catch_up(spark, directory / "queue", directory / "checkpoint"))
        batch, stream = statistics.median(reads[1:]), statistics.median(streams[1:])
        print(f"batch read {batch:.2f} s, catching up {stream:.2f} s: {batch / stream:.2f} x")
    finally:
        spark.stop()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
