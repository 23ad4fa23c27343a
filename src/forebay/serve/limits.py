"""The limits of a server: what a client may ask for, send and hold, and for how long.

Each is checked before anything is allocated or begun. Page: docs/serve.md.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from forebay.errors import InvalidOption
from forebay.wire.frames import FRAME_BYTES_MAX

# The first message of a client is short: until it has come, nothing longer is received.
HELLO_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits, each with its default.

    - `clients`: how many clients are connected at a time.
    - `clients_of_a_user`: how many of these may be of one user other than the server's own.
    - `frame_bytes`: the size of a message.
    - `batch_records`: how many records a request may put or ask for at a time.
    - `received_bytes`: what was received of unfinished or waiting requests, over all clients.
    - `requests`: how many requests of a client are under way.
    - `held`: how many things a client holds: queues, loans, batches, consumers, iterators.
    - `hello_seconds`: how long after it connected the first message of a client must have come.
    - `stalled_seconds`: how long a client may be in the middle of a message, or leave what waits
      for it unread, without a byte going over.
    """

    clients: int = 1024
    clients_of_a_user: int = 256
    frame_bytes: int = FRAME_BYTES_MAX
    batch_records: int = 1 << 18
    received_bytes: int = 256 << 20
    requests: int = 16_384
    held: int = 4096
    hello_seconds: float = 5.0
    stalled_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuses what is no limit, and a frame that the protocol does not have."""
        for each in fields(self):
            value = getattr(self, each.name)
            kinds = int | float if each.name.endswith("seconds") else int
            if not isinstance(value, kinds) or isinstance(value, bool) or value <= 0:
                raise InvalidOption(f"{each.name} = {value!r}: must be a number above 0")
        if not HELLO_BYTES_MAX <= self.frame_bytes <= FRAME_BYTES_MAX:
            raise InvalidOption(
                f"frame_bytes = {self.frame_bytes}: must be {HELLO_BYTES_MAX} to {FRAME_BYTES_MAX}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Limits:
        """Makes limits of a table of a configuration; refuses unknown names."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidOption(f"[limits] {name}: there are {', '.join(known)}")
        return cls(**given)


def raise_descriptors() -> None:
    """Allows this process as many open files as it may have: each queue has several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
