"""An HTTP server in another process that misbehaves by a script, and keeps what it took.

Each path is a receiver of its own. It takes lines of JSON under a key, or `_bulk` requests, and
applies each key once, as a receiver does that remembers them. It notes what no forwarder may do:
one key with two bodies, records out of order, records twice. A request to `/control` says what
shall go wrong, one to `/summary` what came.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.killing import Program, end_with_parent
from tests.support.waiting import wait_until

# What may go wrong before a request is applied, and after it.
BEFORE = ("refuse", "reset", "reset-reading", "reset-read", "429", "500", "503", "slow", "trickle")
AFTER = ("reset-answering", "die-after", "other-key", "short-answer")
FAULTS = (*BEFORE, *AFTER)
_SLOW_SECONDS = 0.2


class Receiver:
    """The server, as a test sees it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = folder / "ports"
        self._program = Program("tests.support.receiver", folder, output=folder / "output")
        assert wait_until(self._ports.exists), (folder / "output").read_text()
        self.port, self.tls_port = map(int, self._ports.read_text().split())
        self.ca_file = folder / "ca.pem"

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def tls_url(self, path: str) -> str:
        return f"https://localhost:{self.tls_port}/{path}"

    def script(self, path: str, **settings: Any) -> None:
        """Says what shall go wrong at a path; see `Place`."""
        self._ask("control", {"path": f"/{path}", **settings})

    def summary(self, path: str) -> dict[str, Any]:
        """Returns what came to a path."""
        return self._ask("summary", {"path": f"/{path}"})

    def values(self, path: str) -> list[Any]:
        """Returns the records that came to a path, in their order."""
        values: list[Any] = self._ask("values", {"path": f"/{path}"})["values"]
        return values

    def close(self) -> None:
        self._program.kill()

    def _ask(self, what: str, document: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{what}", json.dumps(document).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            found: dict[str, Any] = json.load(response)
            return found


class Place:
    """What one path does and has.

    - `script`: the faults of the next requests, one each; "ok" is none.
    - `share`, `seed`, `faults`: the share of later requests that fail, and how.
    - `down`: requests are reset before they are read.
    - `body_max`: a longer body gets 413. `poison`: a body with this text gets 400.
    - `number`: the field of the records that must rise by one from 0, apart from `poison`.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.script: list[str] = []
        self.random = random.Random(0)
        self.bodies: dict[str, int] = {}
        self.values: list[Any] = []
        self.last = -1
        self.headers: dict[str, str] = {}
        self.tally: dict[str, int] = {"requests": 0, "applied": 0, "repeats": 0, "records": 0}
        self.violations: list[str] = []
        self.mutex = threading.Lock()

    def control(self, settings: dict[str, Any]) -> None:
        self.script = list(settings.pop("script", self.script))
        if "seed" in settings:
            self.random = random.Random(settings.pop("seed"))
        self.settings.update(settings)

    def next_fault(self) -> str:
        if self.settings.get("down"):
            return "reset"
        if self.script:
            return self.script.pop(0)
        if self.random.random() < self.settings.get("share", 0.0):
            return str(self.random.choice(self.settings.get("faults", FAULTS)))
        return "ok"

    def apply(self, key: str, body: bytes) -> tuple[int, bytes]:
        """Takes a body once for each key; returns the status and the answer."""
        poison = self.settings.get("poison", "").encode()
        if len(body) > self.settings.get("body_max", 1 << 62):
            return 413, b"too large"
        if poison and poison in body:
            return 400, b"a record of it is poison"
        crc = zlib.crc32(body)
        if self.bodies.setdefault(key, crc) != crc:
            self.violations.append(f"key {key} has two bodies")
        elif self.tally["applied"] and key in self._applied:
            self.tally["repeats"] += 1
            return 200, b"again"
        self._applied.add(key)
        self.tally["applied"] += 1
        for line in body.split(b"\n")[:-1]:
            self._take(json.loads(line))
        return 200, b"taken"

    @property
    def _applied(self) -> set[str]:
        found: set[str] = self.__dict__.setdefault("applied", set())
        return found

    def _take(self, value: Any) -> None:
        self.tally["records"] += 1
        if not self.settings.get("forget"):
            self.values.append(value)
        name = self.settings.get("number")
        if name is not None and name in value:
            if value[name] <= self.last and not self.settings.get("unordered"):
                self.violations.append(f"{value[name]} came after {self.last}")
            self.last = value[name]

    def bulk(self, body: bytes) -> tuple[int, bytes]:
        """Takes the documents of a `_bulk` request; returns the status and the answer."""
        lines = body.split(b"\n")[:-1]
        items, errors, number = [], False, 0
        while number < len(lines):
            ((action, meta),) = json.loads(lines[number]).items()
            document = None if action == "delete" else json.loads(lines[number + 1])
            number += 1 if document is None else 2
            status = self._bulk_item(action, meta, document)
            errors = errors or status >= 300
            result: dict[str, Any] = {"_id": meta["_id"], "status": status}
            if status >= 300:
                kind = "cluster_block_exception" if status == 403 else "of_the_test"
                result["error"] = {"type": kind, "reason": f"status {status}"}
            items.append({action: result})
        return 200, json.dumps({"took": 1, "errors": errors, "items": items}).encode()

    def _bulk_item(self, action: str, meta: dict[str, Any], document: Any) -> int:
        poison = self.settings.get("poison")
        if poison and poison in json.dumps(document):
            return 400
        for status in self.settings.get("item_faults", ()):
            if self.random.random() < self.settings.get("item_share", 0.0):
                return int(status)
        if action == "create" and meta["_id"] in self._applied:
            self.tally["repeats"] += 1
            return 409
        self._applied.add(meta["_id"])
        self._take({"meta": meta, "action": action, "document": document})
        return 201


class Server:
    """The program: two sockets, one with TLS, and a thread for each connection."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, Place] = {}
        self._mutex = threading.Lock()
        self._contexts = _make_certificates(folder)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.tls_listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._tls_name = "localhost"

    def serve(self, listener: socket.socket, *, tls: bool) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._talk, args=(connection, tls), daemon=True).start()

    def _talk(self, connection: socket.socket, tls: bool) -> None:
        try:
            if tls:
                context = self._contexts[self._tls_name]
                connection = context.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                while self._exchange(connection, stream):
                    pass
        except (OSError, ValueError):
            connection.close()

    def _exchange(self, connection: socket.socket, stream: Any) -> bool:
        line = stream.readline()
        if not line:
            return False
        path = line.split()[1].decode()
        headers = {}
        while (header := stream.readline().strip()) != b"":
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if path in ("/control", "/summary", "/values"):
            self._control(connection, path, json.loads(stream.read(length)))
            return True
        place = self._place(path)
        with place.mutex:
            place.tally["requests"] += 1
            fault = place.next_fault()
            place.tally[fault] = place.tally.get(fault, 0) + 1
            place.headers = headers
        return self._answer(connection, stream, place, path, headers, length, fault)

    def _answer(
        self,
        connection: socket.socket,
        stream: Any,
        place: Place,
        path: str,
        headers: dict[str, str],
        length: int,
        fault: str,
    ) -> bool:
        if fault in ("reset", "refuse"):
            return _reset(connection)
        if fault == "reset-reading":
            stream.read(length // 2)
            return _reset(connection)
        body = stream.read(length)
        if len(body) < length or fault == "reset-read":
            return _reset(connection)
        if fault.isdigit():
            extra = (
                {"Retry-After": place.settings.get("retry_after", "0")} if fault == "429" else {}
            )
            return _send(connection, int(fault), b"no, " + fault.encode(), extra)
        if fault == "slow":
            time.sleep(_SLOW_SECONDS)
        if fault == "trickle":
            return _trickle(connection)
        if fault == "misled":
            # Another program answers, and knows nothing of the request.
            return _send(connection, 200, b'{"ok":true}', {})
        key = headers.get("idempotency-key", "")
        with place.mutex:
            if path.partition("?")[0].endswith("_bulk"):
                status, answer = place.bulk(body)
            else:
                status, answer = place.apply(key, body)
        return _finish(connection, status, answer, fault)

    def _place(self, path: str) -> Place:
        with self._mutex:
            return self._places.setdefault(path, Place())

    def _control(self, connection: socket.socket, what: str, document: dict[str, Any]) -> None:
        place = self._place(document.pop("path"))
        with place.mutex:
            if what == "/control":
                self._tls_name = document.pop("tls_name", self._tls_name)
                place.control(document)
                answer: dict[str, Any] = {}
            elif what == "/values":
                answer = {"values": place.values}
            else:
                answer = {
                    **place.tally,
                    "violations": place.violations[:10],
                    "headers": place.headers,
                    "last": place.last,
                }
        _send(connection, 200, json.dumps(answer).encode(), {})


def _finish(connection: socket.socket, status: int, answer: bytes, fault: str) -> bool:
    """Answers a request that was applied, if the script lets it."""
    if fault == "reset-answering":
        return _reset(connection)
    if fault == "die-after":
        # The status goes out, and nothing else.
        connection.sendall(b"HTTP/1.1 %d Fine\r\nContent-Length: 5\r\n" % status)
        return _reset(connection)
    if fault == "short-answer":
        connection.sendall(b"HTTP/1.1 %d Fine\r\nContent-Length: 500\r\n\r\nhalf" % status)
        return False
    extra = {"Idempotency-Key": "of another request"} if fault == "other-key" else {}
    return _send(connection, status, answer, extra)


def _send(connection: socket.socket, status: int, answer: bytes, extra: dict[str, str]) -> bool:
    lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(answer)}"]
    lines += [f"{name}: {value}" for name, value in extra.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + answer)
    return True


