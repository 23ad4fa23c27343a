"""An S3 server on loopback, with faults before it, and a process that talks to it.

What pyarrow opens for S3 stays open, so no test talks to a server in its own process: `Remote` is a
process that calls functions for the tests. It ends, and so does the server, with its standard
input.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.sources import ROOT, python_path
from tests.support.waiting import wait_until

BUCKET = "spool"
_KEY, _SECRET = "testkey", "testsecret"
# A connection that is closed like this ends with a reset.
_RESET = struct.pack("ii", 1, 0)
# Of the connections.
_SHARE = 0.5
FAULTS = ("refuse", "reset", "half", "slow", "error")


# What programs need in their environment, besides the address of the server.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": _KEY,
    "AWS_SECRET_ACCESS_KEY": _SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # The server does not know checksums in trailers.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


def environment(port: int) -> dict[str, str]:
    """Returns what programs need in their environment to use a server."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


class ObjectStore:
    """A bucket, whose objects are files of a directory; `address` reaches it directly.

    `faulty` reaches it through a proxy that breaks connections.
    """

    def __init__(self, folder: Path, *, faults: str = ",".join(FAULTS), seed: int = 0) -> None:
        self.folder = folder / BUCKET
        self.folder.mkdir(parents=True)
        self._served = _Child("serve", folder)
        self._proxy = _Child("break", self._served.port, faults, seed)
        self.port = self._served.port
        self.address = f"s3://{BUCKET}"
        self.faulty = f"{self.address}?endpoint_override=127.0.0.1:{self._proxy.port}&scheme=http"

    def close(self) -> None:
        """Ends the server and the proxy."""
        self._proxy.close()
        self._served.close()


class _Child:
    """This module as a process; it tells the port at which it answers."""

    def __init__(self, *arguments: object) -> None:
        self._process = _start(*arguments)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        _end(self._process)


def _start(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path(), **variables},
        cwd=ROOT,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(60)
    process.stdout.close()


class Remote:
    """Another process, which calls functions of `module` with values that JSON knows."""

    def __init__(self, port: int, module: str) -> None:
        self._process = _start("call", module, **environment(port))

    def call(self, function: str, *arguments: object, **options: object) -> Any:
        """Returns what the function returned; raises `RemoteError` if it raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps(
            [function, [str(a) if isinstance(a, Path) else a for a in arguments], options]
        )
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RemoteError(answer["error"], answer["text"])
        return answer["value"]

    def close(self) -> None:
        """Ends the process."""
        _end(self._process)


class RemoteError(Exception):
    """A function raised; `kind` is the name of its exception."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def run_verb(*arguments: str) -> tuple[int, str, str]:
    """Runs the command `forebay` in this process; returns its code, its output and messages."""
    from forebay.cli.main import main

    output, messages = io.BytesIO(), io.StringIO()
    text = io.TextIOWrapper(output, write_through=True)
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(messages):
        try:
            main(list(arguments))
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, output.getvalue().decode(), messages.getvalue()


def text_of(values: list[bytes]) -> list[str]:
    """Returns values in a form that JSON takes."""
    return [base64.b64encode(value).decode() for value in values]


def _answer_calls(module: str) -> None:
    functions = importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        function, arguments, options = json.loads(line)
        try:
            answer = {"value": getattr(functions, function)(*arguments, **options)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")


def _serve(folder: str) -> None:
    """Serves a folder by S3 until the input ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("rclone")
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{_KEY},{_SECRET}", folder]
    nowhere = subprocess.DEVNULL
    server = subprocess.Popen(list(map(str, command)), stdout=nowhere, stderr=nowhere)
    try:
        assert wait_until(lambda: _answers(port))
        _tell_port(port)
        sys.stdin.read()
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


def _tell_port(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def _break(target: str, faults: str, seed: str) -> None:
    """Forwards connections to a server; some have a fault."""
    chance = random.Random(int(seed))
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            client, _ = server.accept()
            fault = chance.choice(faults.split(",")) if chance.random() < _SHARE else ""
            # Short ones hit the headers, long ones the body.
            after = int(10 ** chance.uniform(0, 5))
            _thread(_forward, client, int(target), fault, after)

    _thread(accept)
    _tell_port(server.getsockname()[1])
    sys.stdin.read()
    os._exit(0)


def _thread(work: Any, *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _forward(client: socket.socket, target: int, fault: str, after: int) -> None:
    if fault == "refuse":
        _reset(client)
        return
    if fault == "error":
        client.recv(1 << 16)
        client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n")
        client.sendall(b"Connection: close\r\n\r\n")
        client.close()
        return
    server = socket.create_connection(("127.0.0.1", target))
    _thread(_pump, client, server, after if fault == "reset" else -1, fault == "slow")
    _pump(server, client, after if fault == "half" else -1, fault == "slow")


def _pump(source: socket.socket, sink: socket.socket, left: int, slow: bool) -> None:
    """Copies bytes; after `left` of them, unless that is below 0, both connections are reset."""
    try:
        while data := source.recv(1 << 12 if slow else 1 << 16):
            if slow:
                time.sleep(0.002)
            if 0 <= left < len(data):
                sink.sendall(data[:left])
                break
            left -= len(data) if left >= 0 else 0
            sink.sendall(data)
        else:
            sink.shutdown(socket.SHUT_WR)
            return
    except OSError:
        pass
    _reset(source)
    _reset(sink)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "serve":
        _serve(*rest)
    elif what == "break":
        _break(*rest)
    else:
        _answer_calls(*rest)
