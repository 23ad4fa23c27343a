"""The server: listens, accepts clients, opens queues for them and closes them after the last."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

import forebay
from forebay.errors import InvalidOption, NotAQueue
from forebay.queues.kinds import kind_named, kind_of
from forebay.queues.shared.names import SOCKET
from forebay.queues.shared.options import make_options
from forebay.serve.loop import Loop, Timer
from forebay.serve.session import Session
from forebay.serve.settled import Options

_logger = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
_SESSIONS_MAX = 1024
_BACKLOG = 128
# How long to wait for a descriptor to become free.
_PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Served:
    """A queue that is open, and how many handles of clients there are."""

    identity: tuple[int, int]
    kind: str
    queue: Any
    options: Options
    handles: int = 1

    @property
    def described(self) -> dict[str, Any]:
        """What a client keeps of it: its path, and the options that it was opened with."""
        return {
            "path": self.queue.path,
            "options": self.options.effective(self.queue),
            "life": self.options.life,
        }


@dataclass(slots=True)
class Limits:
    """What ends a server, and whom it serves."""

    idle_seconds: float | None = None
    uids: frozenset[int] = field(default_factory=lambda: frozenset({os.getuid()}))


class Server:
    """Serves queues to clients until it is stopped, or has been idle for long enough."""

    def __init__(self, directory: int, listener: socket.socket, limits: Limits) -> None:
        """`directory` is a descriptor of the one that holds the socket."""
        self.version = forebay.__version__
        self.loop = Loop()
        self._directory = directory
        self._listener = listener
        self._limits = limits
        self._sessions: set[Session] = set()
        self._idle: Timer | None = None
        self._is_full = False
        # Held while a queue is opened or closed, on other threads.
        self._opening = threading.Lock()
        self._queues: dict[tuple[int, int], Served] = {}

    def run(self) -> None:
        """Serves until the end."""
        _logger.info("serving %s", self._root)
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self.loop.watch(self._listener.fileno(), self._accept)
        self._wait_for_clients()
        try:
            self.loop.run()
        finally:
            self._end()

    def stop(self) -> None:
        """Ends it soon. Any thread or signal handler may call it."""
        self.loop.stop()

    def forget(self, session: Session) -> None:
        """Forgets a session that has ended."""
        self._sessions.discard(session)
        self._wait_for_clients()

    def open_queue(self, path: str, kind: str, options: dict[str, Any], *, create: bool) -> Served:
        """Opens a queue or shares the one that is open; on a thread. Raises what an open raises."""
        # Also refuses at once what is too long for a path.
        identity = _identity(path)
        path = os.path.realpath(path)
        if path != self._root:
            raise NotAQueue(f"{path}: the server of {self._root} serves nothing else")
        found = kind_named(kind)
        # The constructor takes more than options: `shared` would wait for this very server.
        make_options(found.options_class, options)
        with self._opening:
            served = self._queues.get(identity)
            if served is not None:
                if served.kind != kind:
                    raise InvalidOption(f"{path} is of kind {served.kind!r}, not {kind!r}")
                served.options.agree(served.queue, options)
                served.handles += 1
                return served
            settled = Options.load(path, options)
            if not create and kind_of(path) is not found:
                raise NotAQueue(f"{path} is no longer {found.title}")
            queue = found.open_queue(path, **settled.given)
            settled.save(queue)
            served = self._queues[identity] = Served(identity, kind, queue, settled)
            return served

    def release_queue(self, served: Served) -> None:
        """Closes a queue after its last handle; on a thread."""
        with self._opening:
            served.handles -= 1
            if served.handles == 0:
                del self._queues[served.identity]
                served.queue.close()
                served.options.forget()

    @property
    def _root(self) -> str:
        """Where the directory is now: it may have been moved."""
        return os.readlink(f"/proc/self/fd/{self._directory}")

    def _accept(self, events: int) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: those who are there go on, the new one waits.
                if not self._is_full:
                    _logger.warning("no more clients: %s", error)
                self._is_full = True
                self.loop.change(self._listener.fileno(), 0)
                self.loop.later(_PAUSE_SECONDS, self._listen)
                return
            self._is_full = False
            pid, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if uid not in self._limits.uids or len(self._sessions) >= _SESSIONS_MAX:
                _logger.warning("refused process %d of user %d", pid, uid)
                connection.close()
                continue
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            self._sessions.add(Session(self, connection, f"process {pid}"))

    def _listen(self) -> None:
        self.loop.change(self._listener.fileno(), select.EPOLLIN)

    def _wait_for_clients(self) -> None:
        """Ends the server if no client comes for some time."""
        if not self._sessions and self._limits.idle_seconds is not None:
            self._idle = self.loop.later(self._limits.idle_seconds, self.stop)

    def _end(self) -> None:
        """Accepts no more clients, gives back what they hold, and closes all queues."""
        with contextlib.suppress(FileNotFoundError):
            # Clients that come from now on start another server.
            os.unlink(SOCKET, dir_fd=self._directory)
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for session in list(self._sessions):
            session.close()
        with self._opening:
            for served in self._queues.values():
                # Whatever clients held and could not give back is lent, and comes back by itself.
                served.queue.close()
                served.options.forget()
            self._queues.clear()
        self.loop.close()
        _logger.info("ended")


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise NotAQueue(f"{path} is gone") from None
    return found.st_dev, found.st_ino
