"""Beats queues beside the Log, beside a plain loop, and in Spark over many directories.

    python benchmarks/beats.py [--events 200000] [--spark] [--dir DIR]

Ratios are of medians of interleaved rounds in one run. With --spark also: 200 directories beside
one with the same events, and a stream over 1,000 directories of which 50 come and 50 go.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pyarrow

import forebay
from forebay.damage import Damage
from forebay.formats.beats.text import TextDecoder, decode_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5
_BATCH = 1000


def event(number: int) -> dict[str, Any]:
    """Makes an event as Filebeat does, of about 280 bytes."""
    return {
        "timestamp_ns": 1_700_000_000_000_000_000 + number * 1_000,
        "meta": {"pipeline": "nginx"},
        "fields": {
            "message": f"GET /index/{number}.html HTTP/1.1 200 {number % 7919}",
            "host": {"name": f"host-{number % 100}", "ip": "10.0.0.1"},
            "log": {"offset": number * 81, "file": {"path": "/var/log/nginx/access.log"}},
            "ecs": {"version": "8.0.0"},
            "seq": number,
        },
    }


def fill(path: Path, first: int, count: int, version: str = "v1", **options: Any) -> None:
    with forebay.BeatsQueue(path, version=version, sync="os", **options) as queue:
        for start in range(first, first + count, _BATCH):
            stop = min(start + _BATCH, first + count)
            queue.put_many([event(number) for number in range(start, stop)])


def compare(what: str, base: Callable[[], object], ours: Callable[[], object], goal: str) -> None:
    """Prints how many times as long `base` takes as `ours`."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for measure, found in zip((base, ours), times, strict=True):
            start = time.perf_counter()
            measure()
            found.append(time.perf_counter() - start)
    theirs, own = (statistics.median(found[1:]) for found in times)
    print(f"{what:46} {theirs:7.3f} s {own:7.3f} s {theirs / own:7.2f} x   {goal}")


def scan_log(path: Path) -> int:
    with forebay.LogReader(path) as reader:
        return sum(len(batch.values) for batch in reader.batches())


def scan_events(path: Path) -> int:
    with forebay.BeatsReader(path) as reader:
        return sum(len(item.payloads) for item in reader.scan() if not isinstance(item, Damage))


def plain_to_arrow(path: Path) -> int:
    """What a careful user would write: frames, checksums, cbor2, JSON text, pyarrow."""
    rows = 0
    for file in sorted(path.glob("*.seg")):
        data = file.read_bytes()
        times, flags, metas, fields = [], [], [], []
        position = 8
        while position < len(data):
            (size,) = struct.unpack_from("<I", data, position)
            end = position + size
            checksum, again = struct.unpack_from("<II", data, end - 8)
            assert again == size
            assert zlib.crc32(data[position : end - 8]) == checksum
            document = cbor2.loads(data[position + 4 : end - 8])
            times.append(document["timestamp"])
            flags.append(document["flags"])
            metas.append(json.dumps(document["meta"], separators=(",", ":")))
            fields.append(json.dumps(document["fields"], separators=(",", ":")))
            position = end
        batch = pyarrow.record_batch(
            [
                pyarrow.array(times, pyarrow.int64()),
                pyarrow.array(flags, pyarrow.int64()),
                pyarrow.array(metas, pyarrow.string()),
                pyarrow.array(fields, pyarrow.string()),
            ],
            names=["timestamp_ns", "flags", "meta", "fields"],
        )
        rows += batch.num_rows
    return rows


def to_arrow(path: Path) -> int:
    decoder = TextDecoder()
    rows = 0
    with forebay.BeatsReader(path) as reader:
        for item in reader.scan():
            if isinstance(item, Damage):
                continue
            columns = decode_columns(item.payloads, decoder)
            arrays = [
                _numbers(columns.timestamps_ns),
                pyarrow.array(columns.flags, pyarrow.int64()),
                _text(columns.meta),
                _text(columns.fields),
            ]
            batch = pyarrow.record_batch(arrays, names=["timestamp_ns", "flags", "meta", "fields"])
            rows += batch.num_rows
    return rows


def _numbers(numbers: Any) -> Any:
    buffers = [None, pyarrow.py_buffer(numbers)]
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(numbers), buffers)


def _text(text: Any) -> Any:
    buffers = [None, pyarrow.py_buffer(text.ends), pyarrow.py_buffer(text.data)]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(text.ends) - 1, buffers)


