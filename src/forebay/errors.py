"""Every exception that Forebay raises.

    ForebayError
    ├── the caller's mistake
    │   ├── InvalidOption          also a ValueError: an option out of its bounds
    │   ├── RecordTooLarge         also a ValueError: the record cannot fit in a segment
    │   ├── InvalidEvent           also a ValueError: the format cannot hold this event
    │   └── NotAQueue              the path is not a queue, or not one that may be opened
    ├── the state of a queue
    │   ├── Closed                 the handle is closed, failed, or belongs to the parent of a fork
    │   ├── Locked                 another process, or another handle, owns it
    │   ├── Full                   also a queue.Full: max_bytes is reached
    │   ├── Empty                  also a queue.Empty: nothing came in time
    │   ├── LeaseLost              the caller no longer has the item: delivered again, or gone
    │   ├── Overtaken              a reader's next records were trimmed or dropped meanwhile
    │   └── ServerGone             the server of a shared queue ended during the call
    ├── the machine
    │   ├── OutputRefused          an output will never take a record; its words say why
    │   ├── NotInstalled           Java, Spark or a library of an extra is missing or does not fit
    │   └── ProtocolError          client and server of a shared queue do not understand each other
    └── the data
        ├── Damaged                bytes that do not verify: path, position, reason
        ├── DataLoss               records that a stream had yet to read are gone or replaced
        ├── TooManyRejected        a batch of an ingest with more rejected records than allowed
        ├── UndecodableEvent       a frame that verifies but holds no event
        ├── WrongKey               an encrypted file with no key or the wrong one
        └── UnsupportedVersion     a format version that this program does not know

    RuntimeError
    └── Reentered                  close() inside a call of the same thread, as in a signal handler

`OSError` passes through untouched: a full disk is `OSError(ENOSPC)`, as everywhere in Python.
"""

from __future__ import annotations

import queue

from forebay.damage import Damage


class ForebayError(Exception):
    """The base class of all errors of Forebay."""


class InvalidOption(ForebayError, ValueError):
    """An option has a value that is not allowed; the message names the bound."""


class RecordTooLarge(ForebayError, ValueError):
    """The record can never fit in a segment; nothing was written."""


class InvalidEvent(ForebayError, ValueError):
    """The event cannot be written in a form that Beats reads; nothing was written."""


class NotAQueue(ForebayError):
    """The path is not a queue directory, or not one that is safe to open."""


class Closed(ForebayError):
    """The handle can no longer be used; the message says why."""


class Reentered(RuntimeError):
    """A thread that is inside a call of the queue cannot close it.

    Like an interrupt it ends that call. So it is not a `ForebayError`: the call must not take it
    for an error of its own.
    """


class Locked(ForebayError):
    """Another process or handle owns the queue or the cursor; `pid` is its process, if known."""

    def __init__(self, what: str, pid: int | None, remedy: str = "close it there first") -> None:
        owner = f"process {pid}" if pid is not None else "another process or handle"
        super().__init__(f"{what} is in use by {owner}; {remedy}")
        self.pid = pid


class Full(ForebayError, queue.Full):
    """The queue holds `max_bytes`; nothing was written."""


class Empty(ForebayError, queue.Empty):
    """Nothing to read arrived within the timeout."""


class LeaseLost(ForebayError):
    """The lease of an item has expired or was given up; nothing was changed."""


class Overtaken(ForebayError):
    """Unread records are gone; a consumer gets this once and then continues."""

    def __init__(self, name: str, lost: int, *, exact: bool = True) -> None:
        """`lost` is at least 1 and `exact` is false if the number is unknown."""
        number = str(lost) if exact else f"at least {lost}"
        super().__init__(
            f"{name}: {number} unread records were trimmed or dropped meanwhile; "
            "the next read continues after them"
        )
        self.lost = lost


class ServerGone(ForebayError):
    """The server ended before it answered: whether the call was carried out is not known.

    The next call starts another server.
    """


class ProtocolError(ForebayError):
    """A message between a client and a server is not what the protocol allows."""


class OutputRefused(ForebayError):
    """An output will never take these records; a function of the user raises it to say so."""


class NotInstalled(ForebayError):
    """A program or a library is missing or does not fit; the message says what to install."""


class Damaged(ForebayError):
    """Bytes on the disk do not verify; `damage` holds path, position, length and reason."""

    def __init__(
        self, damage: Damage, remedy: str = 'skip it with "forebay cat --salvage"'
    ) -> None:
        super().__init__(f"{damage.path}, byte {damage.position}: {damage.reason}; {remedy}")
        self.damage = damage


class TooManyRejected(ForebayError):
    """A batch has more rejected records than `max_rejected` allows; nothing of it is published."""


class DataLoss(ForebayError):
    """Records that a reader relied on are gone: trimmed, lost in a power cut, or never there."""


class UndecodableEvent(ForebayError):
    """The bytes of a frame verify but hold no event; the message says what is wrong with them."""


class WrongKey(ForebayError):
    """The file is encrypted and the key is missing or wrong; its bytes may be intact."""


class UnsupportedVersion(ForebayError):
    """The file has a version that this program does not read."""
