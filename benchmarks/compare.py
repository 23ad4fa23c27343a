"""Compares the CPU time of every verb between two checkouts, in interleaved rounds.

    python benchmarks/compare.py OLD NEW [--rounds 9] [--count 20000]

OLD and NEW are checkouts with compiled kernels. Each round measures every verb once in each, in a
process of its own, the order of the two changing from round to round. Printed are the medians in µs
of CPU time a record and their ratio: above 1, the new one is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUE = b"x" * 278
BATCH = 1_000
# A durable call waits for the disk: fewer of them say as much.
DURABLE_SHARE = 20

Measure = Callable[[Path, str, int], dict[str, float]]


def measure_log(path: Path, sync: str, count: int) -> dict[str, float]:
    import forebay

    with forebay.Log(path, sync=sync) as log:
        rows = {"append": timed(count, lambda: repeat(count, log.append, VALUE))}
        batches = count // BATCH or 1
        batch = [VALUE] * (count // batches)
        rows["append_many"] = timed(count, lambda: repeat(batches, log.append_many, batch))
        consumer = log.consumer("c")
        total = len(log)
        rows["read"] = timed(total, lambda: drain(lambda: consumer.read(BATCH)))
        rows["commit"] = timed(1, consumer.commit)
    rows["open"] = timed(1, lambda: forebay.Log(path, sync=sync).close())
    rows["forebay.read"] = timed(total, lambda: scan(path))
    return rows


def measure_fifo(path: Path, sync: str, count: int) -> dict[str, float]:
    import forebay

    with forebay.Fifo(path, sync=sync) as fifo:
        rows = {"push": timed(count, lambda: repeat(count, fifo.push, VALUE))}
        batches = count // BATCH or 1
        batch = [VALUE] * (count // batches)
        rows["push_many"] = timed(count, lambda: repeat(batches, fifo.push_many, batch))
        rows["forebay.read"] = timed(len(fifo), lambda: scan(path))
        rows["pop"] = timed(count // 2, lambda: repeat(count // 2, fifo.pop))
        takes = count // 10
        rows["take"] = timed(takes, lambda: take(fifo, takes))
        left = len(fifo)
        rows["pop_many"] = timed(left, lambda: drain(lambda: fifo.pop_many(BATCH)))
    rows["open"] = timed(1, lambda: forebay.Fifo(path, sync=sync).close())
    return rows


def measure_deadline(path: Path, sync: str, count: int) -> dict[str, float]:
    import forebay

    with forebay.DeadlineQueue(path, sync=sync) as queue:
        rows = {"enqueue": timed(count, lambda: repeat(count, queue.enqueue, VALUE))}
        batches = count // BATCH or 1
        batch = [VALUE] * (count // batches)
        rows["enqueue_many"] = timed(count, lambda: repeat(batches, queue.enqueue_many, batch))
        items: list[Any] = []
        half = count // 2
        rows["dequeue"] = timed(half, lambda: items.extend(queue.dequeue() for _ in range(half)))
        rows["release"] = timed(half, lambda: [queue.release(item) for item in items])
        left = queue.pending
        more: list[Any] = []
        rows["dequeue_many"] = timed(left, lambda: more.extend(queue.dequeue_many(left)))
        rows["release_many"] = timed(left, lambda: queue.release_many(more))
        queue.enqueue_many([VALUE] * count)
    rows["open"] = timed(1, lambda: forebay.DeadlineQueue(path, sync=sync).close())
    rows["forebay.read"] = timed(count, lambda: scan(path))
    return rows


def measure_beats(path: Path, sync: str, count: int) -> dict[str, float]:
    import forebay

    count = max(100, count // 10)
    event = {"fields": {"message": "hello " * 30, "door": 4}}
    with beats_queue(forebay)(path, sync=sync) as queue:
        rows = {"put": timed(count, lambda: repeat(count, queue.put, event))}
        rows["put_many"] = timed(count, lambda: queue.put_many([event] * count))
        rows["forebay.read"] = timed(2 * count, lambda: scan(path))
        batches: list[Any] = []
        rows["read"] = timed(2 * count, lambda: drain(lambda: note(batches, queue.read(100))))
        rows["ack"] = timed(len(batches), lambda: [batch.ack() for batch in batches])
    rows["open"] = timed(1, lambda: beats_queue(forebay)(path, sync=sync).close())
    return rows


def measure_aio(path: Path, sync: str, count: int) -> dict[str, float]:
    """Puts by a task, by 64 of them, and by a thread beside it, for what the loop costs."""
    import asyncio

    import forebay.aio

    rows = {}

    async def put(name: str, number: int) -> None:
        made = getattr(forebay.aio, name)(path / name, sync=sync)
        async with made as queue:
            call = getattr(queue, _PUTS[name])
            blocking = getattr(queue.queue, _PUTS[name])
            rows[f"{name} blocking"] = timed(number, lambda: repeat(number, blocking, VALUE))
            start = time.process_time()
            for _ in range(number):
                await call(VALUE)
            rows[name] = (time.process_time() - start) / number * 1e6
            start = time.process_time()
            for _ in range(number // 64 + 1):
                await asyncio.gather(*(call(VALUE) for _ in range(64)))
            rows[f"{name} x 64"] = (time.process_time() - start) / (number // 64 + 1) / 64 * 1e6

    path.mkdir()
    for name in _PUTS:
        asyncio.run(put(name, max(64, count // 5)))
    return rows


_PUTS = {"Log": "append", "Fifo": "push", "DeadlineQueue": "enqueue"}


def beats_queue(package: Any) -> Any:
    """Returns the class, which had another name before."""
    return getattr(package, "BeatsQueue", None) or package.EventQueue


KINDS: dict[str, Measure] = {
    "log": measure_log,
    "fifo": measure_fifo,
    "deadline": measure_deadline,
    "beats": measure_beats,
    "aio": measure_aio,
}
POLICIES = ("always", "os")


def timed(count: int, action: Callable[[], object]) -> float:
    """Returns the µs of CPU time that an action takes, divided by a count."""
    start = time.process_time()
    action()
    return (time.process_time() - start) / max(1, count) * 1e6


def repeat(count: int, call: Callable[..., object], *arguments: object) -> None:
    for _ in range(count):
        call(*arguments)


def drain(read: Callable[[], Any]) -> None:
    while read():
        pass


def note(batches: list[Any], batch: Any) -> Any:
    if batch:
        batches.append(batch)
    return batch


def take(fifo: Any, count: int) -> None:
    for _ in range(count):
        with fifo.take():
            pass


def scan(path: Path) -> None:
    import forebay

    with forebay.read(path) as reader:
        for _ in reader:
            pass


def measure_all(count: int) -> dict[str, float]:
    rows = {}
    for kind, measure in KINDS.items():
        for policy in POLICIES:
            number = count // DURABLE_SHARE if policy == "always" else count
            with tempfile.TemporaryDirectory() as scratch:
                found = measure(Path(scratch, "q"), policy, number)
            rows.update({f"{kind} {policy} {verb}": cost for verb, cost in found.items()})
    return rows


def measure_in(checkout: str, count: int) -> dict[str, float]:
    """Measures in a process of its own, with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout, "src"))}
    command = [sys.executable, __file__, "--measure", "--count", str(count)]
    result = subprocess.run(command, env=environment, capture_output=True, check=True)
    return dict(json.loads(result.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_all(options.count)))
        return
    old, new = options.checkouts
    found: dict[str, dict[str, list[float]]] = {old: {}, new: {}}
    for number in range(options.rounds):
        for checkout in (old, new) if number % 2 else (new, old):
            for verb, cost in measure_in(checkout, options.count).items():
                found[checkout].setdefault(verb, []).append(cost)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'µs of CPU a record':<32} {'old':>9} {'new':>9}  old/new")
    for verb, costs in found[old].items():
        before, after = statistics.median(costs), statistics.median(found[new][verb])
        print(f"{verb:<32} {before:9.2f} {after:9.2f}  {before / after:7.2f}")


if __name__ == "__main__":
    main()
