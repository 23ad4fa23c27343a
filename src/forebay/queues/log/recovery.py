"""Opens a log directory and brings it into order, whatever a crash left.

Promises that on return everything below `Tail.written` is durable, that the staging buffer is
void, and that nothing is missing that was acknowledged under the promise of the policy. What was in
the files above the durable mark is copied into new segments and synced, because after a failed sync
the cache may show bytes that the disk lacks; a torn end is cut, and its bytes go to `quarantine/`.
Recovery may crash at any point and run again.

Above the durable mark the first bad frame ends the log: what a power cut takes is a suffix. Below
the mark bad frames are damage; they stay where they are and readers skip them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.formats.fflg import (
    OFFSET_MAX,
    Frames,
    Header,
    decode_header,
    segment_name,
)
from forebay.queues.log.adoption import clear_adoption, finish_adoption
from forebay.queues.log.scanner import UNREADABLE, OpenSegment, damage_of, list_segments
from forebay.queues.shared.names import LOG
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.losses import Losses
from forebay.storage.readable import open_readable
from forebay.storage.segments import CHUNK_BYTES, Batch, SegmentList, SegmentWriter, scan_segment
from forebay.storage.staging import NAME as STAGING_NAME
from forebay.storage.staging import Staged, blank_staged, find_staged
from forebay.storage.tail import NAME as TAIL_NAME
from forebay.storage.tail import Tail, TailFile

# The reason of damage in the staging buffer.
STAGED_DAMAGE = "no frame verifies here"
# More frames than any segment has.
_ALL = 2**62
_logger = logging.getLogger(__name__)


def open_directory(
    filesystem: Filesystem, directory: Directory, losses: Losses
) -> tuple[TailFile, Tail, SegmentList]:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = set(directory.names())
    segments = list_segments(directory)
    LOG.refuse_foreign(directory, names)
    LOG.remove_temporary(directory, names)
    with contextlib.ExitStack() as opened:
        tail_file = TailFile.open_or_set_aside(directory)
        found = tail = None
        if tail_file is not None:
            opened.callback(tail_file.close)
            found = tail_file.read()
        if found is not None:
            tail = _as_far_as_true(filesystem, directory, segments, found)
        if tail_file is None or tail is None:
            opened.close()
            if found is not None:
                # The tail of another queue: moved aside, not overwritten. It may be looked for.
                quarantine.keep_file(directory, TAIL_NAME)
            tail = _found_tail(filesystem, directory, segments, losses)
            tail_file = TailFile.create(directory, tail)
            opened.callback(tail_file.close)
        elif tail is not found:
            _logger.warning("%s: tail is older than the segments, which count", directory.path)
            tail_file.write(tail, sync=True)
        if finish_adoption(directory):
            segments = list_segments(directory)
            tail = tail._replace(clean=False)
        _remove_trimmed(directory, segments, tail)
        _check_staging(filesystem, directory, tail, losses)
        if not tail.clean:
            tail = _Recovery(filesystem, directory, tail).run()
            tail_file.write(tail, sync=True)
            segments = list_segments(directory)
        else:
            _set_leftovers_aside(directory, segments, tail)
        blank_staged(directory)
        clear_adoption(directory)
        if tail.begin is None:
            tail = tail._replace(begin=next(iter(segments.bases), tail.written))
        segments.begin = tail.begin
        opened.pop_all()
        return tail_file, tail, segments


def _check_staging(
    filesystem: Filesystem, directory: Directory, tail: Tail, losses: Losses
) -> None:
    """Puts on record what the staging buffer has lost."""
    staged = find_staged(directory)
    damage = staging_damage(directory, tail, staged, filesystem.boot_id())
    if damage is not None:
        losses.note(damage, gone=True)
        losses.save()


def staging_damage(
    directory: Directory, tail: Tail, staged: Staged | None, boot_id: bytes
) -> Damage | None:
    """Returns the damage if records that only the staging buffer had may be lost; None if not.

    While an owner uses the buffer, the mark says so, and the first record in the buffer is the one
    at the written end of the mark. The number of lost records is not known.
    """
    if tail.clean or not tail.staged or tail.boot_id != boot_id:
        return None
    path = f"{directory.path}/{STAGING_NAME}"
    reason = "the staging buffer is missing, or does not verify"
    if staged is not None:
        if first_staged(staged, path) == tail.written and staged_fits(directory, staged):
            return None
        reason = "the staging buffer is of another time, or of another log"
    return Damage(path, 0, 0, reason, offset=tail.written)


def first_staged(staged: Staged, path: str) -> int:
    """Returns the offset of the first record in a staging buffer."""
    return decode_header(staged.header, path).base_offset + staged.index


def end_of_staged(staged: Staged, path: str) -> int:
    """Returns the offset after the last record that a staging buffer has acknowledged."""
    return first_staged(staged, path) + (staged.count or 0)


def staged_fits(directory: Directory, staged: Staged) -> bool:
    """Says whether a staging buffer belongs to the segment it names, as far as that can be seen."""
    header = decode_header(staged.header, f"{directory.path}/{STAGING_NAME}")
    segments = list_segments(directory)
    if header.base_offset not in segments.names:
        return True
    salt = _salt_of(directory, segments, header.base_offset)
    return not salt or salt == header.salt


@dataclass(frozen=True, slots=True)
class View:
    """What a directory holds, for a reader that changes nothing.

    `tail` is None if there is no true one. What does not verify is damage below `sure`, and an
    unfinished end above it. `damage` is what comes after the end and cannot be read.
    """

    tail: Tail | None
    end: int
    sure: int
    begin: int | None
    damage: list[Damage]


def look(
    filesystem: Filesystem,
    directory: Directory,
    segments: SegmentList,
    tail: Tail | None,
    *,
    staged: Staged | None = None,
    behind: bool = False,
) -> View:
    """Finds the end of a log by the rules of recovery, without changing anything.

    `behind`: the mark may lag behind what is in the files, and no owner is writing there.
    """
    if tail is not None:
        tail = _as_far_as_true(filesystem, directory, segments, tail)
    if tail is None:
        found = _find(directory, segments)
        return View(None, found.end, found.end, None, found.damage)
    same_boot = tail.boot_id == filesystem.boot_id()
    ahead = staged is not None and first_staged(staged, directory.path) > tail.written
    if tail.clean or (same_boot and not behind and not ahead):
        return View(tail, tail.written, tail.written, tail.begin, [])
    recovery = _Recovery(filesystem, directory, tail)
    recovery.survey()
    sure = max(tail.written, recovery.end) if same_boot else tail.durable
    return View(tail, recovery.end, sure, tail.begin, [])


def _as_far_as_true(
    filesystem: Filesystem, directory: Directory, segments: SegmentList, tail: Tail
) -> Tail | None:
    """Returns the mark if it fits the segments, a new one if it is older, None if it is foreign.

    After the end of a mark that was closed cleanly there is nothing, except perhaps a file whose
    first write failed. If there are records, they were written later, by an owner whose mark is
    gone, or by the original program: then the segments decide, and their beginning is not known.
    """
    base = tail.segment
    if tail.salt and base in segments.names:
        salt = _salt_of(directory, segments, base)
        if salt and salt != tail.salt:
            return None
    settled = tail.clean or tail.boot_id == filesystem.boot_id()
    overtaken = settled and bool(segments.bases) and segments.bases[0] > tail.written
    if not overtaken and not (tail.clean and _goes_on(directory, segments, tail)):
        return tail
    found = _find(directory, segments)
    return tail._replace(
        written=found.end,
        durable=found.end,
        segment=found.segment,
        position=found.position,
        salt=found.salt,
        time_ms=max(tail.time_ms, found.time_ms),
        begin=None,
        clean=False,
    )


def _salt_of(directory: Directory, segments: SegmentList, base: int) -> bytes:
    try:
        segment = OpenSegment(directory, segments.names[base], base)
    except (*UNREADABLE, FileNotFoundError):
        return b""
    segment.file.close()
    return segment.frames.header.salt


def _goes_on(directory: Directory, segments: SegmentList, tail: Tail) -> bool:
    """Says whether there are good records after the end that a mark tells."""
    for base in segments.bases[::-1]:
        if base < tail.written and base != tail.segment:
            return False
        try:
            segment = OpenSegment(directory, segments.names[base], base)
        except (*UNREADABLE, FileNotFoundError):
            continue
        try:
            position, index = segment.frames.layout.header_bytes, 0
            if base < tail.written:
                position, index = max(position, tail.position), tail.written - base
            header = segment.frames.header
            if segment.file.size() <= position or not (header.salt or header.version == 0):
                # Version 1, which only we write, cannot tell rubbish from records.
                continue
            if next(_good_batches(segment, position, index, index + 1), None) is not None:
                return True
        finally:
            segment.file.close()
    return False


def _remove_trimmed(directory: Directory, segments: SegmentList, tail: Tail) -> None:
    """Finishes a trim that a crash interrupted: removes what is below the recorded beginning."""
    if tail.begin is None:
        return
    while segments.bases and segments.bases[0] < tail.begin:
        # The beginning is the base of a segment, or the end if none was left.
        following = segments.after(segments.bases[0])
        if following is not None and following > tail.begin:
            break
        # Not synced: what comes back after a power cut is still below the beginning, and is removed
        # again.
        directory.unlink(segments.names[segments.bases[0]])
        segments.drop_first(1)


def _set_leftovers_aside(directory: Directory, segments: SegmentList, tail: Tail) -> None:
    """Moves away a file after the end of a queue that was closed: its first write had failed."""
    while segments.bases and segments.bases[-1] >= tail.written:
        quarantine.keep_file(directory, segments.names[segments.bases[-1]])
        segments.drop_last()


@dataclass(slots=True)
class _Found:
    """The end of a log according to its segments: where it is, and what cannot be read there."""

    end: int = 0
    segment: int = 0
    position: int = 0
    salt: bytes = b""
    time_ms: int = 0
    damage: list[Damage] = field(default_factory=list)


def _find(directory: Directory, segments: SegmentList) -> _Found:
    """Finds the end without a mark: the last whole record of the newest segment.

    A newest segment that cannot be read ends the log at the offset in its name: the original
    program leaves one when it dies in the middle of a write. Without a mark it is not known whether
    something was in it. If no segment can be read and nothing else shows that the directory is a
    log, it is not one.
    """
    found = _Found()
    trouble: Exception | None = None
    for base in reversed(segments.bases):
        name = segments.names[base]
        try:
            segment = OpenSegment(directory, name, base)
        except (*UNREADABLE, FileNotFoundError) as error:
            trouble = error
            if base == segments.bases[-1]:
                found.end = found.segment = base
                damage = damage_of(error, f"{directory.path}/{name}")
                if not damage.torn:
                    found.damage.append(replace(damage, offset=base, count=None))
            continue
        try:
            _find_end(segment, segments.after(base), found)
        finally:
            segment.file.close()
        return found
    if trouble is not None and not LOG.marks & set(directory.names()):
        raise _not_a_log(trouble)
    return found


def _not_a_log(error: Exception) -> Exception:
    if isinstance(error, Damaged) and not error.damage.length and not error.damage.torn:
        return NotAQueue(f"{error.damage.path} {error.damage.reason}")
    return error


def _find_end(segment: OpenSegment, following: int | None, found: _Found) -> None:
    start = segment.frames.layout.header_bytes
    limit = (OFFSET_MAX + 1 if following is None else following) - segment.base
    end, found.position = segment.base, start
    found.segment, found.salt = segment.base, segment.frames.header.salt
    # Without a mark, good records after bad ones show that the bad ones are damage.
    for item in scan_segment(
        segment.file, segment.path, segment.frames, position=start, limit=limit
    ):
        if isinstance(item, Damage):
            if not item.torn and item.count is None:
                lost = segment.base + (item.offset or 0)
                found.damage.append(replace(item, offset=lost))
            continue
        end = segment.base + item.index + len(item.values)
        found.position = item.end_position
        if item.times:
            found.time_ms = segment.frames.header.epoch_ms + item.times[-1]
    if end < found.end:
        # The log ends in a newer segment: nothing here is after its end.
        found.position = max(found.position, segment.file.size())
    found.end = max(found.end, end)


def _found_tail(
    filesystem: Filesystem, directory: Directory, segments: SegmentList, losses: Losses
) -> Tail:
    """Makes the mark of a new queue, or of one that another program left."""
    found = _find(directory, segments)
    for damage in found.damage:
        # Recovery moves an unreadable file at the end out of the way of the next segment.
        losses.note(damage, gone=True)
    losses.save()
    return Tail(
        filesystem.random_bytes(16),
        filesystem.boot_id(),
        written=found.end,
        durable=found.end,
        segment=found.segment,
        position=found.position,
        time_ms=found.time_ms,
        salt=found.salt,
        begin=next(iter(segments.bases), found.end),
    )


def _good_batches(segment: OpenSegment, position: int, index: int, limit: int) -> Iterator[Batch]:
    """Yields the frames from a place on, up to the first that is not good."""
    for item in scan_segment(
        segment.file, segment.path, segment.frames, position=position, index=index, limit=limit
    ):
        if isinstance(item, Damage):
            return
        yield item


@dataclass(slots=True)
class _Piece:
    """Consecutive good frames of a segment that are not known to be durable."""

    position: int
    index: int
    count: int = 0


@dataclass(slots=True)
class _Examined:
    """A segment with bytes above the durable mark: its good pieces, and the ranges between them.

    `stop` is where its last good frame ends, `end` the offset after the records that must be there.
    """

    base: int
    name: str
    pieces: list[_Piece]
    gaps: list[tuple[int, int]]
    stop: int
    end: int
    time_ms: int


class _Recovery:
    """One run of recovery over a directory that was not closed cleanly.

    While the machine has not been restarted, all that `tail` calls written is in the files,
    whatever happened to the process: what does not verify there is damage and stays a gap. After a
    restart this holds only for what is durable, and the first bad frame above that ends the log.
    """

    def __init__(self, filesystem: Filesystem, directory: Directory, tail: Tail) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._tail = tail
        self._same_boot = tail.boot_id == filesystem.boot_id()
        self._sure = max(tail.written, tail.durable) if self._same_boot else tail.durable
        self._segments = list_segments(directory)
        self.end = tail.durable
        self._time_ms = tail.time_ms
        self._examined: list[_Examined] = []
        self._abandoned: list[int] = []
        self._written_names: set[str] = set()
        self._last = (tail.segment, tail.position, tail.salt)

    def run(self) -> Tail:
        """Brings the directory into order; returns the mark to publish, with all of it durable."""
        self.survey()
        # Do this first: a file that was never finished may have the name that a new one needs.
        # Remove the newest first, so that after a crash the rest still begins at the same place.
        for base in self._abandoned[::-1]:
            name = self._segments.names[base]
            if self._is_blank(name):
                # The segment was just being created: nothing was ever in it.
                self._directory.unlink(name)
                self._abandoned.remove(base)
            else:
                quarantine.keep_file(self._directory, name)
        for examined in self._examined:
            self._quarantine_rest(examined)
            self._rewrite(examined)
        staged = find_staged(self._directory)
        if staged is not None and staged_fits(self._directory, staged):
            self._take_staged(staged)
        self._directory.sync()
        self._remove_old()
        return self._mark()

    def survey(self) -> None:
        """Finds the records above the durable mark, up to the first gap that is no damage."""
        for base in self._segments.bases:
            following = self._segments.after(base)
            if following is not None and following < self._tail.durable:
                continue
            # Look at the segment of the mark even if another one begins there: a crash may have
            # come between copying what was after the mark and the cut.
            if base < self._tail.durable and base != self._tail.segment:
                continue
            gap = base > self.end and (self.end >= self._sure or base > self._sure)
            if self._abandoned or gap:
                self._abandoned.append(base)
                continue
            try:
                segment = OpenSegment(self._directory, self._segments.names[base], base)
            except (*UNREADABLE, FileNotFoundError):
                self._pass_by(base, following)
                continue
            try:
                examined = self._examine(segment, following)
            finally:
                segment.file.close()
            self._examined.append(examined)
            self.end = max(self.end, examined.end)
            self._time_ms = max(self._time_ms, examined.time_ms)

    def _pass_by(self, base: int, following: int | None) -> None:
        """Leaves an unreadable segment in place if something acknowledged was in it."""
        if base < self._sure:
            self.end = max(self.end, min(following or self._sure, self._sure))
        elif base >= self._tail.durable:
            # The file was never finished.
            self._abandoned.append(base)

    def _examine(self, segment: OpenSegment, following: int | None) -> _Examined:
        layout, base = segment.frames.layout, segment.base
        position, index = layout.header_bytes, 0
        if base < self._tail.durable:
            position, index = self._tail.position, self._tail.durable - base
        limit = (OFFSET_MAX + 1 if following is None else following) - base
        if not layout.checked:
            # Without checksums, only what was surely written as a whole can be told from rubbish.
            limit = min(limit, max(0, self._sure - base))
        expected = max(0, min(self._sure - base, limit))
        examined = _Examined(base, segment.name, [], [], position, base + index, 0)
        piece = None
        for item in scan_segment(
            segment.file,
            segment.path,
            segment.frames,
            position=position,
            index=index,
            expected=expected,
            limit=limit,
        ):
            if isinstance(item, Damage):
                if item.torn or item.count is None or (item.offset or 0) >= expected:
                    break
                examined.gaps.append((item.position, item.length))
                examined.end = base + (item.offset or 0) + item.count
                examined.stop = item.position + item.length
                piece = None
                continue
            if piece is None:
                piece = _Piece(item.position, item.index)
                examined.pieces.append(piece)
            piece.count += len(item.values)
            examined.stop = item.end_position
            examined.end = base + item.index + len(item.values)
            if item.times:
                examined.time_ms = segment.frames.header.epoch_ms + item.times[-1]
        return examined

    def _is_blank(self, name: str) -> bool:
        try:
            file = open_readable(self._directory, name)
        except Damaged:
            return False
        try:
            position = 0
            while data := file.pread(CHUNK_BYTES, position):
                if file.holes or any(data):
                    return False
                position += len(data)
            return True
        finally:
            file.close()

    def _quarantine_rest(self, examined: _Examined) -> None:
        """Keeps in quarantine the bytes that are not good frames, if there are any."""
        file = open_readable(self._directory, examined.name)
        try:
            rest = (examined.stop, max(0, file.size() - examined.stop))
            for position, length in {*examined.gaps, rest}:
                data = file.pread(length, position)
                quarantine.keep_rest(self._directory, examined.name, position, data)
        finally:
            file.close()

    def _rewrite(self, examined: _Examined) -> None:
        """Copies the good frames of a segment into segments of their own, durably.

        Copies the last piece first: the first one may take the name of the segment that all are
        read from.
        """
        old = OpenSegment(self._directory, examined.name, examined.base)
        try:
            placed = []
            for piece in reversed(examined.pieces):
                base, limit = examined.base + piece.index, piece.index + piece.count
                batches = _good_batches(old, piece.position, piece.index, limit)
                placed.append(self._write_segment(old.frames.header, base, batches))
            if placed:
                self._last = placed[0]
        finally:
            old.file.close()

    def _take_staged(self, staged: Staged) -> None:
        """Writes the staged records that are not in the files yet."""
        path = f"{self._directory.path}/{STAGING_NAME}"
        header = decode_header(staged.header, path)
        for batch in staged_batches(staged, path):
            first = header.base_offset + batch.index
            known = max(0, self.end - first)
            if first > self.end and not self._same_boot:
                # After a power cut, what is after a gap was not durable.
                frames = staged.frames[batch.position : batch.end_position]
                quarantine.keep_bytes(self._directory, f"{STAGING_NAME}-{first}", frames)
                continue
            if known >= len(batch.values):
                continue
            left = Batch(0, 0, 0, batch.values[known:], batch.times[known:])
            self._last = self._write_segment(header, first + known, [left])
            self.end = first + len(batch.values)
            self._time_ms = max(self._time_ms, header.epoch_ms + batch.times[-1])
        if self._same_boot:
            # What does not verify at the end did exist: its offsets stay a gap and are not reused.
            self.end = max(self.end, end_of_staged(staged, path))

    def _write_segment(
        self, like: Header, base: int, batches: Iterable[Batch]
    ) -> tuple[int, int, bytes]:
        """Writes a segment under a temporary name, syncs it, and renames it to its own name.

        Returns its base, its size and its salt.
        """
        remaining = iter(batches)
        first = next(remaining)
        # Use an epoch of its own: readers search for a time by the first record's, from the epoch.
        shift = first.times[0] - 1 if first.times else 0
        salt = self._filesystem.random_bytes(8) if like.layout.checked else b""
        if base == like.base_offset:
            # The same bytes under the same name: the staging buffer knows its segment by the salt.
            salt = like.salt
        header = replace(like, base_offset=base, salt=salt, epoch_ms=like.epoch_ms + shift)
        frames = Frames(header)
        name = segment_name(base, header.version)
        writer = SegmentWriter(
            self._directory, name + atomic.TEMPORARY, header.encode(), allocate_bytes=0
        )
        try:
            index = 0
            for batch in itertools.chain([first], remaining):
                count, size = frames.fit(batch.values, 0, 2**62)
                buffer = bytearray(size)
                times = [ms - shift for ms in batch.times]
                frames.encode(batch.values, 0, count, buffer, index, 0, times or None)
                writer.append(buffer)
                index += count
            writer.sync()
        finally:
            writer.close()
        self._directory.rename(writer.name, name)
        self._written_names.add(name)
        return base, writer.end, salt

    def _remove_old(self) -> None:
        """Cuts off or removes what was copied or is torn."""
        for examined in self._examined:
            if examined.base >= self._tail.durable:
                if examined.name not in self._written_names:
                    # Its good records are in files with other names now.
                    self._directory.unlink(examined.name)
                continue
            file = self._directory.open(examined.name, write=True)
            try:
                if file.size() > self._tail.position:
                    file.truncate(self._tail.position)
                    file.sync()
            finally:
                file.close()
        self._directory.sync()

    def _mark(self) -> Tail:
        return self._tail.recovered(
            self._filesystem.boot_id(),
            self.end,
            *self._last,
            time_ms=self._time_ms,
            lost=not self._same_boot or bool(self._abandoned) or self.end < self._tail.written,
        )


def staged_batches(staged: Staged, path: str) -> Iterator[Batch]:
    """Yields the staged records, skipping those that do not verify.

    A good frame after a bad one is newer, because remains of older chunks have lower indexes. What
    seems to be a frame beyond those that are noted is not one: among so many bytes of older chunks
    some verify by chance, under an index far ahead.
    """
    frames = Frames(decode_header(staged.header, path))
    limit = _ALL if staged.count is None else staged.index + staged.count
    for item in scan_segment(
        StagedBytes(staged.frames), path, frames, position=0, index=staged.index, limit=limit
    ):
        if not isinstance(item, Damage):
            yield item


class StagedBytes:
    """The frames of a staging buffer, to be scanned like those of a segment."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only at the end."""
        return self._data[position : position + size]

    def size(self) -> int:
        """Returns the size in bytes."""
        return len(self._data)
