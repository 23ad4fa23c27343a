"""What `sharing.py` asks of Redis and beanstalkd, and how it measures.

It is also a program, which runs in an environment that has their clients, and not Forebay:

    python benchmarks/peers.py Redis SOCKET 0 PROCESS
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

VALUE = os.urandom(278)
MANY = [VALUE] * 64
CLIENTS = 16


class Cost(NamedTuple):
    """What one record cost, in microseconds."""

    wall: float
    caller: float
    both: float


def cpu_of(pid: int | None) -> float:
    """Returns the CPU time of a process, in seconds."""
    if pid is None:
        return 0.0
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def cost(count: int, work: Callable[[], object], server: int | None = None) -> Cost:
    """Runs work that puts so many records."""
    served, caller, wall = cpu_of(server), time.process_time(), time.perf_counter()
    work()
    wall, caller = time.perf_counter() - wall, time.process_time() - caller
    served = cpu_of(server) - served
    return Cost(*(seconds * 1e6 / count for seconds in (wall, caller, caller + served)))


def times(count: int, call: Callable[..., object], *given: object) -> Callable[[], None]:
    """Returns work that makes a call so often."""

    def work() -> None:
        for _ in range(count):
            call(*given)

    return work


def median_wall(count: int, call: Callable[..., object], *given: object) -> float:
    """Returns how long a call takes, in microseconds."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call(*given)
        found.append(time.perf_counter() - start)
    return statistics.median(found) * 1e6


def together(count: int, work: Callable[..., None], *given: object) -> float:
    """Runs work in many processes; returns the microseconds for each of `count` records."""
    processes = [get_context("fork").Process(target=work, args=given) for _ in range(CLIENTS)]
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return (time.perf_counter() - start) * 1e6 / count


def client(name: str, path: str, count: int, server: int) -> None:
    """Prints what a put costs there, in microseconds: wall if awaited, else CPU of both."""
    connect = redis_client if name == "Redis" else beans_client
    if count:
        print(f"single={together(CLIENTS * count, put_on, connect, path, count)}")
        return
    put, many, pipeline = connect(path)
    print(f"single={median_wall(1000, put)}")
    if many is not None:
        print(f"batch={cost(20_000, times(20_000 // 64, many), server).both}")
    print(f"pipeline={cost(20_480, times(20, pipeline), server).both}")
    print(f"work={cost(1000, times(1000, put), server).both}")


def put_on(connect: Callable[[str], Any], path: str, count: int) -> None:
    """Puts one by one, in a process of its own."""
    times(count, connect(path)[0])()


def redis_client(path: str) -> Any:
    """Returns how Redis puts one, 64 and 1,024."""
    import redis

    server: Any = redis.Redis(unix_socket_path=path)

    def pipeline() -> None:
        some = server.pipeline(transaction=False)
        for _ in range(1024):
            some.rpush("q", VALUE)
        some.execute()

    return lambda: server.rpush("q", VALUE), lambda: server.rpush("q", *MANY), pipeline


def beans_client(path: str) -> Any:
    """Returns how beanstalkd puts one and 1,024; it has no batches."""
    import greenstalk

    server: Any = greenstalk.Client(path, encoding=None)
    line = b"put 65536 0 60 278\r\n" + VALUE + b"\r\n"
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(path)
    answers = raw.makefile("rb")

    def pipeline() -> None:
        for _ in range(16):
            raw.sendall(line * 64)
            for _ in range(64):
                assert answers.readline().startswith(b"INSERTED")

    return lambda: server.put(VALUE), None, pipeline


if __name__ == "__main__":
    client(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
