"""`python -m forebay.serve`: a server whose starter passes it a directory and a socket there.

Both are descriptors. With `--detach` the server leaves its starter at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys


def main() -> None:
    """Serves until it is stopped or idle."""
    parser = argparse.ArgumentParser(prog="python -m forebay.serve", description=__doc__)
    parser.add_argument("--directory", type=int, required=True, help="the descriptor of one")
    parser.add_argument("--listener", type=int, required=True, help="that of its socket")
    parser.add_argument("--idle-seconds", type=float, help="ends after so long without a client")
    parser.add_argument("--detach", action="store_true", help="leaves the process that started it")
    options = parser.parse_args()
    if options.detach and os.fork():
        os._exit(0)
    form = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, level=logging.INFO)
    # Imported after the fork: the starter waits for the first process.
    from forebay.serve.holding import holding_of
    from forebay.serve.server import Server

    listener = socket.socket(fileno=options.listener)
    holding = holding_of(options.directory)
    server = Server(options.directory, listener, holding, idle_seconds=options.idle_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    os.chdir("/")
    server.run()
    # Threads of the process may be in the middle of work that no longer matters.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
