"""The collector of the tour: an HTTP server that keeps each batch under its key, once.

    python -m examples.tour.collector DIR PORT

A batch is a file in DIR, written beside it and renamed before the answer: what was answered
survives `kill -9`, and a batch that comes again replaces itself. The port is printed.
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_POST(self) -> None:
        """Keeps the body, then answers."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.headers["Idempotency-Key"].replace("/", "_")
        beside = self.folder / f".{name}"
        beside.write_bytes(body)
        os.replace(beside, self.folder / name)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def main(folder: str, port: str) -> None:
    """Serves until it is killed."""
    _Handler.folder = Path(folder)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
