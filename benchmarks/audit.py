"""An audit beside a raw read of the same files by the same tasks, in one Spark session.

    python benchmarks/audit.py [--queues 4] [--rows 500000] [--rounds 5] [--cold] [--dir DIR]

Prints medians of interleaved rounds, by the clock and by the CPU time of the tasks, and the ratio
of raw to audit: 1 means that verifying costs nothing. With --cold the files are taken out of the
page cache before each round, so that both read from the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
from benchmarks.spark import values
from forebay.pipelines.maintenance import audit as module
from forebay.spark import session

CHUNK_BYTES = 1 << 20


def raw(item: tuple[str, str | None]) -> Iterator[dict[str, Any]]:
    """Reads every file of a queue."""
    began, size = time.process_time(), 0
    for file in Path(item[0]).iterdir():
        with open(file, "rb", buffering=0) as opened:
            while data := opened.read(CHUNK_BYTES):
                size += len(data)
    yield {"bytes": size, "cpu": time.process_time() - began}


def verified(item: tuple[str, str | None]) -> Iterator[dict[str, Any]]:
    """Audits a queue."""
    began = time.process_time()
    (row,) = module.audit_one(item)
    assert not row["queue"]["wrong"]
    yield {"bytes": row["queue"]["bytes"], "cpu": time.process_time() - began}


def make(directory: Path, kind: str, queues: int, rows: int) -> list[str]:
    """Makes queues of one kind."""
    payloads = values(rows)
    paths = [str(directory / f"{kind}-{number}") for number in range(queues)]
    for path in paths:
        if kind == "log":
            with forebay.Log(path, sync="os") as log:
                log.append_many(payloads)
        else:
            with forebay.Fifo(path, sync="os", max_bytes=None) as fifo:
                for first in range(0, rows, 10_000):
                    fifo.push_many(payloads[first : first + 10_000])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.dir))
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for kind in ("log", "fifo"):
            paths = make(directory, kind, options.queues, options.rows)
            sizes = [(path, sum(f.stat().st_size for f in Path(path).iterdir())) for path in paths]
            tasks = [[(path, None) for path in task] for task in module.divide(sizes)]
            report(kind, measure(spark, tasks, options.rounds, cold=options.cold))
            for path in paths:
                shutil.rmtree(path)
    finally:
        spark.stop()
        shutil.rmtree(directory)


def evict(paths: list[str]) -> None:
    """Takes the files of queues out of the page cache."""
    for path in paths:
        for file in Path(path).iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(
    spark: Any, tasks: Any, rounds: int, *, cold: bool
) -> dict[str, list[tuple[float, float, int]]]:
    """Runs both in turn; the first round warms up."""
    found: dict[str, list[tuple[float, float, int]]] = {"raw read": [], "audit": []}
    works: tuple[Callable[[Any], Iterator[dict[str, Any]]], ...] = (raw, verified)
    for number in range(rounds + 1):
        for name, work in zip(found, works, strict=True):
            if cold:
                evict([path for task in tasks for path, _ in task])
            began = time.perf_counter()
            rows = module.run_tasks(spark, tasks, work)
            if number:
                cpu = sum(row["cpu"] for row in rows)
                size = sum(row["bytes"] for row in rows)
                found[name].append((time.perf_counter() - began, cpu, size))
    return found


def report(kind: str, found: dict[str, list[tuple[float, float, int]]]) -> None:
    for name, rounds in found.items():
        wall, cpu = (statistics.median(each[index] for each in rounds) for index in (0, 1))
        size = rounds[0][2] / 1e6
        print(f"{kind:5} {name:9} {size:7.0f} MB {wall:7.2f} s {cpu:7.2f} s of CPU in the tasks")
    ratios = [
        statistics.median(each[index] for each in found["raw read"])
        / statistics.median(each[index] for each in found["audit"])
        for index in (0, 1)
    ]
    print(f"{kind:5} raw / audit: {ratios[0]:.2f} by the clock, {ratios[1]:.2f} by CPU")


if __name__ == "__main__":
    main()
