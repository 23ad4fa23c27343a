"""Measures the Log beside the floors of the disk, in one run, in interleaved rounds.

    python benchmarks/log.py [--records 1000000] [--rounds 5] [--path DIR] [--json]

Prints medians and ratios; the machine's absolute speed means little. Checksums are on, and what is
written survives `kill -9`: the clock of a writing round stops when another process, which waits on
a pipe, has counted all records. For peers, run `harness_adapter.py` in their harness.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import forebay

SIZE = 278
BATCH = 1000
DURABLE = 400
THREADS = 64
PREALLOCATED = 8 << 20
COUNTER = """
import sys, forebay
for line in sys.stdin:
    with forebay.read(line.strip()) as reader:
        print(len(reader), flush=True)
"""


class Counter:
    """Another process that counts the records of a queue when it is asked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COUNTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def count(self, path: Path) -> int:
        """Returns how many records the other process sees."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


class Bench:
    """One directory, one set of records, one measurement a method: seconds a record."""

    def __init__(self, root: Path, records: int) -> None:
        self.root = root
        self.records = records // BATCH * BATCH
        self.values = [number.to_bytes(8, "big") + os.urandom(SIZE - 8) for number in range(BATCH)]
        self.counter = Counter()
        self.kept: Path | None = None
        self.facts: dict[str, float] = {}

    def fresh(self) -> Path:
        """Returns a new directory, with nothing of the round before still to be written."""
        path = Path(tempfile.mkdtemp(dir=self.root))
        os.sync()
        return path / "log"

    def single_append(self) -> float:
        """Single appends under sync="os", until another process can count them."""
        path = self.fresh()
        with forebay.Log(path, sync="os") as log:
            append = log.append
            start = time.perf_counter()
            for _ in range(self.records // BATCH):
                for value in self.values:
                    append(value)
            assert self.counter.count(path) == self.records
            seconds = time.perf_counter() - start
        self.keep(path)
        return seconds / self.records

    def batch_append(self) -> float:
        """Batches of a thousand under sync="os", until another process can count them."""
        path = self.fresh()
        with forebay.Log(path, sync="os") as log:
            start = time.perf_counter()
            for _ in range(self.records // BATCH):
                log.append_many(self.values)
            assert self.counter.count(path) == self.records
            seconds = time.perf_counter() - start
        shutil.rmtree(path.parent)
        return seconds / self.records

    def keep(self, path: Path) -> None:
        """Keeps one full log for the reading measurements."""
        if self.kept is not None:
            shutil.rmtree(self.kept.parent)
        self.kept = path
        size = sum(file.stat().st_size for file in path.glob("0*"))
        self.facts["bytes an entry over the payload"] = size / self.records - SIZE

    def scan(self) -> float:
        """A verified scan to bytes objects."""
        assert self.kept is not None
        count = 0
        start = time.perf_counter()
        with forebay.read(self.kept) as reader:
            for _ in reader.values():
                count += 1
        seconds = time.perf_counter() - start
        assert count == self.records
        return seconds / count

    def reopen(self) -> float:
        """Opening a million records after a clean close, and their number."""
        assert self.kept is not None
        start = time.perf_counter()
        log = forebay.Log(self.kept)
        assert len(log) == self.records
        seconds = time.perf_counter() - start
        log.close()
        return seconds

    def durable_append(self) -> float:
        """Single appends under sync="always"; the median of single calls."""
        path = self.fresh()
        with forebay.Log(path) as log:
            log.append(self.values[0])
            seconds = median_of_calls(lambda number: log.append(self.values[number]))
        shutil.rmtree(path.parent)
        return seconds

    def raw_durable(self) -> float:
        """The floor of that: pwrite and fdatasync on a file preallocated in the same way."""
        path = self.fresh()
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, PREALLOCATED)
        os.fsync(descriptor)
        frame = bytes(SIZE + 12)

        def write(number: int) -> None:
            os.pwrite(descriptor, frame, 34 + number * len(frame))
            os.fdatasync(descriptor)

        seconds = median_of_calls(write)
        os.close(descriptor)
        shutil.rmtree(path.parent)
        return seconds

    def raw_write(self) -> float:
        """The floor of writing: 1 MiB at a time, not synced, no checksum."""
        path = self.fresh()
        chunk = os.urandom(1 << 20)
        count = max(1, self.records * SIZE >> 20)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        start = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, chunk)
        seconds = time.perf_counter() - start
        os.close(descriptor)
        shutil.rmtree(path.parent)
        return seconds / (count * (1 << 20) / SIZE)

    def raw_single_write(self) -> float:
        """The floor of single appends: one call a record, not synced, no checksum."""
        path = self.fresh()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        start = time.perf_counter()
        for _ in range(self.records // BATCH):
            for value in self.values:
                os.write(descriptor, value)
        seconds = time.perf_counter() - start
        os.close(descriptor)
        shutil.rmtree(path.parent)
        return seconds / self.records

    def raw_read(self) -> float:
        """The floor of a scan: the same files, 1 MiB at a time."""
        assert self.kept is not None
        start = time.perf_counter()
        for file in sorted(self.kept.glob("0*")):
            descriptor = os.open(file, os.O_RDONLY)
            while os.read(descriptor, 1 << 20):
                pass
            os.close(descriptor)
        return (time.perf_counter() - start) / self.records

    def one_thread_durable(self) -> float:
        """Durable appends of one thread, seconds a record."""
        return self.durable_threads(1)

    def many_threads_durable(self) -> float:
        """Durable appends of 64 threads, seconds a record."""
        return self.durable_threads(THREADS)

    def durable_threads(self, threads: int) -> float:
        """Durable appends of some threads at once, each waiting for its own record."""
        path = self.fresh()
        each = max(1, 3200 // threads) if threads > 1 else DURABLE
        with forebay.Log(path) as log:
            log.append(self.values[0])
            before = log.info().syncs
            go = threading.Barrier(threads + 1)

            def work() -> None:
                go.wait()
                for number in range(each):
                    log.append(self.values[number])

            workers = [threading.Thread(target=work) for _ in range(threads)]
            for worker in workers:
                worker.start()
            go.wait()
            start = time.perf_counter()
            for worker in workers:
                worker.join()
            seconds = time.perf_counter() - start
            syncs = log.info().syncs - before
        if threads > 1:
            self.facts[f"records a sync, {threads} threads"] = threads * each / syncs
        shutil.rmtree(path.parent)
        return seconds / (threads * each)


def median_of_calls(call: Callable[[int], object]) -> float:
    """Times each call on its own."""
    seconds = []
    for number in range(DURABLE):
        start = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.path, prefix="forebay-bench-"))
    try:
        print_table(run(Bench(root, options.records), options.rounds), as_json=options.json)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run(bench: Bench, rounds: int) -> dict[str, float]:
    """Measures everything in every round; gives medians in µs, and facts."""
    measured: dict[str, list[float]] = {}
    facts: dict[str, list[float]] = {}
    parts = [
        bench.raw_single_write,
        bench.single_append,
        bench.raw_write,
        bench.batch_append,
        bench.raw_read,
        bench.scan,
        bench.reopen,
        bench.raw_durable,
        bench.durable_append,
        bench.one_thread_durable,
        bench.many_threads_durable,
    ]
    for _ in range(rounds):
        for part in parts:
            measured.setdefault(part.__name__, []).append(part() * 1e6)
        for name, number in bench.facts.items():
            facts.setdefault(name, []).append(number)
    bench.counter.close()
    return {name: statistics.median(numbers) for name, numbers in {**measured, **facts}.items()}


def print_table(result: dict[str, float], *, as_json: bool) -> None:
    """Prints what was measured, and the ratios that matter."""
    result["single append / raw"] = result["single_append"] / result["raw_single_write"]
    result["batch append / raw"] = result["batch_append"] / result["raw_write"]
    result["scan / raw"] = result["scan"] / result["raw_read"]
    result["durable append / raw"] = result["durable_append"] / result["raw_durable"]
    result["64 threads / one thread"] = (
        result["one_thread_durable"] / result["many_threads_durable"]
    )
    if as_json:
        print(json.dumps(result))
        return
    for name, number in result.items():
        unit = "" if " " in name else " µs"
        print(f"{name.replace('_', ' '):<36} {number:10.3f}{unit}")


if __name__ == "__main__":
    main()
