"""`python -m forebay.serve`: a server with a listening socket that its starter passes.

The socket is a descriptor, 3 if nothing else is said, as systemd passes it. With `--detach` the
server leaves its starter at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from functools import partial

_LISTENER = 3


def main() -> None:
    """Serves until it is stopped or idle."""
    parser = argparse.ArgumentParser(prog="python -m forebay.serve", description=__doc__)
    parser.add_argument("--listener", type=int, default=_LISTENER, help="its descriptor")
    parser.add_argument("--socket", required=True, help="the name of the socket, to be removed")
    parser.add_argument("--idle-seconds", type=float, help="ends after so long without a client")
    parser.add_argument("--detach", action="store_true", help="leaves the process that started it")
    options = parser.parse_args()
    if options.detach and os.fork():
        os._exit(0)
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    # Imported after the fork: the starter waits for the first process.
    from forebay.serve.server import Limits, Server

    listener = socket.socket(fileno=options.listener)
    server = Server(listener, Limits(options.idle_seconds))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    os.chdir("/")
    server.run(partial(_unlink, options.socket))
    # Threads of the process may be in the middle of work that no longer matters.
    sys.stderr.flush()
    os._exit(0)


def _unlink(path: str) -> None:
    """Removes the socket: clients that come from now on start another server."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


if __name__ == "__main__":
    main()
