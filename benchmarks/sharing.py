"""Posts and requests of shared queues, beside queues of one's own, Redis and beanstalkd.

    python benchmarks/sharing.py [--rounds 5] [--dir DIR] [--peers VENV] [--restart 1000000]

All figures are ratios in one run, of 278-byte records; each round measures everything once. CPU is
that of both processes where it does not say otherwise: on a loaded machine, wall time tells little.
Redis (its own log without syncs, or with one for each) and beanstalkd (the same) are run on Unix
sockets if they are installed. Their clients, `redis` with `hiredis` and `greenstalk`, are those of
the environment that `--peers` names, because they are none of ours. What is missing is skipped,
with a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from peers import CLIENTS, MANY, VALUE, cost, median_wall, times, together

import forebay
import forebay.aio
from forebay.client.queues import disconnect


class Row(NamedTuple):
    """A ratio, and what it should be."""

    name: str
    value: float
    goal: str


def server_of(path: Path) -> int | None:
    """Returns the process that serves a queue."""
    wanted = os.stat(path / "server.log")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found = os.stat(process / "fd" / "2")
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return int(process.name)
    return None


def then(work: Callable[[], None], end: Callable[[], object]) -> Callable[[], None]:
    """Returns work that ends with a call."""

    def both() -> None:
        work()
        end()

    return both


@contextlib.contextmanager
def fifos(directory: Path, sync: str) -> Iterator[tuple[Any, Any, int | None]]:
    """Opens a fifo of this process and a shared one."""
    own, shared = directory / "own", directory / "shared"
    with (
        forebay.Fifo(own, sync=sync) as mine,  # type: ignore[arg-type]
        forebay.Fifo(shared, shared=True, sync=sync) as served,  # type: ignore[arg-type]
    ):
        served.post(VALUE)
        served.flush()
        yield mine, served, server_of(shared)


def empty(fifo: Any) -> None:
    """Takes all entries out of a fifo."""
    while fifo.pop_many(128):
        pass


async def in_flight(path: Path, batches: int) -> None:
    """Pushes batches of 64 with 16 requests under way."""
    async with forebay.aio.Fifo(path, shared=True, sync="os") as fifo:

        async def some() -> None:
            for _ in range(batches // 16):
                await fifo.push_many(MANY)

        await asyncio.gather(*(some() for _ in range(16)))


def weak(directory: Path, peers: Peers) -> Iterator[Row]:
    """Measures what does not wait for the disk."""
    with fifos(directory, "os") as (mine, served, server):
        count = 20_000
        file = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT, 0o600)
        bare = cost(count, times(count, os.write, file, VALUE))
        os.close(file)
        push = cost(count, times(count, mine.push, VALUE))
        post = cost(count, then(times(count, served.post, VALUE), served.flush), server)
        yield Row("post / os.write: caller's CPU", post.caller / bare.caller, "<= 0.35")
        yield Row("post / own push: caller's CPU", post.caller / push.caller, "<= 0.35")
        yield Row("post / own push: CPU of both sides", post.both / push.both, "<= 1.0")
        yield Row("post / own push: wall", post.wall / push.wall, "<= 0.7")
        own = cost(count, times(count // 64, mine.push_many, MANY))
        flying = cost(count, lambda: asyncio.run(in_flight(directory / "shared", count // 64)))
        batches = cost(count, times(count // 64, served.push_many, MANY), server)
        yield Row("own push_many(64) / 16 x 64 in flight: wall", own.wall / flying.wall, ">= 1.5")
        yield Row("own push_many(64) / post: wall", own.wall / post.wall, ">= 2")
        awaited = median_wall(1000, served.push, VALUE)
        single = cost(1000, times(1000, served.push, VALUE), server)
        for name, found in peers.weak():
            if found.get("batch"):
                yield Row(
                    f"{name} x 64 / push_many(64): CPU", found["batch"] / batches.both, ">= 4"
                )
            goal = ">= 10" if name == "Redis" else ">= 30"
            yield Row(f"{name} pipeline / post: CPU", found["pipeline"] / post.both, goal)
            goal = ">= 4 (5)" if name == "Redis" else ">= 1.8 (2)"
            yield Row(f"{name} put / push, awaited: CPU", found["work"] / single.both, goal)
            yield Row(f"{name} put / push, awaited: p50", found["single"] / awaited, goal)
        empty(mine)
        empty(served)


def push_on(path: Path, count: int) -> None:
    """Pushes durably, one by one, in a process of its own."""
    with forebay.Fifo(path, shared=True) as fifo:
        times(count, fifo.push, VALUE)()


def strong(directory: Path, peers: Peers) -> Iterator[Row]:
    """Measures what waits for the disk."""
    with fifos(directory, "always") as (mine, served, _):
        one = cost(100, times(100, mine.push, VALUE))
        posted = cost(4096, then(times(4096, served.post, VALUE), served.flush))
        yield Row("own durable push / posted and flushed: wall", one.wall / posted.wall, ">= 100")
        before = served.info()
        each = 100
        wall = together(CLIENTS * each, push_on, directory / "shared", each)
        after = served.info()
        syncs = max(1, after.syncs - before.syncs)
        yield Row("16 clients, durable: records a sync", (after.end - before.end) / syncs, ">= 12")
        yield Row("own durable push / 16 clients: wall", one.wall / wall, ">= 8")
        for name, found in peers.strong(each):
            yield Row(f"{name}, durable / 16 clients: wall", found["single"] / wall, ">= 4")


def post_and_die(path: Path, ready: Any, go: Any) -> None:
    """Leaves records in a file that no server has taken."""
    fifo = forebay.Fifo(path, shared=True, sync="os")
    fifo.post(VALUE)
    fifo.flush()
    ready.release()
    go.wait()
    times(999, fifo.post, VALUE)()
    os.kill(os.getpid(), signal.SIGKILL)


def restart(directory: Path, items: int) -> Iterator[Row]:
    """Measures a restart with many entries, and files of 64 clients that were killed with it."""
    path, count, context = directory / "large", 64, get_context("fork")
    with forebay.Fifo(path, sync="os") as fifo:
        for _ in range(items // 1000):
            fifo.push_many([VALUE] * 1000)
    with forebay.Fifo(path, shared=True, sync="os") as fifo:
        len(fifo)
        server = server_of(path)
        assert server is not None
        ready, go = context.Semaphore(0), context.Event()
        processes = [
            context.Process(target=post_and_die, args=(path, ready, go)) for _ in range(count)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            ready.acquire()
        # Stopped, it takes nothing more.
        os.kill(server, signal.SIGSTOP)
        go.set()
        for process in processes:
            process.join()
        os.kill(server, signal.SIGKILL)
        start = time.perf_counter()
        with contextlib.suppress(forebay.ServerGone):
            len(fifo)
        found = len(fifo)
        seconds = time.perf_counter() - start
        assert found == items // 1000 * 1000 + 1000 * count, found
        yield Row(f"restart, {found:,} entries, {count} files: seconds", seconds, "<= 1")


def wait_for(path: Path) -> None:
    """Waits until somebody listens on a socket."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as tried, contextlib.suppress(OSError):
            tried.connect(str(path))
            return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on {path}")