def _trickle(connection: socket.socket) -> bool:
    """Sends a byte a second, for as long as anybody listens."""
    for sign in b"HTTP/1.1 200 Fine\r\nContent-Length: 100\r\n\r\n" + b"x" * 100:
        connection.sendall(bytes([sign]))
        time.sleep(1)
    return False


def _reset(connection: socket.socket) -> bool:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return False


def _make_certificates(folder: Path) -> dict[str, ssl.SSLContext]:
    """Makes a certificate for the right name and one for a wrong one, both signed by themselves."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    contexts, trusted = {}, b""
    for host in ("localhost", "elsewhere.example"):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=9))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file = folder / f"{host}.pem"
        file.write_bytes(pem + secret)
        contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[host].load_cert_chain(file)
        trusted += pem
    (folder / "ca.pem").write_bytes(trusted)
    return contexts


def main(folder: Path) -> None:
    end_with_parent()
    server = Server(folder)
    serve: Callable[..., None] = server.serve
    threading.Thread(target=serve, args=(server.tls_listener,), kwargs={"tls": True}).start()
    ports = f"{server.listener.getsockname()[1]} {server.tls_listener.getsockname()[1]}"
    (folder / "ports.new").write_text(ports)
    os.replace(folder / "ports.new", folder / "ports")
    server.serve(server.listener, tls=False)


def value_of(record: dict[str, Any]) -> bytes:
    """Returns the record that a line of JSON stands for."""
    if "value_b64" in record:
        return base64.b64decode(record["value_b64"])
    if set(record) == {"value"}:
        text: str = record["value"]
        return text.encode()
    return json.dumps(record).encode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
