"""Opens the directory of a fifo and brings it into order, whatever a crash left.

Promises that on return everything below the end is durable, that the staging buffer is void, and
that nothing acknowledged under the policy's promise is missing. Entries above the durable mark are
copied into fresh files and synced, because after a failed sync the cache may show bytes that the
disk lacks; a torn end is cut, and its bytes go to `quarantine/`. It may crash at any point and run
again: `fifo-copy` says where the copy is that counts instead of what is behind the mark. Source of
truth until the mark moves, big-endian: `position of the mark 8 | its number 8 | position of the
copy 8 | crc32 4`.

Above the durable mark the first bad entry ends the queue: what a power cut takes is a suffix. Below
the mark bad entries are damage; they stay where they are and readers go round them.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from dataclasses import dataclass

from forebay.clock import SteadyClock
from forebay.errors import InvalidOption, NotAQueue
from forebay.formats.entry import encode_entry, file_name
from forebay.frames import Damage
from forebay.kernels.checksum import crc32
from forebay.kernels.entry import METADATA_BYTES, find
from forebay.queues.fifo_adoption import finish
from forebay.queues.fifo_bounds import Boundary, Bounds, TapeEnd
from forebay.queues.fifo_head import Head, read_head, write_head
from forebay.queues.fifo_names import COPY, TAIL, is_temporary, list_files, refuse_foreign
from forebay.queues.fifo_scanner import EntryBatch, FifoScanner, Place, take_batch
from forebay.queues.fifo_writer import STAGED_HEADER
from forebay.queues.options import FifoOptions
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory, Filesystem, write_all
from forebay.storage.staging import NAME as STAGING_NAME
from forebay.storage.staging import blank_staged, read_staged
from forebay.storage.tail import Tail, TailFile

_logger = logging.getLogger(__name__)
# For walks that go as far as there is anything.
_ALL = 2**62
_COPY = struct.Struct(">QQQ")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Opened:
    """A directory that is in order: its mark, its head, and where the next entry goes."""

    tail_file: TailFile
    tail: Tail
    head: Head
    end: TapeEnd
    bounds: Bounds
    files: list[int]


def open_fifo_directory(
    filesystem: Filesystem, directory: Directory, options: FifoOptions, clock: SteadyClock
) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = directory.names()
    refuse_foreign(directory, names)
    for name in names:
        if is_temporary(name):
            directory.unlink(name)
    tail_file = TailFile.open(directory, write=True, name=TAIL)
    try:
        tail = finish(directory, tail_file, None if tail_file is None else tail_file.read())
        head = find_head(directory, tail)
        if head is None:
            head = Head(options.new_file_bytes)
        _check_size(directory.path, head.file_bytes, options)
        if read_head(directory) is None:
            head = write_head(directory, head)
        if tail_file is None or tail is None:
            tail = _found_tail(filesystem, directory, head)
            if tail_file is not None:
                tail_file.close()
            tail_file = TailFile.create(directory, tail, name=TAIL)
        recovery = Recovery(filesystem, directory, head, tail)
        end = recovery.run(clock.now_ms())
        # Before the mark moves: to an end that is at a lost head, staged entries behind a gap fit.
        blank_staged(directory)
        if recovery.tail is not tail:
            tail_file.write(recovery.tail, sync=True)
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(COPY)
        files = recovery.files if recovery.tail is tail else list_files(directory)
        bounds = Bounds(directory)
        try:
            bounds.keep_only(files)
            _find_boundaries(directory, bounds, files, recovery.head, end)
        except BaseException:
            bounds.close()
            raise
        return Opened(tail_file, recovery.tail, recovery.head, end, bounds, files)
    except BaseException:
        if tail_file is not None:
            tail_file.close()
        raise


def _check_size(path: str, file_bytes: int, options: FifoOptions) -> None:
    """Refuses options that the files of the queue do not fit."""
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
    filesystem: Filesystem, directory: Directory, head: Head, tail: Tail | None
) -> Recovery:
    """Finds what is in a directory, of a living owner or a dead one, and changes nothing."""
    if tail is None:
        tail = _found_tail(filesystem, directory, head)
    recovery = Recovery(filesystem, directory, head, tail)
    same_boot = tail.boot_id == filesystem.boot_id()
    recovery.survey(tail.written if same_boot else _ALL)
    return recovery


def find_head(directory: Directory, tail: Tail | None) -> Head | None:
    """Gives the head; of a queue whose head is lost, the oldest entry. None: there is no queue."""
    head = read_head(directory)
    if head is not None:
        return head
    files = list_files(directory)
    if not files:
        return None
    sizes = [_file_size(directory, number) for number in files]
    # The commonest size: one of them may be the one that was damaged.
    file_bytes = max(set(sizes), key=sizes.count)
    _logger.warning("%s: the head is lost; all entries that are there come again", directory.path)
    start = files[0] * file_bytes
    first = Bounds(directory).get(files[0])
    if first is not None:
        return Head(file_bytes, start + first.position, first.number, first.last_id)
    data = atomic.read_small(directory, file_name(files[0])) or b""
    # Any number will do: with so many bytes passed over, each is one that they leave room for.
    position, low = find(data, 0, 0, 0, 0xFFFF, 0x10000 * 32)
    if position < 0:
        raise NotAQueue(f"{directory.path}: neither the head nor the first file can be read")
    newest = low if tail is None else tail.durable
    return Head(file_bytes, start + position, newest - (newest - low) % 0x10000)


def _file_size(directory: Directory, number: int) -> int:
    file = directory.open(file_name(number))
    try:
        return file.size()
    finally:
        file.close()


def _found_tail(filesystem: Filesystem, directory: Directory, head: Head) -> Tail:
    """Makes the mark of a new queue, or of one whose mark is lost: behind the last good entry."""
    end = head.place
    scanner = FifoScanner(directory, head.file_bytes, Bounds(directory))
    files = list_files(directory)
    limit = Place(((files[-1] if files else -1) + 1) * head.file_bytes, _ALL, 0)
    try:
        for item in scanner.scan(head.place, limit):
            if isinstance(item, EntryBatch):
                end = item.end
    finally:
        scanner.close()
    file, position = divmod(end.position, head.file_bytes)
    tail = Tail(filesystem.random_bytes(16), filesystem.boot_id(), end.number, end.number)
    return tail._replace(segment=file, position=position, time_ms=end.last_id >> 16)


def _find_boundaries(
    directory: Directory, bounds: Bounds, files: list[int], head: Head, end: TapeEnd
) -> None:
    """Finds where the first entries begin in files of which that is not known."""
    first = head.position // head.file_bytes
    unknown = [number for number in bounds.missing(files) if number > first]
    if not unknown:
        return
    known = [row for row in map(bounds.get, range(first + 1, unknown[0])) if row is not None]
    place = head.place
    if known and known[-1].number > place.number:
        row = known[-1]
        place = Place(row.file * head.file_bytes + row.position, row.number, row.last_id)
    scanner = FifoScanner(directory, head.file_bytes, bounds)
    try:
        for item in scanner.scan(place, Place(end.position, end.number, 0)):
            if isinstance(item, EntryBatch):
                _note_batch(bounds, item, head.file_bytes, unknown)
    finally:
        scanner.close()


def _note_batch(bounds: Bounds, batch: EntryBatch, file_bytes: int, unknown: list[int]) -> None:
    position, last_id = batch.start.position, batch.start.last_id
    for entry in batch.entries():
        while unknown and unknown[0] * file_bytes <= position:
            start = min(position - unknown[0] * file_bytes, file_bytes)
            bounds.note(Boundary(unknown.pop(0), start, entry.offset, last_id))
        position += METADATA_BYTES + len(entry.value)
        last_id = entry.id


class Recovery:
    """One look at a directory, and what brings it into order."""

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
        self._batches: list[EntryBatch] = []
        self._behind_a_gap: tuple[int, bytes] | None = None
        # Where the entries above the mark begin, their end in the files, those that are only
        # staged, and the end of all.
        self.begin = self.mark
        self.stored = self.mark
        self.staged: list[EntryBatch] = []
        self.found = self.mark

    def survey(self, written: int = _ALL) -> None:
        """Finds the entries above the durable mark, in the files and the staging buffer.

        Those in the files count up to the number `written`.
        """
        if self.tail.clean:
            return
        # The staging buffer before the files: what leaves it meanwhile is in the files then.
        staged = read_staged(self._directory)
        scanner = FifoScanner(self._directory, self._file_bytes, Bounds(self._directory))
        try:
            self.begin = self._begin()
            limit = ((self.files[-1] if self.files else -1) + 1) * self._file_bytes
            for item in scanner.scan(self.begin, Place(limit, written, 0)):
                if isinstance(item, Damage):
                    break
                self._batches.append(item)
                self.found = self.stored = item.end
        finally:
            scanner.close()
        if staged is not None and len(staged.header) == STAGED_HEADER.size:
            _, last_id = STAGED_HEADER.unpack(staged.header)
            self._survey_staged(staged.frames, Place(0, staged.index, last_id))

    def run(self, now_ms: int) -> TapeEnd:
        """Brings the directory into order; gives where the next entry goes."""
        self.survey()
        lost = self.head.number - self.found.number
        if self.tail.clean and lost <= 0:
            return self._end(self.mark.position, now_ms)
        fresh = max([*self.files, self.tail.segment, self.head.position // self._file_bytes]) + 1
        count = self._copy(fresh)
        end = self._end((fresh + count) * self._file_bytes, now_ms)
        if lost >= 0:
            # Nothing is before it: it need not stand where something was.
            self.head = self.head._replace(position=end.position)
            self.head = write_head(self._directory, self.head)
        if lost > 0:
            path = self._directory.path
            _logger.warning("%s: %d entries that were popped are not on the disk", path, lost)
        self._keep_torn_bytes()
        self._cut()
        self._mark_end(end)
        return end

    def _begin(self) -> Place:
        """Gives where the entries above the mark begin: in a copy of them, if there is one."""
        row = atomic.read_small(self._directory, COPY) or b""
        if len(row) != _COPY.size + _CRC.size or _CRC.unpack(row[-4:])[0] != crc32(row[:-4]):
            return self.mark
        position, number, copy = _COPY.unpack(row[:-4])
        if (position, number) != (self.mark.position, self.mark.number):
            return self.mark
        return self.mark._replace(position=copy)

    def _survey_staged(self, frames: bytes, first: Place) -> None:
        """Adds the staged entries that are not in the files yet; what is behind a gap is kept."""
        batch = take_batch(frames, first, _ALL)
        known = self.found.number - first.number
        if known < 0 and batch.values:
            self._behind_a_gap = (first.number, frames[: batch.end.position])
        if known < 0 or known >= len(batch.values) or batch.ids[known] <= self.found.last_id:
            return
        rows = (batch.values[known:], batch.ids[known:], batch.ttls[known:])
        end = self.found._replace(number=batch.end.number, last_id=batch.ids[-1])
        self.staged.append(EntryBatch(self.found, end, *rows))
        self.found = end

    def _copy(self, fresh: int) -> int:
        """Writes the entries above the mark into fresh files, durably; gives how many files."""
        places: dict[int, int] = {}
        data = bytearray()
        for batch in [*self._batches, *self.staged]:
            for entry in batch.entries():
                places[entry.offset] = fresh * self._file_bytes + len(data)
                data += encode_entry(entry)
        starts = range(0, len(data), self._file_bytes)
        for index, start in enumerate(starts):
            file = self._directory.create(file_name(fresh + index) + atomic.TEMPORARY)
            try:
                write_all(file, data[start : start + self._file_bytes], 0)
                # Not allocated: nothing more is written to it, and it need not take the space.
                file.truncate(self._file_bytes)
                file.sync()
            finally:
                file.close()
        for index in range(len(starts)):
            name = file_name(fresh + index)
            self._directory.rename(name + atomic.TEMPORARY, name)
        self._directory.sync()
        if starts:
            row = _COPY.pack(self.mark.position, self.mark.number, fresh * self._file_bytes)
            atomic.replace(self._directory, COPY, row + _CRC.pack(crc32(row)))
        self._point_to(places)
        return len(starts)

    def _point_to(self, places: dict[int, int]) -> None:
        """Lets the head, and what is lent out, name the copies; what did not survive is no more."""
        lent = tuple(
            row._replace(position=places.get(row.number, row.position))
            for row in self.head.lent
            if row.number < self.found.number
        )
        position = places.get(self.head.number, self.head.position)
        self.head = self.head._replace(position=position, lent=lent)
        # Even if it is the same: it may be in the cache and not on the disk, and is served.
        self.head = write_head(self._directory, self.head)

    def _keep_torn_bytes(self) -> None:
        """Keeps what is behind the last good entry in the old files, if there is anything."""
        if self._behind_a_gap is not None:
            number, data = self._behind_a_gap
            quarantine.keep_bytes(self._directory, f"{STAGING_NAME}-{number}", data)
        torn = self._batches[-1].end.position if self._batches else self.mark.position
        for number in self.files:
            start = max(0, torn - number * self._file_bytes)
            if start >= self._file_bytes:
                continue
            file = self._directory.open(file_name(number))
            try:
                rest = file.pread(self._file_bytes - start, start).rstrip(b"\0")
            finally:
                file.close()
            if rest:
                quarantine.keep_bytes(self._directory, f"{file_name(number)}-{start}", rest)

    def _cut(self) -> None:
        """Removes what is behind the mark: it was copied, or is torn."""
        for number in reversed(self.files):
            if number > self.tail.segment:
                self._directory.unlink(file_name(number))
        if self.tail.segment in self.files:
            file = self._directory.open(file_name(self.tail.segment), write=True)
            try:
                if file.pread(self._file_bytes, self.tail.position).strip(b"\0"):
                    file.truncate(self.tail.position)
                    file.truncate(self._file_bytes)
                    file.sync()
            finally:
                file.close()
        self._directory.sync()

    def _end(self, position: int, now_ms: int) -> TapeEnd:
        """Gives the end that the queue goes on from; behind a head beyond it, at the head's."""
        last_ms = max(self.found.last_id >> 16, self.tail.time_ms, self.head.last_id >> 16, now_ms)
        return TapeEnd(max(self.found.number, self.head.number), position, last_ms)

    def _mark_end(self, end: TapeEnd) -> None:
        same_boot = self.tail.boot_id == self.filesystem.boot_id()
        incarnation, starts = self.tail.incarnation, self.tail.starts
        if not (same_boot and self.found.number >= self.tail.written):
            # Numbers above the end may have been handed out before: readers must learn of it.
            incarnation, starts = incarnation + 1, (end.number, *starts[:-1])
        file, position = divmod(end.position, self._file_bytes)
        self.tail = self.tail._replace(
            boot_id=self.filesystem.boot_id(),
            written=end.number,
            durable=end.number,
            segment=file,
            position=position,
            time_ms=end.last_ms,
            clean=False,
            incarnation=incarnation,
            starts=starts,
        )
