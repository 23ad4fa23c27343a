"""Exit codes, and the error that each stands for: one table for the program, help and docs."""

from __future__ import annotations

import errno
import os

import click

from forebay.errors import (
    Damaged,
    Empty,
    Full,
    InvalidEvent,
    InvalidOption,
    LeaseLost,
    Locked,
    RecordTooLarge,
    TooManyRejected,
    UndecodableEvent,
    UnsupportedVersion,
)
from forebay.queues.shared.reports import place_of
from forebay.storage.filesystem import whose

OK = 0
ERROR = 1
USAGE = 2
NOTHING = 3
DAMAGE = 4
REJECTED = 5
BAD_DATA = 65
CANNOT_CREATE = 73
TRY_AGAIN = 75
INTERRUPTED = 130
BROKEN_PIPE = 141

MEANINGS = {
    OK: "ok",
    ERROR: "error; see the line on stderr",
    USAGE: "the command line is wrong",
    NOTHING: "nothing there: no record to print, or no such item",
    DAMAGE: "damage found: bytes on the disk do not verify",
    REJECTED: "more records rejected than max_rejected of an ingest allows",
    BAD_DATA: "bad data: malformed input, or an unknown format version",
    CANNOT_CREATE: "the queue or file cannot be created",
    TRY_AGAIN: "locked or full: try again later",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "broken pipe: the reader of the output has gone",
}

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Failure(click.ClickException):
    """An error of a verb: one line for the user and the exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> int:
    """Returns the exit code for an error of the library or the system."""
    if isinstance(error, Damaged):
        return DAMAGE
    if isinstance(error, Locked | Full):
        return TRY_AGAIN
    if isinstance(error, Empty | LeaseLost):
        return NOTHING
    if isinstance(error, RecordTooLarge | InvalidEvent | UndecodableEvent | UnsupportedVersion):
        return BAD_DATA
    if isinstance(error, InvalidOption):
        return USAGE
    if isinstance(error, TooManyRejected):
        return REJECTED
    if isinstance(error, OSError) and error.errno in _FULL:
        return TRY_AGAIN
    return ERROR


def message_of(error: BaseException, path: str | None = None) -> str:
    """Returns one line that says what happened and where; `path` is the queue of the verb."""
    if isinstance(error, Damaged):
        damage = error.damage
        text = f'{place_of(damage)}: {damage.reason}; run "forebay fsck" to see what is lost'
    elif isinstance(error, OSError) and error.strerror:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        where = _in_queue(where, path or "")
        text = f"{where}: {error.strerror}" if where else error.strerror
        if isinstance(error, PermissionError):
            text += _whose(where)
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def _in_queue(name: str, path: str) -> str:
    """Returns the path of a file; the system reports a file of the queue by its name only."""
    joined = os.path.join(path, name).rstrip("/")
    elsewhere = name == path or (os.path.lexists(name) and not os.path.lexists(joined))
    return name if elsewhere else joined


def _whose(path: str) -> str:
    """Returns a hint about the owner of an unreadable path: that user can read it."""
    while path:
        try:
            number = os.stat(path).st_uid
        except OSError:
            path = os.path.dirname(path)
            continue
        if number == os.geteuid():
            return "; its mode forbids it"
        return f"; {path} {whose(number)}"
    return ""


def help_text() -> str:
    """Lists the codes, for the end of the help text."""
    rows = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    return f"\b\nExit codes:\n{rows}"
