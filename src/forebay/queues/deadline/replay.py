"""Reads the logs of a deadline queue, and distinguishes a power cut from damage.

The mark says how far the logs were durable. A bad batch below that is damage and costs itself. What
a power cut removes above it is a suffix: a bad batch there ends its log, even if good ones follow,
and so it ends the logs that continue it. If the machine has not rebooted since the mark was
written, no power was cut: then the mark's written end counts, and above it bad bytes before good
ones are damage. Batches in the staging buffer are the end of the log that their chunk names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue, UnsupportedVersion
from forebay.formats.deadline.items import FileKind
from forebay.formats.deadline.manifest import LogRow, Manifest
from forebay.formats.deadline.mark import End, Mark
from forebay.formats.deadline.wal import (
    HEADER_BYTES_MAX,
    After,
    Durable,
    Header,
    Note,
    Origin,
    decode_header,
    repair_header,
    scan_rows,
    whole_bytes,
)
from forebay.kernels import deadline as kernel
from forebay.queues.deadline.bytes import SafeReader, read_whole, reason_of
from forebay.queues.deadline.names import list_files, wal_name
from forebay.storage import atomic
from forebay.storage.filesystem import Directory
from forebay.storage.staging import Staged

# After the log's header, in the header of a staged chunk: where in the log the chunk goes.
STAGED_PLACE = struct.Struct("<Q")
if TYPE_CHECKING:
    Rows = list[kernel.Record]


@dataclass(slots=True)
class FoundLog:
    """A log as it was found; `end` is where its last good batch ends.

    `row` is its row in the manifest. `required`: it must exist. `durable`: a later log shows that
    all of it was durable. Below `limit` everything was durable, or was written with no power cut
    since.
    """

    name: str
    number: int
    path: str
    row: LogRow | None = None
    required: bool = False
    data: bytes = b""
    header: Header | None = None
    mended: bool = False
    parts: list[Rows | Note | Damage] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    reader: SafeReader | None = None
    end: int = 0
    limit: int = 0
    durable: bool = False
    same_boot: bool = False
    # A power cut removed the end of the previous log, and this one with it.
    gone: bool = False
    # Why nothing of the file can be read. Its staged batches may exist nevertheless.
    trouble: str = ""

    @property
    def origin(self) -> Origin | None:
        """The origin that it begins with; None if it has none."""
        first = self.parts[0] if self.parts else None
        return first if isinstance(first, Origin) else None

    @property
    def first_id(self) -> int | None:
        """The first id that was used in it; None if unknown."""
        origin = self.origin
        if origin is not None:
            return origin.first_id or None
        return (self.row.first_id or None) if self.row is not None else None

    @property
    def copied(self) -> int | None:
        """How many items of other logs it begins with; None if unknown."""
        origin = self.origin
        if origin is not None:
            return origin.copied
        return self.row.copied if self.row is not None and self.row.first_id else None

    @property
    def tells_of_a_sync(self) -> bool:
        """Whether it could only be written after the logs before it were durable."""
        if any(isinstance(part, Durable) for part in self.parts):
            return True
        first = self.parts[0] if self.parts else None
        if isinstance(first, Origin):
            return first.durable
        return first is not None and not isinstance(first, After | Damage)

    def goes_on_from(self, before: FoundLog | None) -> bool:
        """Says whether the previous log, as read, is whole: otherwise this one is gone too."""
        first = self.parts[0] if self.parts else None
        if before is None or before.durable or self.same_boot:
            return True
        if isinstance(first, Origin) and not first.durable:
            return first.before != before.number or first.end <= before.end
        if isinstance(first, After):
            return first.number != before.number or first.position <= before.end
        return True

    def judge(self, damage: Damage) -> Damage:
        """Says whether a bad batch ends the log: a power cut removed it, and what is after it.

        A power cut may leave later bytes in place. The loss counts as a suffix nevertheless: half
        of what happened would be a state that never existed.
        """
        reason = self._reason(damage.position, damage.length) or damage.reason
        damage = replace(damage, reason=reason)
        if damage.position < self.limit:
            if damage.torn:
                return replace(damage, torn=False, length=self.limit - damage.position)
            return damage
        marks = (part.position for part in self.parts if isinstance(part, Durable))
        below = self.durable or self.same_boot or damage.position < max(marks, default=0)
        if damage.torn or below:
            return damage
        return replace(damage, length=len(self.data) - damage.position, torn=True)

    def read(self) -> Iterator[Rows | Damage]:
        """Yields its records, some at a time, and what does not verify, up to its end."""
        if self.header is None:
            for part in self.parts:
                if isinstance(part, Damage):
                    yield part
            return
        self.end = self.header.size
        for part, stop in zip(self.parts, self.stops, strict=True):
            if not isinstance(part, Damage):
                self.end = stop
                if not isinstance(part, Note):
                    yield part
                continue
            damage = self.judge(part)
            yield damage
            if damage.torn:
                self.end = damage.position
                return
            self.end = damage.position + damage.length
        if self.end < self.limit:
            reason = "it ends before what was written to it"
            reason = self._reason(self.end, self.limit - self.end) or reason
            yield Damage(self.path, self.end, self.limit - self.end, reason)
            self.end = self.limit

    def _reason(self, position: int, length: int) -> str | None:
        """Returns why some bytes cannot be read; None if they can."""
        if self.trouble:
            return self.trouble
        return None if self.reader is None else self.reader.trouble(position, length)


def counting_logs(manifest: Manifest, names: Sequence[str]) -> list[tuple[int, str]]:
    """Lists the logs that count, by number and name, including those that are missing.

    They are those that the manifest names, and newer ones. A log that a recovery was about to name
    still has its temporary name.
    """
    found = [number for number, kind in list_files(list(names)) if kind is FileKind.WAL]
    named = [row.number for row in manifest.logs]
    if named:
        numbers = {*named, *(number for number in found if number > named[-1])}
    else:
        numbers = {number for number in found if number >= manifest.oldest_wal}
        if manifest.oldest_wal:
            numbers.add(manifest.oldest_wal)
    logs = []
    for number in sorted(numbers):
        name = wal_name(number)
        unnamed = name + atomic.TEMPORARY
        logs.append((number, unnamed if name not in names and unnamed in names else name))
    return logs


def trusted_end(mark: Mark | None, *, same_boot: bool) -> End | None:
    """Returns the end below which nothing may be missing; None if there is no mark."""
    if mark is None:
        return None
    return mark.written if same_boot or mark.clean else mark.durable


def find_logs(
    directory: Directory,
    manifest: Manifest,
    mark: Mark | None,
    staged: Staged | None,
    names: Sequence[str],
    *,
    same_boot: bool,
) -> list[FoundLog]:
    """Reads the logs that count, the oldest first; `read_logs` decides which parts are valid.

    `mark` and `staged` were read before the names were listed. A log that must exist and is missing
    is included.
    """
    rows = {row.number: row for row in manifest.logs}
    end = trusted_end(mark, same_boot=same_boot)
    logs = [
        FoundLog(name, number, f"{directory.path}/{name}", rows.get(number))
        for number, name in counting_logs(manifest, names)
    ]
    oldest = logs[0].number if logs else manifest.oldest_wal
    newest = max([oldest, *rows])
    if end is not None and end.log >= newest and all(log.number != end.log for log in logs):
        name = wal_name(end.log)
        logs.append(FoundLog(name, end.log, f"{directory.path}/{name}"))
        logs.sort(key=lambda log: log.number)
    for log in logs:
        log.required = log.row is not None or log.number == manifest.oldest_wal
        log.required = log.required or (end is not None and log.number == end.log)
        log.same_boot = same_boot
        _read(directory, log, manifest, mark, staged)
    _add_missing(directory, logs, oldest)
    _set_limits(logs, mark, end)
    return logs


def read_logs(logs: list[FoundLog]) -> Iterator[tuple[FoundLog, Rows | Damage]]:
    """Yields the records of logs, the oldest first, some at a time, and what does not verify."""
    durable = False
    for log in reversed(logs):
        log.durable = log.durable or durable
        durable = durable or log.durable or log.tells_of_a_sync
    before: FoundLog | None = None
    gone = False
    for log in logs:
        gone = gone or not log.goes_on_from(before)
        if gone:
            reason = "a power cut took the end of the log before"
            start = 0 if log.header is None else log.header.size
            log.end, log.gone = start, True
            yield log, Damage(log.path, start, max(len(log.data) - start, 0), reason, torn=True)
            continue
        for part in log.read():
            yield log, part
        before = log


def _read(
    directory: Directory,
    log: FoundLog,
    manifest: Manifest,
    mark: Mark | None,
    staged: Staged | None,
) -> None:
    """Reads a log and finds its batches."""
    reason = ""
    try:
        log.data, log.reader = read_whole(directory, log.name)
    except FileNotFoundError as error:
        if not log.required:
            raise
        reason = reason_of(error)
    except Damaged as error:
        reason = error.damage.reason
    salt = _known_salt(log, mark)
    if not reason:
        reason = _find_header(log, manifest, salt)
    if log.header is None and salt is not None:
        # What was staged is read without the file.
        log.header, log.trouble, log.data = Header(log.number, salt, manifest.queue_id), reason, b""
    if log.header is None:
        unread = None if log.reader is None else log.reader.trouble(0, len(log.data))
        # With nothing after it, the log was just being created. Unreadable bytes may be anything.
        blank = not log.data[HEADER_BYTES_MAX:].strip(b"\0") or "are those of log" in reason
        torn = blank and not log.required and unread is None
        reason = unread or reason
        log.parts, log.stops = [Damage(log.path, 0, len(log.data), reason, torn)], [0]
        return
    data = with_staged(log.data, log.header, staged, holes=log.same_boot)
    if log.row is not None and log.row.end:
        data = data[: log.row.end]
    log.data = data
    for part, stop in scan_rows(data, log.path, log.header):
        log.parts.append(part)
        log.stops.append(stop)


def _known_salt(log: FoundLog, mark: Mark | None) -> bytes | None:
    """Returns the salt of a log as recorded in the mark or the manifest."""
    if mark is not None and mark.written.log == log.number:
        return mark.salt
    return log.row.salt if log.row is not None else None


def _find_header(log: FoundLog, manifest: Manifest, salt: bytes | None) -> str:
    """Finds the header of a log, repaired if necessary; returns why there is none."""
    reason = ""
    header = None
    try:
        header = decode_header(log.data, log.path)
    except UnsupportedVersion as error:
        return str(error)
    except (Damaged, NotAQueue) as error:
        reason = error.damage.reason if isinstance(error, Damaged) else str(error)
        header = repair_header(log.data, log.number)
        if header is None and salt is not None:
            header = Header(log.number, salt, manifest.queue_id)
        log.mended = header is not None
    if header is None:
        return reason
    if header.number != log.number:
        return f"the bytes are those of log {header.number}"
    if header.queue_id not in (None, manifest.queue_id):
        return "the bytes are those of another queue"
    if salt is not None and header.salt != salt:
        return "the bytes are those of another log of this number"
    log.header = header
    return ""


def _add_missing(directory: Directory, logs: list[FoundLog], oldest: int) -> None:
    """Adds logs that later logs continue, and that do not exist."""
    known = {log.number for log in logs}
    for log in list(logs):
        origin = log.origin
        if origin is None or origin.before < oldest or origin.before in known:
            continue
        name = wal_name(origin.before)
        path = f"{directory.path}/{name}"
        lost = FoundLog(name, origin.before, path, required=True, same_boot=log.same_boot)
        lost.parts, lost.stops = [Damage(path, 0, 0, "the file is missing")], [0]
        logs.append(lost)
        known.add(origin.before)
    logs.sort(key=lambda log: log.number)


def _set_limits(logs: list[FoundLog], mark: Mark | None, end: End | None) -> None:
    for log, following in zip_longest(logs, logs[1:]):
        origin = following.origin if following is not None else None
        if log.row is not None and log.row.end:
            log.limit = log.row.end
        elif end is not None and log.number == end.log:
            log.limit = end.position
        elif (
            origin is not None and origin.before == log.number and (origin.durable or log.same_boot)
        ):
            log.limit = origin.end
        if mark is not None and log.number < mark.durable.log:
            log.durable = True


def with_staged(
    data: bytes, header: Header, staged: Staged | None, *, holes: bool = False
) -> bytes:
    """Returns a log with the staged batches that belong after its own.

    Missing bytes before them become zeros: a power cut left a hole there. After a hole, nothing
    after a bad batch counts; without one, `holes` says whether it does.
    """
    if staged is None:
        return data
    encoded = header.encode()
    if staged.header[: len(encoded)] != encoded:
        return data
    (position,) = STAGED_PLACE.unpack(staged.header[len(encoded) :])
    whole = staged.frames[: whole_bytes(staged.frames, staged.index, header, holes=holes)]
    if position + len(whole) <= len(data):
        return data
    return data[:position].ljust(position, b"\0") + whole
