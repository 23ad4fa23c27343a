"""Reads the logs of a deadline queue, and tells what a power cut left from damage.

What a power cut takes is a suffix: a bad batch that was never known to be durable ends its log,
even if good ones follow, and so it ends the logs that go on from it. One that was durable is
damage, and costs itself. Batches in the staging buffer are the end of the log that their chunk
names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import parse_file_name
from forebay.formats.deadline_wal import (
    HEADER_BYTES,
    After,
    Durable,
    Header,
    Note,
    decode_header,
    repair_header,
    scan_rows,
    whole_bytes,
)
from forebay.frames import Damage
from forebay.kernels import deadline_wal as kernel
from forebay.storage import atomic
from forebay.storage.filesystem import Directory
from forebay.storage.staging import Staged

# Behind the header of the log in that of a staged chunk: where in the log the chunk goes.
STAGED_PLACE = struct.Struct("<Q")


@dataclass(slots=True)
class FoundLog:
    """A log as it was found; `end` is where its last good batch ends.

    `durable`: a later one tells that all of it was durable.
    """

    name: str
    data: bytes
    parts: list[list[kernel.Record] | Note | Damage]
    number: int = 0
    end: int = 0
    durable: bool = False

    @property
    def tells_of_a_sync(self) -> bool:
        """Whether it could not be as it is if those before it had not been durable."""
        if any(isinstance(part, Durable) for part in self.parts):
            return True
        return bool(self.parts) and not isinstance(self.parts[0], After | Damage)

    def goes_on_from(self, before: FoundLog | None) -> bool:
        """Says whether the log before, as it was read, is whole: otherwise this one is gone too."""
        first = self.parts[0] if self.parts else None
        if before is None or before.durable or not isinstance(first, After):
            return True
        return first.number != before.number or first.position <= before.end

    def judge(self, damage: Damage) -> Damage:
        """Says whether a bad batch ends the log: a power cut took it, and what is behind it.

        It may leave later bytes in place. What it takes counts as a suffix all the same: half of
        what happened would be something that never was.
        """
        if damage.position < HEADER_BYTES:
            # A header is durable before anything else is: without it, all is lost.
            return damage
        marks = (part.position for part in self.parts if isinstance(part, Durable))
        if self.durable or damage.torn or damage.position < max(marks, default=0):
            return damage
        return replace(damage, length=len(self.data) - damage.position, torn=True)

    def read(self) -> Iterator[list[kernel.Record] | Damage]:
        """Yields its records, some at a time, and what does not verify, up to its end."""
        for part in self.parts:
            if isinstance(part, Damage):
                damage = self.judge(part)
                yield damage
                if damage.torn:
                    self.end = damage.position
                    return
            elif not isinstance(part, Note):
                yield part


def read_logs(
    directory: Directory, names: Iterable[str], staged: Staged | None
) -> Iterator[tuple[FoundLog, list[kernel.Record] | Damage]]:
    """Yields the records of logs, the oldest first, some at a time, and what does not verify.

    `staged` is what was in the staging buffer before the names were listed.
    """
    logs = [_read(directory, name, staged) for name in names]
    durable = False
    for log in reversed(logs):
        log.durable = durable
        durable = durable or log.tells_of_a_sync
    before: FoundLog | None = None
    gone = False
    for log in logs:
        gone = gone or not log.goes_on_from(before)
        if gone:
            reason = "a power cut took the end of the log before"
            path, size = f"{directory.path}/{log.name}", max(len(log.data) - HEADER_BYTES, 0)
            yield log, Damage(path, HEADER_BYTES, size, reason, torn=True)
            continue
        for part in log.read():
            yield log, part
        before = log


def _read(directory: Directory, name: str, staged: Staged | None) -> FoundLog:
    path = f"{directory.path}/{name}"
    data = atomic.read_small(directory, name)
    if data is None:
        raise FileNotFoundError(path)
    known = parse_file_name(name.removesuffix(atomic.TEMPORARY))
    try:
        header = decode_header(data, path)
        if known is not None and header.number != known[0]:
            # A power cut left what was on the disk before: the log was just being made.
            reason = f"the bytes are those of log {header.number}"
            return FoundLog(name, data, [Damage(path, 0, len(data), reason, torn=True)])
    except (Damaged, NotAQueue) as error:
        repaired = repair_header(data, known[0]) if known is not None else None
        if repaired is None:
            # With nothing behind it, the log was just being made.
            torn = not data[HEADER_BYTES:].strip(b"\0")
            return FoundLog(name, data, [Damage(path, 0, len(data), str(error), torn)])
        header = repaired
    data = with_staged(data, header, staged)
    found = list(scan_rows(data, path, header))
    end = found[-1][1] if found else HEADER_BYTES
    return FoundLog(name, data, [part for part, _ in found], header.number, end)


def with_staged(data: bytes, header: Header, staged: Staged | None) -> bytes:
    """Gives a log with the staged batches that belong behind its own.

    Where bytes before them are missing, zeros stand: a hole that a power cut has left.
    """
    if staged is None or staged.header[:HEADER_BYTES] != header.encode():
        return data
    (position,) = STAGED_PLACE.unpack(staged.header[HEADER_BYTES:])
    whole = staged.frames[: whole_bytes(staged.frames, staged.index, header)]
    if position + len(whole) <= len(data):
        return data
    return data[:position].ljust(position, b"\0") + whole
