"""Forebay: durable queues on the local disk, that Spark reads."""

from __future__ import annotations

import os
from typing import Any

from forebay.errors import (
    Closed,
    Damaged,
    Empty,
    ForebayError,
    Full,
    InvalidOption,
    Locked,
    NotAQueue,
    NotInstalled,
    Overtaken,
    RecordTooLarge,
    UnsupportedVersion,
)
from forebay.frames import Damage
from forebay.kernels.records import Record
from forebay.queues.consumer import Consumer
from forebay.queues.log import Log
from forebay.queues.reader import LogReader

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Consumer",
    "Damage",
    "Damaged",
    "Empty",
    "ForebayError",
    "Full",
    "InvalidOption",
    "Locked",
    "Log",
    "LogReader",
    "NotAQueue",
    "NotInstalled",
    "Overtaken",
    "Record",
    "RecordTooLarge",
    "UnsupportedVersion",
    "open",
    "read",
]


def open(path: str | os.PathLike[str], **options: Any) -> Log:
    """Opens a queue that is there, of whatever kind it is; raises `NotAQueue` if there is none."""
    LogReader(path).close()
    return Log(path, **options)


def read(path: str | os.PathLike[str], *, salvage: bool = False) -> LogReader:
    """Reads a queue without owning it: no lock, nothing written, dead or alive."""
    return LogReader(path, salvage=salvage)
