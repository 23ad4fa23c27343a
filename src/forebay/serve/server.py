"""The server: listens, accepts clients, and ends when it is told to or is idle for long enough.

It ends in two steps. First it accepts nobody and receives nothing more, and what it has begun is
answered; a client that waits for something that may never come does not hold it up. Then all
sessions end, what they held goes back, and the queues are closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable

import forebay
from forebay.errors import ProtocolError
from forebay.exchange import CODEC, VOCABULARY
from forebay.queues.shared.names import SOCKET
from forebay.serve.access import Access
from forebay.serve.holding import Holding
from forebay.serve.limits import Limits
from forebay.serve.loop import Loop, Timer
from forebay.serve.session import Session
from forebay.storage.filesystem import share_memory
from forebay.wire.frames import frame
from forebay.wire.messages import Answer, Status

_logger = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128
# How long to wait for a descriptor to become free.
_PAUSE_SECONDS = 0.1
# How long what was begun may take to be answered at the end.
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.005


class Server:
    """Serves queues to clients until it is stopped, or has been idle for long enough."""

    def __init__(
        self,
        directory: int,
        listener: socket.socket,
        holding: Holding,
        limits: Limits | None = None,
        *,
        access: Access | None = None,
        idle_seconds: float | None = None,
        owns_socket: bool = True,
    ) -> None:
        """`directory` is a descriptor of the one that holds the socket.

        `idle_seconds`: ends after so long without a client. `owns_socket`: removes it at the end.
        """
        self.version = forebay.__version__
        self.began = time.monotonic()
        self.loop = Loop()
        self.holding = holding
        self.limits = limits or Limits()
        self.access = access or Access({})
        # What was received and not yet taken apart, over all clients.
        self.received_bytes = 0
        self._directory = directory
        self._listener = listener
        self._idle_seconds = idle_seconds
        self._owns_socket = owns_socket
        self._sessions: set[Session] = set()
        self._users = Counter[int]()
        self._idle: Timer | None = None
        self._is_full = False
        self._ending = False
        self._end_at = 0.0
        self._stopping: Callable[[], None] = lambda: None

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._sessions)

    def run(self, stopping: Callable[[], None] = lambda: None) -> None:
        """Serves until the end; calls `stopping` when that begins."""
        self._stopping = stopping
        share_memory()
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
        """Ends it soon. Any thread may call it; a signal handler, too."""
        self.loop.post_from_anywhere(self._begin_end)

    def retire(self) -> bool:
        """Ends it for another server to take over; only one that a client has started does."""
        if self._idle_seconds is None:
            return False
        self.stop()
        return True

    def forget(self, session: Session) -> None:
        """Forgets a session that has ended."""
        self._sessions.discard(session)
        self._users[session.user] -= 1
        self._wait_for_clients()

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
            pid, user, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            refusal = self._refusal(user)
            if refusal is not None:
                _logger.warning("refused process %d of user %d: %s", pid, user, refusal)
                _refuse(connection, refusal)
                continue
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            self._users[user] += 1
            self._sessions.add(Session(self, connection, f"process {pid}", user))

    def _refusal(self, user: int) -> str | None:
        """Returns why a user gets no connection; None if it does."""
        limits = self.limits
        own = user == os.getuid()
        if not own and user not in self.access.others:
            return f"user {user} has no access here: the server is that of user {os.getuid()}"
        if len(self._sessions) >= limits.clients:
            return f"the server has {limits.clients} clients, which is its limit"
        if not own and self._users[user] >= limits.clients_of_a_user:
            return f"user {user} has {limits.clients_of_a_user} connections, which is the limit"
        return None

    def _listen(self) -> None:
        if not self._ending:
            self.loop.change(self._listener.fileno(), select.EPOLLIN)

    def _wait_for_clients(self) -> None:
        """Ends the server if no client comes for some time."""
        if not self._sessions and self._idle_seconds is not None and not self._ending:
            self._idle = self.loop.later(self._idle_seconds, self._begin_end)

    def _begin_end(self) -> None:
        """Accepts and receives nothing more; ends when what was begun is answered."""
        if self._ending:
            return
        self._ending = True
        self._stopping()
        self._stop_listening()
        for session in self._sessions:
            session.stop_receiving()
        self._end_at = time.monotonic() + _ANSWER_SECONDS
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        busy = any(session.is_busy for session in self._sessions)
        if busy and time.monotonic() < self._end_at:
            self.loop.later(_LOOK_SECONDS, self._end_if_answered)
        else:
            self.loop.stop()

    def _stop_listening(self) -> None:
        if self._owns_socket:
            with contextlib.suppress(FileNotFoundError):
                # Clients that come from now on start another server.
                os.unlink(SOCKET, dir_fd=self._directory)
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _end(self) -> None:
        """Gives back what clients hold, and closes all queues."""
        if not self._ending:
            self._ending = True
            self._stop_listening()
        for session in list(self._sessions):
            session.close()
        self.holding.close()
        self.loop.close()
        _logger.info("ended")


def _refuse(connection: socket.socket, reason: str) -> None:
    """Says why, and hangs up."""
    answer = Answer(0, Status.FAILED, VOCABULARY.pack(ProtocolError(reason)))
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(frame(CODEC.encode(answer)))
