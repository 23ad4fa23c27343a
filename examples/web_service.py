"""A web service that answers when the order is on the disk, and does the work later.

When to use it:
    The answer to a request must not wait for slow work, nor may the work be lost once it was sent.
    Requests in threads, or in several processes of one server, share the queue and its syncs.
    If the queue is full, the service says so with 503, instead of running out of disk.

Run it: python examples/web_service.py /tmp/spool
"""

from __future__ import annotations

import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import forebay


class Service(ThreadingHTTPServer):
    """An HTTP server with a queue."""

    def __init__(self, orders: forebay.Fifo) -> None:
        super().__init__(("127.0.0.1", 0), Orders)
        self.orders = orders


class Orders(BaseHTTPRequestHandler):
    """Takes orders by POST."""

    server: Service

    def do_POST(self) -> None:
        """Answers 202 after the order is durable."""
        order = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.server.orders.push(order, timeout=1)
        except forebay.Full:
            self.send_error(503, "too many orders are waiting")
            return
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing for each request."""


def main(directory: str) -> None:
    """Serves three requests, then does the work that they left."""
    with forebay.Fifo(f"{directory}/orders", max_entries=10_000, shared=True) as orders:
        service = Service(orders)
        threading.Thread(target=service.serve_forever).start()
        url = f"http://127.0.0.1:{service.server_port}/"
        for number in range(3):
            with urllib.request.urlopen(url, data=b"order %d" % number) as answer:
                print("answered", answer.status)
        service.shutdown()
        service.server_close()

        while (order := orders.pop()) is not None:
            print("done:", order.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
