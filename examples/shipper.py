"""Sends records over a network that is away for a while, and loses none of them.

When to use it:
    A server elsewhere must get every record, and may be down for minutes or days meanwhile.
    A record is durable when `put` returns; it leaves the queue once the server has taken it.
    A repeat carries the same key and bytes, so that the server can recognise it.

Run it: python examples/shipper.py /tmp/spool
"""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import forebay
from forebay.forward.http import HttpOutput


class Server(ThreadingHTTPServer):
    """A server that is out of order at first."""

    away = True
    received: list[bytes]


class Records(BaseHTTPRequestHandler):
    """Takes lines by POST, or answers 503."""

    server: Server

    def do_POST(self) -> None:
        """Keeps the lines, unless the server is away."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.away:
            self.server.received += body.splitlines()
        self.send_response(503 if self.server.away else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing for each request."""


def main(directory: str) -> None:
    """Puts records during an outage, and prints what has arrived before and after its end."""
    server = Server(("127.0.0.1", 0), Records)
    server.received = []
    threading.Thread(target=server.serve_forever).start()
    output = HttpOutput(f"http://127.0.0.1:{server.server_port}/in")
    with forebay.OutputManager(f"{directory}/out", output, retry_seconds=0.1) as out:
        for number in range(3):
            out.put(b'{"reading": %d}' % number)
        time.sleep(0.5)
        print("during the outage:", len(server.received), "arrived")
        server.away = False
        out.wait_until_empty()
    print("after it:", *(line.decode() for line in server.received), sep="\n")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main(*sys.argv[1:])
