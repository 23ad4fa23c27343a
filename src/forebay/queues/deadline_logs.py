"""Reads the logs of a deadline queue, and tells what a power cut left from damage.

What a power cut takes is a suffix: a bad batch that was never known to be durable ends its log,
even if good ones follow. One that was durable is damage, and costs itself. Batches in the staging
buffer are the end of the log that their chunk names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import parse_file_name
from forebay.formats.deadline_wal import (
    HEADER_BYTES,
    Durable,
    Header,
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
    """A log as it was found; `followed`: there is something in a later one."""

    name: str
    data: bytes
    parts: list[list[kernel.Record] | Durable | Damage]
    followed: bool = False

    def judge(self, damage: Damage) -> Damage:
        """Says whether a bad batch ends the log: a power cut took it, and what is behind it.

        It may leave later bytes in place. What it takes counts as a suffix all the same: half of
        what happened would be something that never was.
        """
        if damage.position < HEADER_BYTES:
            # A header is durable before anything else is: without it, all is lost.
            return damage
        marks = (part.position for part in self.parts if isinstance(part, Durable))
        if self.followed or damage.torn or damage.position < max(marks, default=0):
            return damage
        return replace(damage, length=len(self.data) - damage.position, torn=True)


def read_logs(
    directory: Directory, names: Iterable[str], staged: Staged | None
) -> Iterator[tuple[FoundLog, list[kernel.Record] | Damage]]:
    """Yields the records of logs, the oldest first, some at a time, and what does not verify.

    `staged` is what was in the staging buffer before the names were listed.
    """
    logs = [_read(directory, name, staged) for name in names]
    followed = False
    for log in reversed(logs):
        # A log is synced before the next one gets its first batch.
        log.followed = followed
        followed = followed or any(not isinstance(part, Damage) for part in log.parts)
    for log in logs:
        for part in log.parts:
            if isinstance(part, Damage):
                damage = log.judge(part)
                yield log, damage
                if damage.torn:
                    break
            elif not isinstance(part, Durable):
                yield log, part


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
    return FoundLog(name, data, list(scan_rows(data, path, header)))


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
