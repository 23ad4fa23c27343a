"""Opens the directory of a fifo and puts it in order, whatever state a crash left.

Promises that on return everything below the end is durable, that the staging buffer is void, and
that nothing acknowledged under the policy's promise is missing. Entries above the durable mark are
copied into fresh files and synced, because after a failed sync the cache may show bytes that the
disk lacks; a torn end is cut, and its bytes go to `quarantine/`. It may crash at any point and run
again: `fifo-copy` names the copy that counts in place of what is after the mark. It is the source
of truth until the mark moves; big-endian: `position of the mark 8 | its number 8 | position of the
copy 8 | crc32 4`.

Below the durable mark bad entries are damage; they stay where they are and readers skip them. Above
it, if the machine has run on since, the same holds for all that was in the files: a copy has zeros
in place of what did not verify, so that the entries after it keep their numbers and the damage is
reported when it is reached. After a power cut the first bad entry ends the queue: what that removes
is a suffix.

Head and mark are found even where the files that hold them are lost, or belong to another queue.
The version of the entries tells which files are this queue's: it holds bytes of the queue's id,
which is in `fifo-tail`. What is lost is rebuilt from the tape: entries that were popped may then
come again, and that is reported as damage.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from forebay.clock import SteadyClock
from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, NotAQueue
from forebay.formats.entry import (
    OLD_VERSION,
    encode_entry,
    file_name,
    find_version,
    is_version_of,
    version_of,
)
from forebay.kernels.buffers import crc32
from forebay.kernels.entry import METADATA_BYTES, find
from forebay.queues.fifo.bounds import Boundary, Bounds, TapeEnd
from forebay.queues.fifo.head import (
    ENTRY_NUMBER_MAX,
    POSITION_MAX,
    SLOT_STRIDE,
    Head,
    Lent,
    Slots,
    read_slots,
    write_head,
)
from forebay.queues.fifo.names import (
    BOUNDS,
    COPY,
    HEAD,
    TAIL,
    list_files,
    refuse_foreign,
)
from forebay.queues.fifo.options import FILE_BYTES_DEFAULT, FILE_BYTES_MIN, FifoOptions
from forebay.queues.fifo.scanner import EntryBatch, FifoScanner, Place
from forebay.queues.fifo.staging import STAGED, StagedEntries, lost_buffer, read_entries
from forebay.queues.fifo.tape import MISSING, TapeReader, can_write_on, open_or_reason
from forebay.queues.shared.names import FIFO
from forebay.storage import atomic, quarantine, staging
from forebay.storage.filesystem import Directory, File, Filesystem, write_all
from forebay.storage.losses import Losses
from forebay.storage.readable import Readable, open_again, unopenable
from forebay.storage.staging import NAME as STAGING_NAME
from forebay.storage.staging import blank_staged
from forebay.storage.tail import Tail, TailFile

_logger = logging.getLogger(__name__)
_SIDE_FILES = (HEAD, TAIL, BOUNDS, COPY, staging.NAME, atomic.RESERVE)
_CHUNK_BYTES = 1 << 20
# The most that can be written without being durable: some files, and a large batch.
_WAITING_FILES_MAX = 64
_WAITING_BYTES_MAX = 1 << 26
_COMES_AGAIN = "what was popped may come again"


class Marks(NamedTuple):
    """Where a queue begins and how far it is durable; None: there is no such mark, or it is lost.

    `head_is_stored`: the head was read from its file; `trouble` is what is wrong with that file.
    """

    head: Head | None
    tail: Tail | None
    queue_id: bytes
    head_is_stored: bool
    trouble: list[Damage]


def find_marks(
    filesystem: Filesystem, directory: Directory, file_bytes: int = FILE_BYTES_DEFAULT
) -> Marks:
    """Finds the marks of a directory; changes nothing.

    `file_bytes` is the size of files to use if there is no file to take it from.
    """
    tail = read_tail(directory)
    slots = _read_slots(directory)
    head = slots.head
    files = list_files(directory)
    if head is not None and tail is not None and not is_version_of(head.version, tail.queue_id):
        # One of the two belongs to another queue.
        if _sniff(directory, files, [version_of(tail.queue_id)]) is not None:
            head, slots = None, slots._replace(head=None, size=0)
        else:
            tail = None
    if head is not None and tail is not None:
        reason = _false_claim(tail, head)
        if reason is not None:
            path = f"{directory.path}/{TAIL}"
            return Marks(head, None, tail.queue_id, True, [Damage(path, 0, 0, reason)])
    if head is not None:
        same_boot = tail is not None and tail.boot_id == filesystem.boot_id()
        trouble = head_trouble(directory, slots, tail, same_boot=same_boot)
        queue_id = tail.queue_id if tail is not None else _queue_id(filesystem, head.version)
        if tail is not None and head.number < (tail.begin or 0):
            # The head is from an older copy of its file, or from an older slot.
            return Marks(_move_on(directory, head, tail), tail, queue_id, False, [])
        return Marks(head, tail, queue_id, True, trouble)
    if tail is None and not files:
        return Marks(None, None, filesystem.random_bytes(16), False, [])
    return _without_head(filesystem, directory, files, tail, file_bytes)


def _false_claim(tail: Tail, head: Head) -> str | None:
    """Returns the impossible claim that a mark makes; None if there is none.

    Recovery makes room for each entry above what is durable, at its least size: a false number must
    not fill the disk. Nor may a place be one that no tape has.
    """
    waiting = (tail.written - tail.durable) * METADATA_BYTES
    if waiting > _WAITING_FILES_MAX * head.file_bytes + _WAITING_BYTES_MAX:
        return f"it claims {tail.written - tail.durable} entries that no file could hold"
    if tail.segment * head.file_bytes + tail.position > POSITION_MAX:
        return f"it ends in file {tail.segment}, which no tape has"
    if tail.position > head.file_bytes:
        return f"it ends at byte {tail.position} of a file of {head.file_bytes}"
    return None


def head_trouble(
    directory: Directory, slots: Slots, tail: Tail | None, *, same_boot: bool
) -> list[Damage]:
    """Returns what is wrong with the slots of the head of a queue that is not open.

    A power cut tears the slot that is being written, which is not a fault. A clean mark does not
    rule that out: pops leave the mark as it is.
    """
    clean = tail is not None and tail.clean
    if not slots.bad or not same_boot or (clean and slots.copies > 1):
        return []
    path = f"{directory.path}/{HEAD}"
    reason = f"a mark in it does not verify: {_COMES_AGAIN}"
    return [Damage(path, slots.bad[0] * SLOT_STRIDE, SLOT_STRIDE, reason, count=0)]


def read_tail(directory: Directory) -> Tail | None:
    """Returns the durable mark; None if there is none, or it cannot be read."""
    try:
        file = TailFile.open(directory, write=False, name=TAIL)
        if file is None:
            return None
        with contextlib.closing(file):
            return file.read()
    except Damaged:
        return None


def set_side_files_aside(directory: Directory, names: list[str]) -> list[str]:
    """Moves whatever stands in place of a side file and cannot be read into `quarantine/`.

    Returns the names that were moved. A part of the staging buffer is enough.
    """
    moved = [name for name in _SIDE_FILES if name in names and not _is_readable(directory, name)]
    for name in moved:
        _logger.warning("%s/%s cannot be read; kept aside", directory.path, name)
        quarantine.keep_file(directory, name)
    return moved


def _is_readable(directory: Directory, name: str) -> bool:
    file = open_or_reason(directory, name)
    if isinstance(file, str):
        return file == MISSING
    with contextlib.closing(file):
        file.pread(file.size(), 0)
        return name == staging.NAME or not file.holes


def _read_slots(directory: Directory) -> Slots:
    try:
        return read_slots(directory)
    except Damaged:
        return Slots(None, [], 0, 0)


def _queue_id(filesystem: Filesystem, version: bytes) -> bytes:
    """Makes an id for a queue from the version of its entries."""
    random = filesystem.random_bytes(16)
    return random if version == OLD_VERSION else version[4:] + random[4:]


def _without_head(
    filesystem: Filesystem,
    directory: Directory,
    files: list[int],
    tail: Tail | None,
    file_bytes: int,
) -> Marks:
    """Makes a head from what is on the tape, placed before the oldest entry that is there."""
    version = None
    if tail is not None:
        version = _sniff(directory, files, [version_of(tail.queue_id), OLD_VERSION])
    version = version or _sniff(directory, files)
    if version is None:
        # There is nothing that can be read.
        version = OLD_VERSION if tail is None else version_of(tail.queue_id)
    queue_id = tail.queue_id if tail is not None else _queue_id(filesystem, version)
    file_bytes = _file_bytes(directory, files, file_bytes)
    head = _first_head(directory, files, tail, version, file_bytes)
    path = f"{directory.path}/{HEAD}"
    reason = f"no mark of this queue in it verifies, or it is gone: {_COMES_AGAIN}"
    trouble = [Damage(path, 0, 0, reason, count=0)] if files else []
    if tail is not None and tail.begin is not None:
        head = _move_on(directory, head, tail)
        if tail.clean:
            trouble = []
    return Marks(head, tail, queue_id, False, trouble)


def _move_on(directory: Directory, head: Head, tail: Tail) -> Head:
    """Moves a head that is too old forward to the oldest entry that must be there."""
    begin = tail.begin or 0
    mark = tail.segment * head.file_bytes + tail.position
    place = head.place
    bounds = Bounds(directory, head.version)
    for batch in _scan(directory, head, bounds, Place(mark, begin, 0)):
        place = batch.end
    if place.number < begin:
        # Nothing there verifies any more: it is damage when it is reached.
        place = Place(place.position, begin, place.last_id)
    lent = tuple(row for row in head.lent if row.number >= begin)
    return head._replace(
        position=place.position, number=place.number, last_id=place.last_id, lent=lent
    )


def _first_head(
    directory: Directory, files: list[int], tail: Tail | None, version: bytes, file_bytes: int
) -> Head:
    if not files:
        # Everything had left, or the files are gone: the mark has the number of entries.
        assert tail is not None
        last_id = max(0, (tail.time_ms << 16) - 1)
        position = tail.segment * file_bytes + tail.position
        return Head(file_bytes, version, position, tail.durable, last_id)
    bounds = Bounds(directory, version)
    for number in files:
        start = number * file_bytes
        first = bounds.get(number)
        if first is not None and first.position < file_bytes:
            return Head(file_bytes, version, start + first.position, first.number, first.last_id)
        data = _read(directory, number, file_bytes)
        # Any number will do: so many bytes are passed over that they leave room for each.
        position, low = find(data, 0, 0, 0, 0xFFFF, version, 0x10000 * METADATA_BYTES)
        if position >= 0:
            newest = low if tail is None else tail.durable
            return Head(file_bytes, version, start + position, newest - (newest - low) % 0x10000)
    position = files[0] * file_bytes
    return Head(file_bytes, version, position, 0 if tail is None else tail.durable)


def _file_bytes(directory: Directory, files: list[int], otherwise: int) -> int:
    """Returns the most common size: one of the files may be damaged."""
    sizes = []
    for number in files:
        file = open_or_reason(directory, file_name(number))
        if isinstance(file, str):
            continue
        with contextlib.closing(file):
            if file.size() >= FILE_BYTES_MIN:
                sizes.append(file.size())
    return max(set(sizes), key=sizes.count) if sizes else otherwise


def _sniff(
    directory: Directory, files: list[int], wanted: list[bytes] | None = None
) -> bytes | None:
    """Returns the version of the first entry on the tape, or of the first that has a wanted one."""
    for number in files:
        data = _read(directory, number, _CHUNK_BYTES)
        if wanted is None:
            found = find_version(data)
            if found is not None:
                return found
        for version in wanted or ():
            if find(data, 0, 0, 0, 0xFFFF, version, 0x10000 * METADATA_BYTES)[0] >= 0:
                return version
    return None


def _read(directory: Directory, number: int, size: int) -> bytes:
    file = open_or_reason(directory, file_name(number))
    if isinstance(file, str):
        return b""
    with contextlib.closing(file):
        return file.pread(size, 0)


# For scans that go on as long as there are entries: no number reaches it.
_ALL = ENTRY_NUMBER_MAX
_COPY = struct.Struct(">QQQ")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Opened:
    """A directory in order: its mark, its head, and where the next entry goes."""

    tail_file: TailFile
    tail: Tail
    head: Head
    end: TapeEnd
    bounds: Bounds
    files: list[int]
    losses: Losses


def open_fifo_directory(
    filesystem: Filesystem, directory: Directory, options: FifoOptions, clock: SteadyClock
) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = directory.names()
    refuse_foreign(directory, names)
    FIFO.remove_temporary(directory, names)
    losses = Losses.load(directory)
    tail_file: TailFile | None = None
    try:
        marks = find_marks(filesystem, directory, options.new_file_bytes)
        head = marks.head or Head(options.new_file_bytes, version_of(marks.queue_id))
        _check_size(directory.path, head.file_bytes, options)
        for damage in marks.trouble:
            # The files that show this damage are about to be rewritten.
            losses.note(damage, gone=True)
        losses.save()
        moved = set_side_files_aside(directory, names)
        if marks.head is None or not marks.head_is_stored or HEAD in moved:
            head = write_head(directory, head)
        if TAIL in moved and marks.tail is not None:
            TailFile.create(directory, marks.tail, name=TAIL).close()
        tail = marks.tail or found_tail(filesystem, directory, head, marks.queue_id)
        tail_file = _open_tail(directory, marks, tail)
        recovery = Recovery(filesystem, directory, head, tail)
        end = recovery.run(clock.now_ms())
        for damage in recovery.staged.damage:
            if damage.count is None:
                losses.note(damage, gone=True)
        losses.save()
        # Before the mark moves: staged entries after a gap would fit an end that is at a lost head.
        blank_staged(directory)
        if recovery.tail is not tail:
            tail_file.write(recovery.tail, sync=True)
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(COPY)
        files = recovery.files if recovery.tail is tail else list_files(directory)
        bounds = Bounds(directory, recovery.head.version)
        try:
            bounds.keep_only(files)
            _find_boundaries(directory, bounds, files, recovery.head, end)
        except BaseException:
            bounds.close()
            raise
        return Opened(tail_file, recovery.tail, recovery.head, end, bounds, files, losses)
    except BaseException:
        if tail_file is not None:
            tail_file.close()
        raise


def _open_tail(directory: Directory, marks: Marks, tail: Tail) -> TailFile:
    found = None if marks.tail is None else TailFile.open(directory, write=True, name=TAIL)
    return found or TailFile.create(directory, tail, name=TAIL)


def _check_size(path: str, file_bytes: int, options: FifoOptions) -> None:
    """Refuses options that do not fit the files of the queue."""
    if options.file_bytes is not None and options.file_bytes != file_bytes:
        raise InvalidOption(
            f"file_bytes = {options.file_bytes}: {path} has files of {file_bytes} bytes"
        )
    if options.max_bytes is not None and options.max_bytes < 2 * file_bytes:
        raise InvalidOption(
            f"max_bytes = {options.max_bytes}: {path} has files of {file_bytes} bytes; "
            "at least two of them"
        )


def look_at(
    filesystem: Filesystem,
    directory: Directory,
    head: Head,
    tail: Tail | None,
    *,
    owned: bool = True,
) -> Recovery:
    """Finds what is in a directory, whether its owner lives or not; changes nothing.

    Of a living owner, finds only what it has published; of a dead one, all that recovery takes.
    """
    if tail is None:
        tail = found_tail(filesystem, directory, head, head.version[4:].ljust(16, b"\0"))
    recovery = Recovery(filesystem, directory, head, tail)
    recovery.survey(beyond=not (owned and recovery.same_boot))
    return recovery


def found_tail(filesystem: Filesystem, directory: Directory, head: Head, queue_id: bytes) -> Tail:
    """Makes the mark of a new queue, or of one whose mark is lost: after the last good entry."""
    end = head.place
    bounds = Bounds(directory, head.version)
    files = list_files(directory)
    limit = Place(((files[-1] if files else -1) + 1) * head.file_bytes, _ALL, 0)
    for batch in _scan(directory, head, bounds, limit):
        end = batch.end
    file, position = divmod(end.position, head.file_bytes)
    tail = Tail(queue_id, filesystem.boot_id(), end.number, end.number)
    return tail._replace(segment=file, position=position, time_ms=end.last_id >> 16)


def _find_boundaries(
    directory: Directory, bounds: Bounds, files: list[int], head: Head, end: TapeEnd
) -> None:
    """Finds where the first entries begin in files for which that is not known."""
    first = head.position // head.file_bytes
    unknown = [number for number in bounds.missing(files) if number > first]
    if not unknown:
        return
    # Only files that exist: between two of them a false mark may leave out billions of numbers.
    known = [number for number in files if first < number < unknown[0]]
    row = bounds.get(known[-1]) if known else None
    place = head.place
    if row is not None and row.number > place.number:
        place = Place(row.file * head.file_bytes + row.position, row.number, row.last_id)
    limit = Place(end.position, end.number, 0)
    for batch in _scan(directory, head, bounds, limit, start=place):
        _note_batch(bounds, batch, head.file_bytes, unknown)


def _scan(
    directory: Directory, head: Head, bounds: Bounds, end: Place, *, start: Place | None = None
) -> Iterator[EntryBatch]:
    """Yields the entries that verify, from a place on the tape, by default the head, to an end."""
    scanner = FifoScanner(directory, head.file_bytes, head.version, bounds)
    with contextlib.closing(scanner):
        for item in scanner.scan(start or head.place, end):
            if isinstance(item, EntryBatch):
                yield item


def _note_batch(bounds: Bounds, batch: EntryBatch, file_bytes: int, unknown: list[int]) -> None:
    position, last_id = batch.start.position, batch.start.last_id
    for entry in batch.entries():
        while unknown and unknown[0] * file_bytes <= position:
            start = min(position - unknown[0] * file_bytes, file_bytes)
            bounds.note(Boundary(unknown.pop(0), start, entry.offset, last_id))
        position += METADATA_BYTES + len(entry.value)
        last_id = entry.id


def _unread(end: Damage) -> Damage:
    """Returns the damage of an end of the files that the disk cannot read, so is not just torn."""
    reason = f"{end.reason}: an unknown number of the newest entries may be lost"
    return replace(end, reason=reason, offset=None, count=None)


@dataclass(slots=True)
class _Run:
    """Entries that lie one after the other in the files, and where their copy is."""

    start: Place
    end: Place
    copy: int = 0


@dataclass(slots=True)
class _Found:
    """What the files hold above the durable mark."""

    runs: list[_Run] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


class Recovery:
    """One look at a directory, and the steps that put it in order."""

    def __init__(
        self, filesystem: Filesystem, directory: Directory, head: Head, tail: Tail
    ) -> None:
        self.filesystem = filesystem
        self._directory = directory
        self.head = head
        self.tail = tail
        self._file_bytes = head.file_bytes
        self.files = list_files(directory)
        position = tail.segment * head.file_bytes + tail.position
        self.mark = Place(position, tail.durable, max(0, (tail.time_ms << 16) - 1))
        self.same_boot = tail.boot_id == filesystem.boot_id()
        self._tape = _Found()
        # For each entry that the head names: its distance from the begin of its run.
        self._offsets: dict[int, int] = {}
        # Where the entries above the mark begin, their end in the files, those that are only
        # staged, and the end of all of them.
        self.begin = self.mark
        self.stored = self.mark
        self.staged = StagedEntries()
        self.found = self.mark

    @property
    def damage(self) -> list[Damage]:
        """What does not verify above the mark, though it was in the files."""
        return self._tape.damage

    @property
    def first(self) -> Place:
        """Where the entries begin that are above the mark and not passed by the head."""
        head = self.head.place
        for run in self._tape.runs:
            if run.start.number <= head.number < run.end.number:
                # A copy may be the one that counts, though the head still names the old place.
                return head._replace(position=run.start.position + self._offsets[head.number])
        passed = head.number > self.begin.number and head.position > self.begin.position
        return head if passed else self.begin

    def survey(self, *, beyond: bool = True) -> None:
        """Finds the entries above the durable mark, in the files and the staging buffer.

        `beyond`: those in the files that the mark does not cover count too.
        """
        # The staging buffer before the files: what leaves it meanwhile is then in the files.
        version = self.head.version
        staged, in_use, unread = None, None, None
        if not self.tail.clean:
            if self.same_boot and self.tail.salt == STAGED:
                in_use = self.tail.written
            staged = read_entries(self._directory, version, in_use=in_use)
        bounds = Bounds(self._directory, version)
        with contextlib.closing(
            FifoScanner(self._directory, self._file_bytes, version, bounds)
        ) as scanner:
            self.begin = self._begin()
            self.found = self.stored = self.begin
            limit = ((self.files[-1] if self.files else -1) + 1) * self._file_bytes
            if self.same_boot and self.tail.written > self.begin.number:
                for item in scanner.scan(self.begin, Place(limit, self.tail.written, 0)):
                    self._add(item)
                self.stored = self.stored._replace(number=self.tail.written)
            if beyond and self._goes_on(scanner, limit):
                for item in scanner.scan(self.stored, Place(limit, _ALL, 0)):
                    if isinstance(item, Damage):
                        scanner.refuse_unknown(self.stored)
                        if scanner.is_unreadable(self.stored):
                            unread = _unread(item)
                        break
                    self._add(item)
        self.found = self.stored
        if staged is not None:
            self.staged = staged.after(self.stored)
            self.found = self.staged.end or self.stored
        elif in_use is not None and read_tail(self._directory) == self.tail:
            # If the mark had changed, an owner would have begun another chunk meanwhile.
            self.staged.damage.append(lost_buffer(self._directory))
        if unread is not None:
            self.staged.damage.append(unread)

    def _goes_on(self, scanner: FifoScanner, limit: int) -> bool:
        """Says whether there may be entries that the mark does not cover.

        After a clean close there are none, unless the mark is an old one.
        """
        if not self.tail.clean or (self.files and self.files[-1] > self.tail.segment):
            return True
        return scanner.window(self.stored, limit, METADATA_BYTES) is not None

    def _add(self, item: EntryBatch | Damage) -> None:
        if isinstance(item, Damage):
            self._tape.damage.append(item)
            return
        runs = self._tape.runs
        if runs and runs[-1].end == item.start:
            runs[-1].end = item.end
        else:
            runs.append(_Run(item.start, item.end))
        # By number: a head may still name the old place of an entry that was already copied.
        for number in {self.head.number, *(row.number for row in self.head.lent)}:
            if item.start.number <= number < item.end.number:
                before = item.values[: number - item.start.number]
                size = sum(METADATA_BYTES + len(value) for value in before)
                self._offsets[number] = item.start.position + size - runs[-1].start.position
        self.stored = item.end

    def run(self, now_ms: int) -> TapeEnd:
        """Puts the directory in order; returns where the next entry goes."""
        self.survey()
        lost = self.head.number - self.found.number
        if self._is_in_order(lost):
            if not self.same_boot:
                # Pops leave the mark as it is: its boot id must tell a kill from a power cut.
                self.tail = self.tail._replace(boot_id=self.filesystem.boot_id())
            return self._end(self.mark.position, now_ms)
        fresh = max([*self.files, self.tail.segment, self.head.position // self._file_bytes]) + 1
        count, places = self._copy(fresh)
        end = self._end((fresh + count) * self._file_bytes, now_ms)
        self._point_to(places, end)
        if lost > 0:
            path = self._directory.path
            _logger.warning("%s: %d entries that were popped are not on the disk", path, lost)
        self._keep_torn_bytes()
        self._cut()
        self._mark_end(end)
        return end

    def _is_in_order(self, lost: int) -> bool:
        """Says whether a queue that was closed can continue at its present end."""
        if not self.tail.clean or lost > 0 or self._tape.runs:
            return False
        if self.head.position > self.mark.position:
            return False
        if self.head.version == OLD_VERSION and lost == 0 and not self.head.lent:
            return False
        if self.mark.position % self._file_bytes == 0:
            return True
        try:
            file = self._directory.open(file_name(self.tail.segment), write=True)
        except (OSError, NotAQueue):
            # Whatever this is, new entries go into another file.
            return False
        with contextlib.closing(file):
            whole = file.size() == self._file_bytes
            return whole and can_write_on(file, self.tail.position, self._file_bytes)

    def _begin(self) -> Place:
        """Returns where the entries above the mark begin: in their copy, if there is one."""
        row = atomic.read_small(self._directory, COPY) or b""
        if len(row) != _COPY.size + _CRC.size or _CRC.unpack(row[-4:])[0] != crc32(row[:-4]):
            return self.mark
        position, number, copy = _COPY.unpack(row[:-4])
        if (position, number) != (self.mark.position, self.mark.number):
            return self.mark
        return self.mark._replace(position=copy)

    def _copy(self, fresh: int) -> tuple[int, dict[int, int]]:
        """Writes the entries above the mark into fresh files, durably.

        Returns how many files, and the places of the entries that were staged.
        """
        copy = _Copy(self._directory, fresh, self._file_bytes)
        try:
            number = self.begin.number
            with contextlib.closing(
                TapeReader(self._directory, self._file_bytes, file_name)
            ) as tape:
                for run in self._tape.runs:
                    copy.leave_out(run.start.number - number)
                    run.copy = copy.position
                    for data in _read_chunks(tape, run.start.position, run.end.position):
                        copy.write(data)
                    number = run.end.number
            places = self._copy_staged(copy, number)
            count = copy.finish()
        except BaseException:
            copy.discard()
            raise
        if count:
            row = _COPY.pack(self.mark.position, self.mark.number, fresh * self._file_bytes)
            atomic.replace(self._directory, COPY, row + _CRC.pack(crc32(row)))
        return count, places

    def _copy_staged(self, copy: _Copy, number: int) -> dict[int, int]:
        """Adds the staged entries, and room for what is lost at the end; returns their places."""
        places: dict[int, int] = {}
        for batch in self.staged.batches:
            copy.leave_out(batch.start.number - number)
            for entry in batch.entries():
                places[entry.offset] = copy.position
                copy.write(encode_entry(entry, self.head.version))
            number = batch.end.number
        copy.leave_out(self.found.number - number)
        return places

    def _point_to(self, places: dict[int, int], end: TapeEnd) -> None:
        """Points the head and the lent entries to the copies; drops lent ones that were lost.

        In one write: a head whose place is not after the copies of the lent entries is no head, and
        after a crash what was popped would come again.
        """
        lent = tuple(
            row._replace(position=self._place_of(row, places))
            for row in self.head.lent
            if row.number < self.found.number
        )
        version = self.head.version
        if self.head.number < self.found.number:
            position = self._place_of(self.head, places)
        else:
            # Every entry is before the head.
            position = end.position
            if version == OLD_VERSION and not lent:
                # New entries need not be written in the old version.
                version = version_of(self.tail.queue_id)
        self.head = self.head._replace(position=position, version=version, lent=lent)
        # Even if unchanged: it may be in the cache and not on the disk, and it is relied upon.
        self.head = write_head(self._directory, self.head)

    def _place_of(self, row: Head | Lent, places: dict[int, int]) -> int:
        """Returns where the copy of an entry is; the old place if it was not copied."""
        if row.number in places:
            return places[row.number]
        for run in reversed(self._tape.runs):
            if run.start.number <= row.number < run.end.number:
                return run.copy + self._offsets[row.number]
            if run.end.number <= row.number < self.found.number:
                # It did not verify: its place is in the zeros that were left after this run.
                left_out = (row.number - run.end.number) * METADATA_BYTES
                return run.copy + run.end.position - run.start.position + left_out
        return row.position

    def _keep_torn_bytes(self) -> None:
        """Keeps the bytes above the mark in the old files that are in no copy, if there are any."""
        for number, data in self.staged.unused:
            quarantine.keep_bytes(self._directory, f"{STAGING_NAME}-{number}", data)
        copied = [(run.start.position, run.end.position) for run in self._tape.runs]
        for number in self.files:
            first = number * self._file_bytes
            file = open_or_reason(self._directory, file_name(number))
            if isinstance(file, str):
                continue
            with contextlib.closing(file):
                start = max(first, self.mark.position)
                end = first + self._file_bytes
                for begin, stop in _uncovered(start, end, copied):
                    rest = file.pread(stop - begin, begin - first)
                    quarantine.keep_rest(self._directory, file_name(number), begin - first, rest)

    def _cut(self) -> None:
        """Removes what is after the mark: it was copied, or is torn.

        A file that cannot be opened is left alone: its contents are never read.
        """
        for number in reversed(self.files):
            if number > self.tail.segment:
                quarantine.remove(self._directory, file_name(number))
        try:
            name = file_name(self.tail.segment)
            file = open_again(lambda: self._directory.open(name, write=True))
        except FileNotFoundError:
            pass
        except (OSError, NotAQueue) as error:
            # Raises an error that is not damage.
            unopenable(file_name(self.tail.segment), error)
        else:
            with contextlib.closing(file):
                content = Readable(file)
                rest = content.pread(self._file_bytes, self.tail.position)
                if content.holes or rest.strip(b"\0"):
                    file.truncate(self.tail.position)
                    file.truncate(self._file_bytes)
                    file.sync()
        self._directory.sync()

    def _end(self, position: int, now_ms: int) -> TapeEnd:
        """Returns the end from which the queue continues, at least the head's number."""
        last_ms = max(self.found.last_id >> 16, self.tail.time_ms, self.head.last_id >> 16, now_ms)
        return TapeEnd(max(self.found.number, self.head.number), position, last_ms)

    def _mark_end(self, end: TapeEnd) -> None:
        self.tail = self.tail.recovered(
            self.filesystem.boot_id(),
            end.number,
            *divmod(end.position, self._file_bytes),
            time_ms=end.last_ms,
            lost=not self.same_boot or self.found.number < self.tail.written,
        )


