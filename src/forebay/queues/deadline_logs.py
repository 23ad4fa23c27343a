"""Reads the logs of a deadline queue, and tells what a power cut left from damage.

What a power cut takes is a suffix: a bad batch that was never known to be durable ends its log,
even if good ones follow. One that was durable is damage, and costs itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import parse_file_name
from forebay.formats.deadline_wal import (
    HEADER_BYTES,
    Durable,
    Record,
    decode_header,
    repair_header,
    scan_all,
)
from forebay.frames import Damage
from forebay.storage import atomic
from forebay.storage.filesystem import Directory


@dataclass(slots=True)
class FoundLog:
    """A log as it was found; `followed`: there is something in a later one."""

    name: str
    data: bytes
    records: list[Record | Durable | Damage]
    followed: bool = False

    def judge(self, damage: Damage) -> Damage:
        """Says whether a bad batch ends the log: a power cut took it, and what is behind it.

        It may leave later bytes in place. What it takes counts as a suffix all the same: half of
        what happened would be something that never was.
        """
        if damage.position < HEADER_BYTES:
            # A header is durable before anything else is: without it, all is lost.
            return damage
        marks = (record.position for record in self.records if isinstance(record, Durable))
        if self.followed or damage.torn or damage.position < max(marks, default=0):
            return damage
        return replace(damage, length=len(self.data) - damage.position, torn=True)


def read_logs(
    directory: Directory, names: Iterable[str]
) -> Iterator[tuple[FoundLog, Record | Damage]]:
    """Yields the records of logs, the oldest first, and what of them does not verify."""
    logs = [_read(directory, name) for name in names]
    followed = False
    for log in reversed(logs):
        # A log is synced before the next one gets its first batch.
        log.followed = followed
        followed = followed or any(not isinstance(record, Damage) for record in log.records)
    for log in logs:
        for record in log.records:
            if isinstance(record, Damage):
                damage = log.judge(record)
                yield log, damage
                if damage.torn:
                    break
            elif not isinstance(record, Durable):
                yield log, record


def _read(directory: Directory, name: str) -> FoundLog:
    path = f"{directory.path}/{name}"
    data = atomic.read_small(directory, name)
    if data is None:
        raise FileNotFoundError(path)
    try:
        header = decode_header(data, path)
    except (Damaged, NotAQueue) as error:
        known = parse_file_name(name.removesuffix(atomic.TEMPORARY))
        repaired = repair_header(data, known[0]) if known is not None else None
        if repaired is None:
            # With nothing behind it, the log was just being made.
            torn = not data[HEADER_BYTES:].strip(b"\0")
            return FoundLog(name, data, [Damage(path, 0, len(data), str(error), torn)])
        header = repaired
    return FoundLog(name, data, list(scan_all(data, path, header)))
