"""Forebay: durable queues on the local disk, that Spark reads."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forebay.errors import (
    Closed,
    Damaged,
    Empty,
    ForebayError,
    Full,
    InvalidEvent,
    InvalidOption,
    LeaseLost,
    Locked,
    NotAQueue,
    NotInstalled,
    Overtaken,
    RecordTooLarge,
    Reentered,
    UndecodableEvent,
    UnsupportedVersion,
    WrongKey,
)
from forebay.frames import Damage
from forebay.kernels.records import Record
from forebay.queues.consumer import Consumer
from forebay.queues.kinds import kind_of
from forebay.queues.log import Log
from forebay.queues.losses import accept_losses
from forebay.queues.reader import LogReader

if TYPE_CHECKING:
    from forebay.formats.beats_events import Event
    from forebay.formats.entry import Entry
    from forebay.queues.deadline import DeadlineQueue
    from forebay.queues.deadline_item import DeadlineItem
    from forebay.queues.deadline_reader import DeadlineReader
    from forebay.queues.event import EventQueue
    from forebay.queues.event_batch import EventBatch
    from forebay.queues.event_reader import EventReader
    from forebay.queues.fifo import Fifo
    from forebay.queues.fifo_reader import FifoReader
    from forebay.queues.root import Root

__version__ = "0.1.0"

# Imported at first use: who only has logs needs neither LZ4 nor AES nor CBOR.
_MODULES = {
    "DeadlineItem": "forebay.queues.deadline_item",
    "DeadlineQueue": "forebay.queues.deadline",
    "DeadlineReader": "forebay.queues.deadline_reader",
    "Entry": "forebay.formats.entry",
    "Event": "forebay.formats.beats_events",
    "EventBatch": "forebay.queues.event_batch",
    "EventQueue": "forebay.queues.event",
    "EventReader": "forebay.queues.event_reader",
    "Fifo": "forebay.queues.fifo",
    "FifoReader": "forebay.queues.fifo_reader",
    "Root": "forebay.queues.root",
}

__all__ = [
    "Closed",
    "Consumer",
    "Damage",
    "Damaged",
    "DeadlineItem",
    "DeadlineQueue",
    "DeadlineReader",
    "Empty",
    "Entry",
    "Event",
    "EventBatch",
    "EventQueue",
    "EventReader",
    "Fifo",
    "FifoReader",
    "ForebayError",
    "Full",
    "InvalidEvent",
    "InvalidOption",
    "LeaseLost",
    "Locked",
    "Log",
    "LogReader",
    "NotAQueue",
    "NotInstalled",
    "Overtaken",
    "Record",
    "RecordTooLarge",
    "Reentered",
    "Root",
    "UndecodableEvent",
    "UnsupportedVersion",
    "WrongKey",
    "accept_losses",
    "open",
    "read",
]


def open(path: str | os.PathLike[str], **options: Any) -> Any:
    """Opens a queue that is there, of whatever kind it is; raises `NotAQueue` if there is none."""
    kind = kind_of(path)
    if kind.name == "log":
        LogReader(path).close()
    return kind.open_queue(path, **options)


def read(path: str | os.PathLike[str], *, salvage: bool = False, **options: Any) -> Any:
    """Reads a queue without owning it: no lock, nothing written, dead or alive.

    An event queue takes `key_file` and `dialect` as well.
    """
    return kind_of(path).open_reader(path, salvage=salvage, **options)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
