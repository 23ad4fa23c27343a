"""Forebay: durable queues on the local disk, that Spark reads."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forebay.damage import Damage
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
from forebay.kernels import compiled
from forebay.queues.kinds import accept_losses, check, convert, kind_of, recover, sure_kind_of
from forebay.queues.log.consumer import Consumer
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.log.staged import Record
from forebay.queues.shared.reports import CopyReport, Report

if TYPE_CHECKING:
    from forebay.formats.beats.events import Event
    from forebay.formats.entry import Entry
    from forebay.queues.beats.batch import EventBatch
    from forebay.queues.beats.queue import BeatsQueue
    from forebay.queues.beats.reader import BeatsReader
    from forebay.queues.deadline.item import DeadlineItem
    from forebay.queues.deadline.queue import DeadlineQueue
    from forebay.queues.deadline.reader import DeadlineReader
    from forebay.queues.fifo.queue import Fifo
    from forebay.queues.fifo.reader import FifoReader
    from forebay.queues.root import Root

__version__ = "0.1.0"

# Imported at first use: who only has logs needs neither LZ4 nor AES nor CBOR.
_MODULES = {
    "DeadlineItem": "forebay.queues.deadline.item",
    "DeadlineQueue": "forebay.queues.deadline.queue",
    "DeadlineReader": "forebay.queues.deadline.reader",
    "Entry": "forebay.formats.entry",
    "Event": "forebay.formats.beats.events",
    "EventBatch": "forebay.queues.beats.queue",
    "BeatsQueue": "forebay.queues.beats.queue",
    "BeatsReader": "forebay.queues.beats.reader",
    "Fifo": "forebay.queues.fifo.queue",
    "FifoReader": "forebay.queues.fifo.reader",
    "Root": "forebay.queues.root",
}

__all__ = [
    "Closed",
    "Consumer",
    "CopyReport",
    "Damage",
    "Damaged",
    "DeadlineItem",
    "DeadlineQueue",
    "DeadlineReader",
    "Empty",
    "Entry",
    "Event",
    "EventBatch",
    "BeatsQueue",
    "BeatsReader",
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
    "Report",
    "Root",
    "UndecodableEvent",
    "UnsupportedVersion",
    "WrongKey",
    "accept_losses",
    "check",
    "compiled",
    "convert",
    "open",
    "read",
    "recover",
]


def open(path: str | os.PathLike[str], **options: Any) -> Any:
    """Opens a queue that is there, of whatever kind it is; raises `NotAQueue` if there is none."""
    return sure_kind_of(path).open_queue(path, **options)


def read(path: str | os.PathLike[str], *, salvage: bool = False, **options: Any) -> Any:
    """Reads a queue without owning it: no lock, nothing written, dead or alive.

    A Beats queue takes `key_file` and `dialect` as well.
    """
    return kind_of(path).open_reader(path, salvage=salvage, **options)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