class Peers:
    """Redis and beanstalkd, and a program that speaks to them in an environment of its own."""

    def __init__(self, directory: Path, venv: Path | None) -> None:
        self._directory = directory
        self._python = None if venv is None else venv / "bin" / "python"
        self.notes: list[str] = []

    def weak(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Measures single puts, batches and pipelines without syncs."""
        yield from self._each("no", "-F", 0)

    def strong(self, count: int) -> Iterator[tuple[str, dict[str, float]]]:
        """Measures durable puts of 16 clients."""
        yield from self._each("always", "-f0", count)

    def _each(self, redis: str, beans: str, count: int) -> Iterator[tuple[str, dict[str, float]]]:
        for name, program, command in (
            ("Redis", "redis-server", self._redis(redis)),
            ("beanstalkd", "beanstalkd", self._beans(beans)),
        ):
            path = self._directory / f"{name}.sock"
            if self._python is None or shutil.which(program) is None:
                self._note(f"{name}: skipped, {program} or --peers is not there")
                continue
            shutil.rmtree(self._directory / name, ignore_errors=True)
            (self._directory / name).mkdir()
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with subprocess.Popen(command, **quiet) as process:  # type: ignore[call-overload]
                try:
                    wait_for(path)
                    found = self._ask(name, path, count, process.pid)
                finally:
                    process.terminate()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            if found is not None:
                yield name, found

    def _ask(self, name: str, path: Path, count: int, pid: int) -> dict[str, float] | None:
        client = Path(__file__).with_name("peers.py")
        given = [str(self._python), str(client), name, str(path), str(count), str(pid)]
        done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            self._note(f"{name}: skipped, its client fails: {done.stderr.strip()[-200:]}")
            return None
        pairs = (line.split("=") for line in done.stdout.split())
        return {key: float(value) for key, value in pairs}

    def _redis(self, fsync: str) -> list[str]:
        path = self._directory / "Redis"
        options = ["--port", "0", "--unixsocket", f"{path}.sock", "--dir", str(path)]
        return [
            "redis-server",
            *options,
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            fsync,
        ]

    def _beans(self, sync: str) -> list[str]:
        path = self._directory / "beanstalkd"
        return ["beanstalkd", "-b", str(path), "-l", f"unix:{path}.sock", sync]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def main() -> None:
    """Prints the ratios of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the queues go; default: a temporary one")
    parser.add_argument("--peers", type=Path, help="an environment with redis and greenstalk")
    parser.add_argument("--restart", type=int, default=1_000_000, help="entries; 0: not measured")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    goals: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        peers = Peers(Path(folder), options.peers)
        for number in range(options.rounds):
            place = Path(folder) / str(number)
            place.mkdir()
            rows = [*weak(place / "weak", peers), *strong(place / "strong", peers)]
            if options.restart and not number:
                rows += restart(place, options.restart)
            for row in rows:
                found.setdefault(row.name, []).append(row.value)
                goals[row.name] = row.goal
            disconnect()
            shutil.rmtree(place, ignore_errors=True)
    print(f"forebay compiled: {forebay.compiled}; {options.rounds} rounds: median (range), goal")
    for name, values in found.items():
        middle = statistics.median(values)
        print(f"{name:58} {middle:8.2f} ({min(values):.2f}-{max(values):.2f})  {goals[name]}")
    for note in peers.notes:
        print(note)


if __name__ == "__main__":
    main()
