"""Every exception that Forebay raises.

    ForebayError
    ├── the caller's mistake
    │   ├── InvalidOption          also a ValueError: an option out of its bounds
    │   ├── RecordTooLarge         also a ValueError: the record cannot fit into a segment
    │   ├── InvalidEvent           also a ValueError: the format cannot hold this event
    │   └── NotAQueue              the path is not a queue, or not one that may be opened
    ├── the state of a queue
    │   ├── Closed                 the handle is closed, failed, or belongs to the parent of a fork
    │   ├── Locked                 another process, or another handle, owns it
    │   ├── Full                   also a queue.Full: max_bytes is reached
    │   ├── Empty                  also a queue.Empty: nothing came in time
    │   ├── LeaseLost              the item is no longer the caller's: given out again, or gone
    │   └── Overtaken              a reader's next records were trimmed or dropped meanwhile
    ├── the machine
    │   └── NotInstalled           Java or Spark is missing, or of a version that does not fit
    └── the data
        ├── Damaged                bytes that do not verify: path, position, reason
        ├── DataLoss               records that a stream had yet to read are gone, or others' now
        ├── UndecodableEvent       a frame that verifies and holds no event
        ├── WrongKey               an encrypted file, and no key or another one than its own
        └── UnsupportedVersion     a format version that this program does not know

    RuntimeError
    └── Reentered                  close() inside a call of the same thread, as by a signal handler

`OSError` passes through untouched: a full disk is `OSError(ENOSPC)`, as everywhere in Python.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.damage import Damage


class ForebayError(Exception):
    """The root of all errors of Forebay."""


class InvalidOption(ForebayError, ValueError):
    """An option has a value that is not allowed; the message names the bound."""


class RecordTooLarge(ForebayError, ValueError):
    """The record cannot fit into a segment, whatever happens; nothing was written."""


class InvalidEvent(ForebayError, ValueError):
    """The event cannot be written so that Beats reads it; nothing was written."""


class NotAQueue(ForebayError):
    """The path is no queue directory, or not one that may safely be opened."""


class Closed(ForebayError):
    """The handle can no longer be used; the message says why."""


class Reentered(RuntimeError):
    """The queue cannot be closed by a thread that is inside one of its calls.

    Like an interrupt it ends that call. So it is no `ForebayError`: the call must not take it for
    an error of its own.
    """


class Locked(ForebayError):
    """Somebody else owns the queue or the cursor; `pid` tells who, if it is known."""

    def __init__(self, what: str, pid: int | None) -> None:
        owner = f"process {pid}" if pid is not None else "another process or handle"
        super().__init__(f"{what} is in use by {owner}; close it there first")
        self.pid = pid


class Full(ForebayError, queue.Full):
    """The queue holds `max_bytes`; nothing was written."""


class Empty(ForebayError, queue.Empty):
    """Nothing to read came within the timeout."""


class LeaseLost(ForebayError):
    """The lease of an item has run out or was given up; nothing was changed."""


class Overtaken(ForebayError):
    """Records that a reader had not read are gone; a consumer gets it once and goes on."""

    def __init__(self, name: str, lost: int, *, exact: bool = True) -> None:
        """`lost` is at least 1 where nobody knows how many, and `exact` is false."""
        number = str(lost) if exact else f"at least {lost}"
        super().__init__(
            f"{name}: {number} unread records were trimmed or dropped meanwhile; "
            "the next read goes on behind them"
        )
        self.lost = lost


class NotInstalled(ForebayError):
    """A program that the job needs is missing or does not fit; the message says what to install."""


class Damaged(ForebayError):
    """Bytes on the disk do not verify; `damage` holds path, position, length and reason."""

    def __init__(
        self, damage: Damage, remedy: str = 'read round it with "forebay cat --salvage"'
    ) -> None:
        super().__init__(f"{damage.path}, byte {damage.position}: {damage.reason}; {remedy}")
        self.damage = damage


class DataLoss(ForebayError):
    """Records that a reader counted on are gone: trimmed, lost to a power cut, or never there."""


class UndecodableEvent(ForebayError):
    """The bytes of a frame verify and hold no event; the message says what is wrong with them."""


class WrongKey(ForebayError):
    """The file is encrypted and the key is missing or another one; its bytes may be whole."""


class UnsupportedVersion(ForebayError):
    """The file is of a version that this program does not read."""
