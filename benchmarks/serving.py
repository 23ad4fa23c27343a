"""What servers of queues cost: idle queues, restarts, pops, and a polite client in a crowd.

    python benchmarks/serving.py [idle] [restart] [pops] [polite] [--queues 1000] [--items 1000000]

`idle`: memory and CPU time of the server for each queue that is open and idle, of all four kinds.
`restart`: a server with so many items in a queue is killed; how long until the next one answers.
`pops`: pops of 64 by a client, as a multiple of the same in a process that owns the queue.
`polite`: awaited puts of one client beside four that flood the server, as a multiple of alone.

Times of a busy machine say little: CPU times are printed beside them, and the load.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
from forebay.client import queues as client

VALUE = b"x" * 278
IDLE_SECONDS = 20
ROUNDS = 5


@contextlib.contextmanager
def served(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `forebay serve` until the end of the block; yields it when it answers."""
    command = [sys.executable, "-m", "forebay", "serve", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield server
        finally:
            client.disconnect()
            server.terminate()


def facts(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in rows)
    return {
        "cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "kilobytes": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "wakeups": int(status["voluntary_ctxt_switches"]),
    }


def idle(folder: Path, queues: int, items: int) -> None:
    root = folder / "idle"
    kinds: list[Any] = [forebay.Fifo, forebay.Log, forebay.DeadlineQueue, forebay.BeatsQueue]
    with served(root) as server:
        empty = facts(server.pid)
        for number in range(queues):
            kind = kinds[number % len(kinds)]
            with kind(root / f"q{number}", shared=True, sync="os") as queue:
                queue.put({"fields": {"a": 1}} if kind is forebay.BeatsQueue else VALUE)
    with served(root) as server:
        time.sleep(5)
        before = facts(server.pid)
        time.sleep(IDLE_SECONDS)
        after = facts(server.pid)
    memory = (after["kilobytes"] - empty["kilobytes"]) / queues
    cpu = (after["cpu"] - before["cpu"]) / IDLE_SECONDS / queues * 1e6
    wakeups = after["wakeups"] - before["wakeups"]
    print(f"idle: {queues} queues, {memory:.1f} KB each, {cpu:.2f} µs of CPU a second each,")
    print(f"      {after['threads']:.0f} threads, {wakeups:.0f} wake-ups in {IDLE_SECONDS} s")


def restart(folder: Path, queues: int, items: int) -> None:
    kinds: list[Any] = [forebay.Fifo, forebay.Log, forebay.DeadlineQueue]
    for kind in kinds:
        root = folder / f"restart-{kind.__name__}"
        with served(root) as server:
            with kind(root / "q", shared=True, sync="os") as queue:
                for _ in range(items // 5_000):
                    queue.put_many([VALUE] * 5_000)
            server.kill()
        began = time.monotonic()
        with served(root) as server, kind(root / "q", shared=True) as queue:
            count = len(queue)
            took, cpu = time.monotonic() - began, facts(server.pid)["cpu"]
        print(f"restart: {kind.__name__} of {count:,}: {took:.2f} s, {cpu:.2f} s of CPU")


def pops(folder: Path, queues: int, items: int) -> None:
    def popped(fifo: forebay.Fifo) -> float:
        for _ in range(20):
            fifo.push_many([VALUE] * 640)
        began = time.perf_counter()
        while fifo.pop_many(64):
            pass
        return (time.perf_counter() - began) / (20 * 640) * 1e6

    ratios = []
    with (
        served(folder / "pops"),
        forebay.Fifo(folder / "pops" / "shared", shared=True, sync="os") as shared,
        forebay.Fifo(folder / "owned", sync="os") as owned,
    ):
        for _ in range(ROUNDS):
            ratios.append((popped(shared), popped(owned)))
    one, other = (statistics.median(each) for each in zip(*ratios, strict=True))
    ratio = statistics.median(one / other for one, other in ratios)
    print(f"pops of 64: {one:.2f} µs a record shared, {other:.2f} owned: {ratio:.1f} times")


def flood(path: Path) -> None:
    with forebay.Fifo(path, shared=True) as fifo:
        while True:
            fifo.push_many([VALUE] * 64)


def polite(folder: Path, queues: int, items: int) -> None:
    def waits(fifo: forebay.Fifo, count: int) -> list[float]:
        found = []
        for _ in range(count):
            began = time.perf_counter()
            fifo.push(VALUE)
            found.append((time.perf_counter() - began) * 1e6)
        return sorted(found)

    with served(folder / "polite"):
        fifo = forebay.Fifo(folder / "polite" / "polite", shared=True, sync="os")
        options: dict[str, Any] = {"sync": "os", "max_bytes": 200 << 20, "when_full": "drop_oldest"}
        forebay.Fifo(folder / "polite" / "flood", shared=True, **options).close()
        with fifo:
            alone = waits(fifo, 2_000)
            crowd = [
                multiprocessing.Process(target=flood, args=[folder / "polite" / "flood"])
                for _ in range(4)
            ]
            for each in crowd:
                each.start()
            time.sleep(1)
            beside = waits(fifo, 2_000)
            for each in crowd:
                each.kill()
                each.join()
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        one, other = (each[int(len(each) * part)] for each in (alone, beside))
        print(f"polite {name}: {one:.0f} µs alone, {other:.0f} beside 4: {other / one:.1f} times")


MEASURES = {"idle": idle, "restart": restart, "pops": pops, "polite": polite}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], help="default: all")
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="forebay-serving-") as folder:
        for name in options.measures or MEASURES:
            MEASURES[name](Path(folder), options.queues, options.items)


if __name__ == "__main__":
    main()
