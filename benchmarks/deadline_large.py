"""Fills a deadline queue with many items, requeues half of them, and drains it in order.

    python benchmarks/deadline_large.py DIRECTORY [--items 10000000] [--page PAGE.html]

Items of 278 bytes, deadlines over 24 hours, batches of 1,000, `sync="os"`. Tells what an item costs
in each part, the memory of the process, the disk beside the bytes of the items that are alive, and
how long a restart takes. With `--page` it plots memory and disk over time. The first line is the
same with 100,000 items, to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import forebay

SIZE = 278
BATCH = 1000
DAY_MS = 24 * 3600 * 1000
MIB = 1 << 20
VENDOR = Path(__file__).resolve().parent.parent / "examples" / "tour" / "vendor"


class Watch:
    """Samples memory, disk and live bytes while a part runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._start = time.monotonic()
        self.rows: list[tuple[float, float, float, float]] = []
        self.queue: forebay.DeadlineQueue | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def sample(self) -> tuple[float, float, float, float]:
        queue = self.queue
        live = len(queue) * SIZE / MIB if queue is not None else self.rows[-1][3]
        row = (time.monotonic() - self._start, memory_mib(), disk_mib(self._path), live)
        self.rows.append(row)
        return row

    def _run(self) -> None:
        while not self._over.wait(1.0):
            self.sample()


def memory_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def disk_mib(path: str) -> float:
    size = 0
    for entry in os.scandir(path):
        try:
            size += entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return size / MIB


def timed(name: str, count: int, work: Callable[[], object]) -> float:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    each = wall / count * 1e6
    print(f"  {name:10} {each:6.2f} us an item, {cpu / count * 1e6:6.2f} of CPU", flush=True)
    return each


def fill(queue: forebay.DeadlineQueue, count: int) -> None:
    chance = random.Random(1)
    value = chance.randbytes(SIZE)
    end = int(time.time() * 1000)
    for _ in range(count // BATCH):
        # Cheaper than a call for each: this is not what is to be measured.
        numbers = memoryview(chance.randbytes(4 * BATCH)).cast("I")
        deadlines = [end - number % DAY_MS for number in numbers]
        queue.enqueue_many([value] * BATCH, deadline_ms=deadlines)


def requeue(queue: forebay.DeadlineQueue, count: int) -> None:
    for _ in range(count // BATCH):
        for item in queue.dequeue_many(BATCH):
            queue.requeue(item)


def drain(queue: forebay.DeadlineQueue, count: int) -> None:
    last = (0, 0)
    left = count
    while left:
        items = queue.dequeue_many(BATCH)
        keys = [(item.deadline_ms, item.id) for item in items]
        assert [last, *keys] == sorted([last, *keys]), "not in order"
        last = keys[-1]
        queue.release_many(items)
        left -= len(items)
    assert len(queue) == 0


def settle(queue: forebay.DeadlineQueue, watch: Watch) -> None:
    """Waits until merging has caught up, and tells what the disk holds then."""
    merges = -1
    while merges != (now := queue.info().merges):
        merges = now
        with queue._upkeep.work:
            queue.maintain()
    _, memory, disk, live = watch.sample()
    bound = 2 * live + 256
    print(
        f"             memory {memory:5.0f} MiB, disk {disk:6.0f} MiB, live {live:6.0f} MiB"
        f" (bound {bound:6.0f}), {queue.info().runs} runs",
        flush=True,
    )


def story(path: str, count: int) -> tuple[dict[str, float], Watch]:
    """Goes through all parts; gives what an item costs in each."""
    shutil.rmtree(path, ignore_errors=True)
    costs: dict[str, float] = {}
    queue = forebay.DeadlineQueue(path, sync="os", lease_seconds=3600)
    watch = Watch(path)
    watch.queue = queue
    try:
        print(f"{count:,} items", flush=True)
        costs["enqueue"] = timed("enqueue", count, lambda: fill(queue, count))
        settle(queue, watch)
        costs["requeue"] = timed("requeue", count // 2, lambda: requeue(queue, count // 2))
        settle(queue, watch)
        watch.queue = None
        start = time.perf_counter()
        queue.close()
        closed = time.perf_counter()
        queue = forebay.DeadlineQueue(path, sync="os", lease_seconds=3600)
        opened = time.perf_counter()
        assert queue.pending == count
        watch.queue = queue
        print(f"  restart    {closed - start:.2f} s to close, {opened - closed:.2f} s to open")
        costs["drain"] = timed("drain", count, lambda: drain(queue, count))
        settle(queue, watch)
    finally:
        watch.stop()
        queue.close()
    print(f"  most memory {max(row[1] for row in watch.rows):.0f} MiB", flush=True)
    return costs, watch


def page(rows: list[tuple[float, float, float, float]]) -> str:
    """Returns a page with two plots."""
    times, memory, disk, live = (list(column) for column in zip(*rows, strict=True))
    bound = [2 * each + 256 for each in live]
    series = [[times, memory], [times, disk, live, bound]]
    script = """
      const names = [["memory, MiB"], ["disk, MiB", "live, MiB", "2 x live + 256 MiB"]];
      const colors = ["#1f6feb", "#2da44e", "#cf222e"];
      data.forEach((columns, at) => {
        const lines = names[at].map((label, n) => ({ label, stroke: colors[n], width: 2 }));
        new uPlot({ width: 900, height: 300, scales: { x: { time: false } },
          series: [{ label: "seconds" }, ...lines] }, columns, document.body);
      });
    """
    style = (VENDOR / "uPlot.min.css").read_text()
    uplot = (VENDOR / "uPlot.iife.min.js").read_text()
    return (
        f"<!doctype html><meta charset=utf-8><title>A large deadline queue</title>"
        f"<style>{style}</style><body><script>{uplot}</script>"
        f"<script>const data = {json.dumps(series)};{script}</script>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="is removed first, if it is there")
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--page", help="write the plots here")
    options = parser.parse_args()
    small, _ = story(options.directory, 100_000)
    large, watch = story(options.directory, options.items)
    ratios = ", ".join(f"{name} {large[name] / small[name]:.2f}" for name in large)
    print(f"ratio of the costs: {ratios}")
    if options.page:
        Path(options.page).write_text(page(watch.rows))
    shutil.rmtree(options.directory)


if __name__ == "__main__":
    main()