class _Copy:
    """Fresh files of the tape, written in order under names that do not count yet."""

    def __init__(self, directory: Directory, first: int, file_bytes: int) -> None:
        self._directory = directory
        self._first = first
        self._file_bytes = file_bytes
        self._file: File | None = None
        self._names: list[str] = []
        self.position = first * file_bytes

    def write(self, data: bytes) -> None:
        """Appends bytes."""
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                file, start = self._place()
                some = min(len(view) - at, self._file_bytes - start)
                write_all(file, bytes(view[at : at + some]), start)
                at += some
                self.position += some

    def leave_out(self, count: int) -> None:
        """Leaves zeros for entries that cannot be read: as many as they took at least.

        So the next good one is found after them, and its number tells how many they were.
        """
        left = max(0, count) * METADATA_BYTES
        while left:
            _, start = self._place()
            some = min(left, self._file_bytes - start)
            left -= some
            self.position += some

    def finish(self) -> int:
        """Makes all files durable and gives them their names; returns how many there are."""
        self._seal()
        for name in self._names:
            self._directory.rename(name + atomic.TEMPORARY, name)
        self._directory.sync()
        return len(self._names)

    def discard(self) -> None:
        """Closes the open file; the next open removes what is there."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _place(self) -> tuple[File, int]:
        number, start = divmod(self.position, self._file_bytes)
        if number - self._first == len(self._names):
            self._seal()
            name = file_name(number)
            self._file = self._directory.create(name + atomic.TEMPORARY)
            self._names.append(name)
        assert self._file is not None
        return self._file, start

    def _seal(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        with contextlib.closing(file):
            # Not allocated: nothing more is written to this file, and it need not take the space.
            file.truncate(self._file_bytes)
            file.sync()


def _read_chunks(tape: TapeReader, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = tape.read(min(_CHUNK_BYTES, end - start), start)
        if not data:
            raise OSError(errno.EIO, "what was read a moment ago is gone")
        yield data
        start += len(data)


def _uncovered(start: int, end: int, covered: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the parts between two positions that no covered range contains, in order."""
    for begin, stop in covered:
        if stop <= start or begin >= end:
            continue
        if begin > start:
            yield start, begin
        start = stop
    if start < end:
        yield start, end
