"""A server that stays: `forebay serve ROOT`. Page: docs/serve.md.

It opens all queues of its root before it answers, so that what a crash has left is recovered then
and not in the first call of a client. It runs in the foreground, and ends cleanly on SIGTERM and
SIGINT.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from forebay.serve.config import Config
from forebay.serve.holding import Rooted
from forebay.serve.limits import raise_descriptors
from forebay.serve.notifying import Supervisor
from forebay.serve.server import Server

_logger = logging.getLogger(__name__)
LogFormat = Literal["text", "json"]
# For the users whom a configuration names: they may connect, and reach the socket and nothing else.
SOCKET_MODE, SOCKET_MODE_OTHERS = 0o600, 0o666
_SEARCH = 0o011


def prepare(path: str, config: Config, log_format: LogFormat) -> Rooted:
    """Sets up logging, makes the root if there is none, and returns its queues, not open yet."""
    _log_to_stderr(log_format)
    raise_descriptors()
    os.makedirs(path, mode=0o700, exist_ok=True)
    if config.access.others:
        os.chmod(path, os.stat(path).st_mode | _SEARCH)
    return Rooted(path, config.queues)


def serve(
    directory: int,
    listener: socket.socket,
    queues: Rooted,
    config: Config,
    ready: Callable[[int], None],
    *,
    owns_socket: bool,
) -> None:
    """Recovers all queues, calls `ready` with their number, and serves them until a signal."""
    supervisor = Supervisor(os.environ)
    server = Server(
        *(directory, listener, queues, config.limits),
        access=config.access,
        owns_socket=owns_socket,
    )

    def stop(number: int, frame: object) -> None:
        server.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        supervisor.tell("STATUS=recovering")
        ready(queues.recover())
        supervisor.tell("READY=1\nSTATUS=serving")
        if supervisor.alive_seconds is not None:
            _tell_alive(server, supervisor, supervisor.alive_seconds)
        server.run(stopping=lambda: supervisor.tell("STOPPING=1"))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_alive(server: Server, supervisor: Supervisor, seconds: float) -> None:
    """Tells again and again that the loop turns."""
    supervisor.tell("WATCHDOG=1")
    server.loop.later(seconds, lambda: _tell_alive(server, supervisor, seconds))


class _JsonLines(logging.Formatter):
    """A line of JSON for each message."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


def _log_to_stderr(log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(_JsonLines() if log_format == "json" else logging.Formatter(text))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