def write(directory: Path, version: str, key_file: Path | None, events: list[Any]) -> None:
    path = directory / "written"
    shutil.rmtree(path, ignore_errors=True)
    with forebay.BeatsQueue(path, version=version, key_file=key_file, sync="os") as queue:
        for start in range(0, len(events), _BATCH):
            queue.put_many(events[start : start + _BATCH])


def without_spark(directory: Path, events: int) -> None:
    queue, log = directory / "queue", directory / "log"
    fill(queue, 0, events)
    with forebay.BeatsReader(queue) as reader:
        found = [item for item in reader.scan() if not isinstance(item, Damage)]
        with forebay.Log(log, sync="os") as target:
            for item in found:
                target.append_many(item.payloads)
    print(f"{events:,} events, {ROUNDS} rounds: base, ours, how many times as fast")
    compare(
        "frames and checksums, v1 beside the Log",
        lambda: scan_log(log),
        lambda: scan_events(queue),
        "wanted 0.5",
    )
    compare(
        "v1 to Arrow beside cbor2 and pyarrow",
        lambda: plain_to_arrow(queue),
        lambda: to_arrow(queue),
        "wanted 2",
    )
    key_file = directory / "key"
    key_file.write_bytes(os.urandom(16))
    key_file.chmod(0o600)
    made = [event(number) for number in range(min(events, 50_000))]
    compare(
        "batches written, v3-seed (AES, LZ4) beside v2",
        lambda: write(directory, "v2", None, made),
        lambda: write(directory, "v3-seed", key_file, made),
        "wanted 0.33",
    )


def with_spark(directory: Path, events: int) -> None:
    from forebay.spark import session

    spark = session("local[2]", **{"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        many_directories(spark, directory, events)
        come_and_go(spark, directory)
    finally:
        spark.stop()


def many_directories(spark: SparkSession, directory: Path, events: int) -> None:
    one, many = directory / "one", directory / "many"
    fill(one, 0, events, segment_bytes=events * 300 // 200)
    many.mkdir()
    share = events // 200
    for number in range(200):
        fill(many / f"host-{number:03}", number * share, share)

    def total(path: str) -> None:
        frame = spark.read.format("forebay").load(path)
        (row,) = frame.selectExpr("sum(length(fields))").collect()
        assert row[0] > 0

    compare(
        "Spark over 200 directories beside one",
        lambda: total(str(one)),
        lambda: total(f"{many}/*"),
        "wanted 0.8",
    )


def come_and_go(spark: SparkSession, directory: Path) -> None:
    """Streams over 1,000 directories; 50 come and 50 go meanwhile. Then nothing happens."""
    hosts = directory / "hosts"
    hosts.mkdir()
    for number in range(1_000):
        fill(hosts / f"host-{number:04}", number * 10, 10)
    query = (
        spark.readStream.format("forebay")
        .option("startingOffsets", "earliest")
        .option("columns", "queue,offset,timestamp_ns")
        .load(f"{hosts}/*")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="1 second")
        .start(str(directory / "rows"))
    )
    try:
        query.processAllAvailable()
        for number in range(50):
            shutil.rmtree(hosts / f"host-{number:04}")
            fill(hosts / f"new-{number:04}", 10_000 + number * 10, 10)
        _wait_for_rows(spark, directory / "rows", 10_500)
        found = spark.read.parquet(str(directory / "rows"))
        expected = sum(range(10_500))
        (row,) = found.selectExpr("count(*)", "count(distinct timestamp_ns)").collect()
        (total,) = found.selectExpr("sum((timestamp_ns - 1700000000000000000) div 1000)").collect()
        right = (row[0], row[1], total[0]) == (10_500, 10_500, expected)
        print(f"1,000 directories, 50 come, 50 go: {row[0]:,} rows, right: {right}")
        before, start = _cpu_seconds(), time.monotonic()
        time.sleep(20)
        used = (_cpu_seconds() - before) / (time.monotonic() - start)
        print(f"idle, all processes of Spark together: {used:.1%} of a core   wanted 10%")
    finally:
        query.stop()


def _wait_for_rows(spark: SparkSession, path: Path, count: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if spark.read.parquet(str(path)).count() >= count:
            return
        time.sleep(1)


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of all that it has started, which still run."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path("/proc", name, "stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        parents[int(name)] = int(fields[1])
        used[int(name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours) / tick


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        without_spark(directory, options.events)
        if options.spark:
            with_spark(directory, options.events)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
