"""Measures the forwarder beside curl, and appends while it forwards, in interleaved rounds.

    python benchmarks/forward.py [--records 200000] [--rounds 5] [--path DIR] [--json]

- drain: a backlog of JSON records goes to a server on loopback that reads and forgets, by
  `HttpOutput` with lines of JSON; beside `curl` sending the same bytes as one body.
- append: batches of records are appended while a forwarder with the same server drains the log;
  beside the same appends without one. In CPU time of the appending thread, and in wall time.

Prints medians and ratios; the machine's absolute speed means little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import forebay
from forebay.forward.http import HttpOutput

SIZE = 278
BATCH = 1000


def serve(ready: Any) -> None:
    """Reads requests, forgets them, and answers 200; a thread for each connection."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.send(listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(1 << 20))
    data = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in data:
                part = connection.recv(1 << 16)
                if not part:
                    return
                data += part
            head, _, data = data.partition(b"\r\n\r\n")
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
            )
            if fields.get(b"expect"):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            left = int(fields[b"content-length"]) - len(data)
            data = b""
            while left > 0:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def records(count: int) -> list[bytes]:
    """Returns JSON records of 278 bytes."""
    made = []
    for number in range(count):
        head = b'{"n":%d,"door":"north","message":"' % number
        made.append(head + b"x" * (SIZE - len(head) - 2) + b'"}')
    return made


def drain(root: Path, values: list[bytes], url: str) -> tuple[float, float]:
    """Returns the seconds, and the seconds of CPU of this process, to forward a backlog."""
    path = Path(tempfile.mkdtemp(dir=root)) / "q"
    with forebay.Log(path, sync="os") as log:
        for first in range(0, len(values), BATCH):
            log.append_many(values[first : first + BATCH])
        log.sync()
        manager = forebay.OutputManager(
            log, HttpOutput(url), background=False, batch_records=10_000
        )
        with manager:
            start, cpu = time.perf_counter(), time.process_time()
            manager.run(until_empty=True)
            taken = time.perf_counter() - start, time.process_time() - cpu
        assert manager.settled.delivered == len(values)
    shutil.rmtree(path.parent)
    return taken


def curl(root: Path, values: list[bytes], url: str) -> tuple[float, float]:
    """Returns the seconds, and those of CPU, in which curl sends the same bytes as one body."""
    body = root / "body"
    if not body.exists():
        body.write_bytes(b"\n".join([*values, b""]))
    before = os.times()
    start = time.perf_counter()
    command = ["curl", "-sS", "-f", "-X", "POST", "-H", "Expect:", "--data-binary", f"@{body}", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    taken = time.perf_counter() - start
    after = os.times()
    cpu = after.children_user - before.children_user
    return taken, cpu + after.children_system - before.children_system


def append(root: Path, values: list[bytes], url: str | None) -> tuple[float, float]:
    """Returns the seconds, and those of CPU of this thread, to append; with a url it is forwarded.

    The forwarder is a process of its own, as `forebay forward` is.
    """
    path = Path(tempfile.mkdtemp(dir=root)) / "q"
    with forebay.Log(path, shared=True, sync="os") as log:
        forwarder = None
        if url is not None:
            command = ["-m", "forebay", "forward", str(path), "--to", url]
            command += ["--limit", str(len(values) + BATCH)]
            forwarder = subprocess.Popen([_python(), *command], stdout=subprocess.DEVNULL)
            log.append_many(values[:BATCH])
            while forebay.describe(path).consumers.get("forward", {}).get("offset", 0) < BATCH:
                time.sleep(0.01)
        start, cpu = time.perf_counter(), time.thread_time()
        for first in range(0, len(values), BATCH):
            log.append_many(values[first : first + BATCH])
        taken = time.perf_counter() - start, time.thread_time() - cpu
        if forwarder is not None:
            assert forwarder.wait() == 0
    shutil.rmtree(path.parent)
    return taken


def _python() -> str:
    import sys

    return sys.executable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", type=Path, default=None, help="where the queues are made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/"
    values = records(options.records)
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        root = Path(folder)
        for _ in range(options.rounds):
            found.setdefault("drain", []).append(drain(root, values, url))
            found.setdefault("curl", []).append(curl(root, values, url))
            found.setdefault("append alone", []).append(append(root, values, None))
            found.setdefault("append, forwarded", []).append(append(root, values, url))
    server.kill()
    result: dict[str, float] = {}
    for name, taken in found.items():
        for what, seconds in zip(("wall", "CPU"), zip(*taken, strict=True), strict=True):
            rate = len(values) * SIZE / 1e6 / statistics.median(seconds)
            result[f"{name}, MB/s by {what}"] = round(rate, 1)
    for what in ("wall", "CPU"):
        for name, floor in (("drain", "curl"), ("append, forwarded", "append alone")):
            ratio = result[f"{name}, MB/s by {what}"] / result[f"{floor}, MB/s by {what}"]
            result[f"{name} : {floor}, by {what}"] = round(ratio, 2)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<40} {value:>10,.2f}")


if __name__ == "__main__":
    main()
