"""What systemd and a service say to each other: it is ready, it is alive, it stops; its socket.

The messages are those of `sd_notify(3)` and `sd_listen_fds(3)`, without the library. Without the
variables of systemd in the environment nothing is sent and nothing is taken.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

_FIRST_DESCRIPTOR = 3


class Supervisor:
    """The supervisor that has started this process, if there is one."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        own = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "") if own else ""
        # Twice as often as it must be.
        self.alive_seconds = int(microseconds) / 2e6 if microseconds.isdigit() else None

    def tell(self, message: str) -> None:
        """Sends a message, if there is somebody to send it to."""
        if not self._address:
            return
        # "@" stands for the NUL of an abstract address.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.sendto(message.encode(), address)


def passed_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Returns the listening socket that the supervisor has made; None if it has made none."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    if environment.get("LISTEN_FDS") != "1":
        raise OSError(f"LISTEN_FDS = {environment.get('LISTEN_FDS')}: one socket was expected")
    os.set_inheritable(_FIRST_DESCRIPTOR, False)
    return socket.socket(fileno=_FIRST_DESCRIPTOR)
