"""Measures the Fifo beside the floor of the disk, in one run, in interleaved rounds.

    python benchmarks/fifo.py [--entries 1000000] [--rounds 5] [--path DIR] [--json]
    python benchmarks/fifo.py --backlog 10000000      cost at a backlog, beside 10,000 entries
    python benchmarks/fifo.py --wear                  bytes to the device for each byte of payload

Prints medians and ratios; the machine's absolute speed means little. What is pushed survives
`kill -9`. For peers, run `harness_adapter.py` in their harness.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import forebay

SIZE = 278
BATCH = 1000
DURABLE = 400
BACKLOG_ROUNDS = 11
SMALL_BACKLOG = 10_000
WEAR_ENTRIES = 50_000
WEAR_DURABLE = 2_000


class Bench:
    """One directory, one set of values, one measurement a method: seconds an entry."""

    def __init__(self, root: Path, entries: int) -> None:
        self.root = root
        self.entries = entries // BATCH * BATCH
        self.values = [os.urandom(SIZE) for _ in range(BATCH)]

    def fresh(self) -> Path:
        """Returns a new directory, with nothing of the round before still to be written."""
        path = Path(tempfile.mkdtemp(dir=self.root))
        os.sync()
        return path / "fifo"

    def timed(self, sync: str, work: Callable[[forebay.Fifo], int], backlog: int = 0) -> float:
        """Opens a fifo with a backlog and times some work; seconds for each of what it gives."""
        path = self.fresh()
        with forebay.Fifo(path, sync=sync) as fifo:
            for _ in range(backlog // BATCH):
                fifo.push_many(self.values)
            start = time.perf_counter()
            count = work(fifo)
            seconds = time.perf_counter() - start
        shutil.rmtree(path.parent)
        return seconds / count

    def push(self) -> float:
        """Single pushes under sync="os"."""

        def work(fifo: forebay.Fifo) -> int:
            push = fifo.push
            for _ in range(self.entries // BATCH):
                for value in self.values:
                    push(value)
            return self.entries

        return self.timed("os", work)

    def pop(self) -> float:
        """Single pops under sync="os"."""

        def work(fifo: forebay.Fifo) -> int:
            pop = fifo.pop
            for _ in range(self.entries):
                pop()
            return self.entries

        return self.timed("os", work, self.entries)

    def batch_push(self) -> float:
        """Pushes of a thousand at once under sync="os"."""

        def work(fifo: forebay.Fifo) -> int:
            for _ in range(self.entries // BATCH):
                fifo.push_many(self.values)
            return self.entries

        return self.timed("os", work)

    def batch_pop(self) -> float:
        """Pops of a thousand at once under sync="os"."""

        def work(fifo: forebay.Fifo) -> int:
            for _ in range(self.entries // BATCH):
                assert len(fifo.pop_many(BATCH)) == BATCH
            return self.entries

        return self.timed("os", work, self.entries)

    def push_and_pop(self) -> float:
        """A push and a pop in turn, before a backlog of a thousand."""

        def work(fifo: forebay.Fifo) -> int:
            push, pop = fifo.push, fifo.pop
            for _ in range(self.entries // BATCH):
                for value in self.values:
                    push(value)
                    pop()
            return self.entries

        return self.timed("os", work, BATCH)

    def durable_push(self) -> float:
        """Single pushes under sync="always"; the median of single calls."""
        path = self.fresh()
        with forebay.Fifo(path) as fifo:
            fifo.push(self.values[0])
            seconds = median_of_calls(lambda number: fifo.push(self.values[number]))
        shutil.rmtree(path.parent)
        return seconds

    def durable_pop(self) -> float:
        """Single pops under sync="always"; the median of single calls."""
        path = self.fresh()
        with forebay.Fifo(path) as fifo:
            fifo.push_many(self.values)
            fifo.pop()
            seconds = median_of_calls(lambda number: fifo.pop())
        shutil.rmtree(path.parent)
        return seconds

    def raw_durable(self) -> float:
        """The floor: pwrite and fdatasync on a file that is preallocated in the same way."""
        path = self.fresh()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, 32 << 20)
        os.fsync(descriptor)
        entry = bytes(SIZE + 32)

        def write(number: int) -> None:
            os.pwrite(descriptor, entry, number * len(entry))
            os.fdatasync(descriptor)

        seconds = median_of_calls(write)
        os.close(descriptor)
        shutil.rmtree(path.parent)
        return seconds


def median_of_calls(call: Callable[[int], object]) -> float:
    """Times each call on its own."""
    seconds = []
    for number in range(DURABLE):
        start = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def run(bench: Bench, rounds: int) -> dict[str, float]:
    """Measures everything in every round; gives medians in µs."""
    measured: dict[str, list[float]] = {}
    parts = [
        bench.push,
        bench.pop,
        bench.batch_push,
        bench.batch_pop,
        bench.push_and_pop,
        bench.raw_durable,
        bench.durable_push,
        bench.durable_pop,
    ]
    for _ in range(rounds):
        for part in parts:
            measured.setdefault(part.__name__, []).append(part() * 1e6)
    result = {name: statistics.median(numbers) for name, numbers in measured.items()}
    result["durable push / raw"] = result["durable_push"] / result["raw_durable"]
    result["durable pop / raw"] = result["durable_pop"] / result["raw_durable"]
    return result


def run_backlog(bench: Bench, backlog: int) -> dict[str, float]:
    """Times opening, and pops, of a large and a small backlog in turn."""
    paths = {}
    for count in (SMALL_BACKLOG, backlog):
        paths[count] = bench.fresh()
        with forebay.Fifo(paths[count], sync="os") as fifo:
            for _ in range(count // BATCH):
                fifo.push_many(bench.values)
    measured: dict[str, list[float]] = {}
    for _ in range(BACKLOG_ROUNDS):
        for count, path in paths.items():
            start = time.perf_counter()
            fifo = forebay.Fifo(path, sync="os")
            size = len(fifo)
            opened = time.perf_counter()
            for _ in range(500):
                fifo.pop()
            popped = time.perf_counter()
            fifo.close()
            assert size >= count - 500 * BACKLOG_ROUNDS
            measured.setdefault(f"open at {count}", []).append((opened - start) * 1e6)
            measured.setdefault(f"pop at {count}", []).append((popped - opened) / 500 * 1e6)
    result = {name: statistics.median(numbers) for name, numbers in measured.items()}
    for what in ("open", "pop"):
        ratio = result[f"{what} at {backlog}"] / result[f"{what} at {SMALL_BACKLOG}"]
        result[f"{what}: large / small"] = ratio
    result["peak memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def run_wear(bench: Bench) -> dict[str, float]:
    """Counts what reaches the device while entries are pushed singly and popped."""
    result: dict[str, float] = {}
    for sync, count in (("always", WEAR_DURABLE), ("interval", WEAR_ENTRIES), ("os", WEAR_ENTRIES)):
        for popping in (False, True):
            path = bench.fresh()
            before = written_bytes(path.parent)
            with forebay.Fifo(path, sync=sync) as fifo:
                for number in range(count):
                    fifo.push(bench.values[number % BATCH])
                    if popping:
                        fifo.pop()
            os.sync()
            what = "push and pop" if popping else "push"
            result[f"{sync}, {what}"] = (written_bytes(path.parent) - before) / (count * SIZE)
            shutil.rmtree(path.parent)
    return result


def written_bytes(path: Path) -> int:
    """Returns what the disk that a path is on has written since the machine started."""
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    fields = Path(f"/sys/dev/block/{name}/stat").read_text(encoding="ascii").split()
    return int(fields[6]) * 512


def main() -> None:
    """Runs what was asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backlog", type=int, default=None)
    parser.add_argument("--wear", action="store_true")
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.path, prefix="forebay-bench-"))
    bench = Bench(root, options.entries)
    try:
        if options.wear:
            result = run_wear(bench)
        elif options.backlog is not None:
            result = run_backlog(bench, options.backlog)
        else:
            result = run(bench, options.rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
        return
    for name, number in result.items():
        print(f"{name.replace('_', ' '):<36} {number:10.3f}")


if __name__ == "__main__":
    main()
