"""Forebay: durable queues on the local disk, that Spark reads."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from forebay.damage import Damage
from forebay.errors import (
    Closed,
    Damaged,
    DataLoss,
    Empty,
    ForebayError,
    Full,
    InvalidEvent,
    InvalidOption,
    LeaseLost,
    Locked,
    NotAQueue,
    NotInstalled,
    OutputRefused,
    Overtaken,
    ProtocolError,
    RecordTooLarge,
    Reentered,
    ServerGone,
    TooManyRejected,
    UndecodableEvent,
    UnsupportedVersion,
    WrongKey,
)
from forebay.kernels import compiled
from forebay.queues.kinds import accept_losses, check, convert, describe, recover, segments
from forebay.queues.log.consumer import Consumer
from forebay.queues.log.info import LogInfo
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.log.staged import Record
from forebay.queues.opening import AnyQueue, AnyReader, KindName, open, read
from forebay.queues.shared.options import Duration
from forebay.queues.shared.reports import CopyReport, QueueInfo, Report, SegmentFacts

if TYPE_CHECKING:
    from forebay.formats.beats.events import Event
    from forebay.forward.manager import OutputManager
    from forebay.kernels.entry import Entry
    from forebay.queues.archive.archiver import Archiver, ArchiveReport, archive
    from forebay.queues.beats.batch import EventBatch
    from forebay.queues.beats.info import BeatsInfo
    from forebay.queues.beats.queue import BeatsQueue
    from forebay.queues.beats.reader import BeatsReader
    from forebay.queues.deadline.info import DeadlineInfo
    from forebay.queues.deadline.item import DeadlineItem
    from forebay.queues.deadline.queue import DeadlineQueue
    from forebay.queues.deadline.reader import DeadlineReader
    from forebay.queues.fifo.info import FifoInfo
    from forebay.queues.fifo.queue import Fifo
    from forebay.queues.fifo.reader import FifoReader
    from forebay.queues.root import Definition, Root

# The one place of the version: the metadata of the package are made from it.
__version__ = "0.2.0"

# Imported at first use: a program that only uses logs needs neither LZ4 nor AES nor CBOR.
_MODULES = {
    "ArchiveReport": "forebay.queues.archive.archiver",
    "Archiver": "forebay.queues.archive.archiver",
    "archive": "forebay.queues.archive.archiver",
    "DeadlineItem": "forebay.queues.deadline.item",
    "DeadlineQueue": "forebay.queues.deadline.queue",
    "DeadlineReader": "forebay.queues.deadline.reader",
    "Entry": "forebay.kernels.entry",
    "Event": "forebay.formats.beats.events",
    "EventBatch": "forebay.queues.beats.queue",
    "BeatsQueue": "forebay.queues.beats.queue",
    "BeatsReader": "forebay.queues.beats.reader",
    "Fifo": "forebay.queues.fifo.queue",
    "FifoReader": "forebay.queues.fifo.reader",
    "Definition": "forebay.queues.root",
    "Root": "forebay.queues.root",
    "BeatsInfo": "forebay.queues.beats.info",
    "DeadlineInfo": "forebay.queues.deadline.info",
    "OutputManager": "forebay.forward.manager",
    "FifoInfo": "forebay.queues.fifo.info",
}

__all__ = [
    "AnyQueue",
    "AnyReader",
    "ArchiveReport",
    "Archiver",
    "Closed",
    "Consumer",
    "CopyReport",
    "Damage",
    "Damaged",
    "DataLoss",
    "DeadlineInfo",
    "DeadlineItem",
    "DeadlineQueue",
    "DeadlineReader",
    "Definition",
    "Duration",
    "Empty",
    "Entry",
    "Event",
    "EventBatch",
    "BeatsInfo",
    "BeatsQueue",
    "BeatsReader",
    "Fifo",
    "FifoInfo",
    "FifoReader",
    "ForebayError",
    "Full",
    "InvalidEvent",
    "InvalidOption",
    "KindName",
    "LeaseLost",
    "Locked",
    "Log",
    "LogInfo",
    "LogReader",
    "NotAQueue",
    "NotInstalled",
    "OutputManager",
    "OutputRefused",
    "Overtaken",
    "ProtocolError",
    "QueueInfo",
    "Record",
    "RecordTooLarge",
    "Reentered",
    "Report",
    "Root",
    "SegmentFacts",
    "ServerGone",
    "TooManyRejected",
    "UndecodableEvent",
    "UnsupportedVersion",
    "WrongKey",
    "accept_losses",
    "archive",
    "check",
    "compiled",
    "convert",
    "describe",
    "open",
    "read",
    "recover",
    "segments",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
