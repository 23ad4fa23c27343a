"""Opens a log directory and brings it into order, whatever a crash left.

Promises that on return everything below `Tail.written` is durable, that the staging buffer is
void, and that nothing acknowledged under the policy's promise is missing. What was in the files
above the durable mark is copied into new segments and synced, because after a failed sync the
cache may show bytes that the disk lacks; a torn end is cut, and its bytes go to `quarantine/`. It
may crash at any point and run again.

Above the durable mark the first bad frame ends the log: what a power cut takes is a suffix. Below
the mark bad frames are damage; they stay where they are and readers go round them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, NotAQueue, UnsupportedVersion
from forebay.formats.fflg import (
    Frames,
    Header,
    decode_header,
    parse_segment_name,
    segment_name,
)
from forebay.frames import Damage
from forebay.queues.event_names import is_event_queue
from forebay.queues.fifo_names import is_fifo
from forebay.queues.scanner import OpenSegment, list_segments
from forebay.storage import atomic, inbox, losses, quarantine
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import Batch, SegmentList, SegmentWriter, scan_segment
from forebay.storage.staging import NAME as STAGING_NAME
from forebay.storage.staging import Staged, blank_staged, read_staged
from forebay.storage.tail import NAME as TAIL_NAME
from forebay.storage.tail import Tail, TailFile

OWN_NAMES = {
    *(TAIL_NAME, STAGING_NAME, atomic.RESERVE, inbox.LEDGER, losses.NAME),
    *("index", "index-check"),
}
OWN_DIRECTORIES = {"cursors", "inbox", "quarantine"}


def open_directory(
    filesystem: Filesystem, directory: Directory
) -> tuple[TailFile, Tail, SegmentList]:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = set(directory.names())
    segments = list_segments(directory)
    refuse_foreign(directory, names, segments)
    for name in names:
        if _is_own_temporary(name):
            directory.unlink(name)
    tail_file = TailFile.open(directory, write=True)
    try:
        return _open_directory(filesystem, directory, segments, tail_file)
    except BaseException:
        if tail_file is not None:
            tail_file.close()
        raise


def _open_directory(
    filesystem: Filesystem,
    directory: Directory,
    segments: SegmentList,
    tail_file: TailFile | None,
) -> tuple[TailFile, Tail, SegmentList]:
    tail = None if tail_file is None else tail_file.read()
    if tail_file is None or tail is None:
        tail = _found_tail(filesystem, directory, segments)
        if tail_file is not None:
            tail_file.close()
        tail_file = TailFile.create(directory, tail)
    if finish_adoption(directory):
        segments = list_segments(directory)
        tail = tail._replace(clean=False)
    if not tail.clean:
        tail = _Recovery(filesystem, directory, tail).run()
        tail_file.write(tail, sync=True)
        blank_staged(directory)
        segments = list_segments(directory)
    else:
        _set_leftovers_aside(directory, segments, tail)
    clear_adoption(directory)
    return tail_file, tail, segments


def find_end(filesystem: Filesystem, directory: Directory, tail: Tail | None) -> int:
    """Gives the offset behind the last good record in the files, without changing anything."""
    if tail is None:
        return _found_tail(filesystem, directory, list_segments(directory)).written
    if tail.clean or tail.boot_id == filesystem.boot_id():
        return tail.written
    recovery = _Recovery(filesystem, directory, tail)
    recovery.survey()
    return recovery.end


def finish_adoption(directory: Directory) -> bool:
    """Finishes an adoption that a crash interrupted; says whether there was one."""
    ledger = inbox.own_ledger(directory)
    if not ledger.moves:
        return False
    # Made again if somebody removed it: the segments that are missing then show when they are read.
    work = directory.directory(inbox.DIRECTORY, create=True)
    try:
        inbox.finish_moves(directory, work, ledger.moves)
    finally:
        work.close()
    return True


def _set_leftovers_aside(directory: Directory, segments: SegmentList, tail: Tail) -> None:
    """Moves away a file behind the end of a queue that was closed: its first write had failed."""
    while segments.bases and segments.bases[-1] >= tail.written:
        quarantine.keep_file(directory, segments.names[segments.bases[-1]])
        segments.drop_last()
        directory.sync()


def clear_adoption(directory: Directory) -> None:
    """Forgets the moves of an adoption that is finished and published."""
    ledger = inbox.own_ledger(directory)
    if ledger.moves:
        inbox.write_ledger(directory, inbox.Ledger(ledger.adopted, []))


def refuse_foreign(directory: Directory, names: set[str], segments: SegmentList) -> None:
    """Refuses a directory that holds something, and nothing of a log."""
    for kind, fits in (("an event queue", is_event_queue), ("a fifo", is_fifo)):
        if fits(list(names)):
            raise NotAQueue(f"{directory.path} is {kind}, not a log; open it as what it is")
    ours = names & (OWN_NAMES | OWN_DIRECTORIES)
    temporary = {name for name in names if _is_own_temporary(name)}
    if names - temporary and not ours and not segments.bases:
        example = min(names - temporary)
        raise NotAQueue(
            f"{directory.path} is not a log: it holds {example!r}; give an empty or a new directory"
        )


def _is_own_temporary(name: str) -> bool:
    stem = name.removesuffix(atomic.TEMPORARY)
    return stem != name and (stem in OWN_NAMES or parse_segment_name(stem) is not None)


def _found_tail(filesystem: Filesystem, directory: Directory, segments: SegmentList) -> Tail:
    """Makes the mark of a new queue, or of one that another program left."""
    tail = Tail(filesystem.random_bytes(16), filesystem.boot_id())
    if not segments.bases:
        return tail
    segment = OpenSegment(directory, segments.names[segments.bases[-1]], segments.bases[-1])
    start = segment.frames.layout.header_bytes
    end, position, time_ms = segment.base, start, 0
    try:
        # Without a mark, good records behind bad ones say that the bad ones are damage.
        for item in scan_segment(segment.file, segment.path, segment.frames, position=start):
            if isinstance(item, Damage):
                continue
            end = segment.base + item.index + len(item.values)
            position = item.end_position
            if item.times:
                time_ms = segment.frames.header.epoch_ms + item.times[-1]
    finally:
        segment.file.close()
    tail = tail._replace(written=end, durable=end, time_ms=time_ms)
    return tail._replace(segment=segment.base, position=position)


@dataclass(slots=True)
class _Walk:
    """The good frames from a place on: how many, where they stop, and the last one's time."""

    count: int
    stop: int
    time_ms: int


def _walk(segment: OpenSegment, position: int, index: int, limit: int) -> _Walk:
    walk = _Walk(0, position, 0)
    for item in _good_batches(segment, position, index, limit):
        walk.count += len(item.values)
        walk.stop = item.end_position
        if item.times:
            walk.time_ms = segment.frames.header.epoch_ms + item.times[-1]
    return walk


def _good_batches(segment: OpenSegment, position: int, index: int, limit: int) -> Iterator[Batch]:
    """Gives the frames from a place on, up to the first that is not good."""
    for item in scan_segment(
        segment.file, segment.path, segment.frames, position=position, index=index, limit=limit
    ):
        if isinstance(item, Damage):
            return
        yield item


@dataclass(slots=True)
class _Piece:
    """Good frames of one segment that are not known to be durable."""

    base: int
    position: int
    index: int
    walk: _Walk


class _Recovery:
    """One run of recovery over a directory that was not closed cleanly."""

    def __init__(self, filesystem: Filesystem, directory: Directory, tail: Tail) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._tail = tail
        self._same_boot = tail.boot_id == filesystem.boot_id()
        self._segments = list_segments(directory)
        self.end = tail.durable
        self._time_ms = tail.time_ms
        self._pieces: list[_Piece] = []
        self._abandoned: list[int] = []
        self._written_names: set[str] = set()

    def run(self) -> Tail:
        """Brings the directory into order; gives the mark to publish, with all of it durable."""
        self.survey()
        # First of all: a file that was never finished may bear the name that a new one needs.
        for base in self._abandoned[:]:
            name = self._segments.names[base]
            if not (atomic.read_small(self._directory, name) or b"").strip(b"\0"):
                # A segment that was just being created: nothing was ever in it.
                self._directory.unlink(name)
                self._abandoned.remove(base)
            else:
                quarantine.keep_file(self._directory, name)
        last, position = self._tail.segment, self._tail.position
        for piece in self._pieces:
            self._quarantine_rest(piece)
            if piece.walk.count:
                last, position = self._rewrite(piece)
        staged = read_staged(self._directory)
        if staged is not None:
            taken = self._take_staged(staged)
            if taken is not None:
                last, position = taken
        self._directory.sync()
        self._remove_old()
        return self._mark(last, position)

    def survey(self) -> None:
        """Finds the records above the durable mark, up to the first gap."""
        first = self._segments.containing(self._tail.durable)
        for base in self._segments.bases:
            if first is not None and base < first:
                continue
            if self._abandoned or base > self.end:
                self._abandoned.append(base)
                continue
            piece = self._examine(base)
            if piece is None:
                self._abandoned.append(base)
                continue
            self._pieces.append(piece)
            self.end = base + piece.index + piece.walk.count
            self._time_ms = max(self._time_ms, piece.walk.time_ms)

    def _examine(self, base: int) -> _Piece | None:
        try:
            segment = OpenSegment(self._directory, self._segments.names[base], base)
        except (Damaged, NotAQueue, UnsupportedVersion):
            # Below the mark it is damage, which stays; above it, a file that was never finished.
            if base < self._tail.durable:
                return _Piece(base, 0, self._tail.durable - base, _Walk(0, 2**62, 0))
            return None
        layout = segment.frames.layout
        position, index = layout.header_bytes, 0
        if base < self._tail.durable:
            if base != self._tail.segment:
                segment.file.close()
                return _Piece(base, 0, self._tail.durable - base, _Walk(0, 2**62, 0))
            position, index = self._tail.position, self._tail.durable - base
        following = self._segments.after(base)
        limit = 2**62 if following is None else following - base
        if not layout.checked:
            # Without checksums, only what was surely written whole can be told from rubbish.
            trusted = self._tail.written if self._same_boot else self._tail.durable
            limit = min(limit, max(0, trusted - base))
        try:
            return _Piece(base, position, index, _walk(segment, position, index, limit))
        finally:
            segment.file.close()

    def _quarantine_rest(self, piece: _Piece) -> None:
        """Keeps the bytes behind the last good frame of a piece, if there are any."""
        name = self._segments.names[piece.base]
        file = self._directory.open(name)
        try:
            size = file.size()
            rest = file.pread(max(0, size - piece.walk.stop), piece.walk.stop)
        finally:
            file.close()
        rest = rest.rstrip(b"\0")
        if rest:
            quarantine.keep_bytes(self._directory, f"{name}-{piece.walk.stop}", rest)

    def _rewrite(self, piece: _Piece) -> tuple[int, int]:
        """Copies the good frames of a piece into a segment of their own, durably."""
        old = OpenSegment(self._directory, self._segments.names[piece.base], piece.base)
        try:
            base = piece.base + piece.index
            limit = piece.index + piece.walk.count
            batches = _good_batches(old, piece.position, piece.index, limit)
            return self._write_segment(old.frames.header, base, batches)
        finally:
            old.file.close()

    def _take_staged(self, staged: Staged) -> tuple[int, int] | None:
        """Writes the staged records that are not in the files yet; what is behind a gap is kept."""
        header = decode_header(staged.header, f"{self._directory.path}/{STAGING_NAME}")
        times: list[int] = []
        values, stop = Frames(header).scan(staged.frames, 0, staged.index, 2**62, times)
        first = header.base_offset + staged.index
        if first > self.end:
            if values:
                quarantine.keep_bytes(
                    self._directory, f"{STAGING_NAME}-{first}", staged.frames[:stop]
                )
            return None
        known = self.end - first
        if known >= len(values):
            return None
        batch = Batch(0, 0, 0, values[known:], times[known:])
        written = self._write_segment(header, self.end, [batch])
        self.end += len(batch.values)
        self._time_ms = max(self._time_ms, header.epoch_ms + batch.times[-1])
        return written

    def _write_segment(self, like: Header, base: int, batches: Iterable[Batch]) -> tuple[int, int]:
        """Writes a segment under a temporary name, syncs it, and gives it its name."""
        remaining = iter(batches)
        first = next(remaining)
        # Its own epoch: readers find a time by the first record that an epoch tells.
        shift = first.times[0] - 1 if first.times else 0
        salt = self._filesystem.random_bytes(8) if like.layout.checked else b""
        header = replace(like, base_offset=base, salt=salt, epoch_ms=like.epoch_ms + shift)
        frames = Frames(header)
        name = segment_name(base)
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
        return base, writer.end

    def _remove_old(self) -> None:
        """Cuts what was copied or is torn."""
        for piece in self._pieces:
            name = self._segments.names[piece.base]
            if piece.index == 0 and piece.walk.count == 0 and name not in self._written_names:
                # An empty file would stand where the next segment gets its name.
                self._directory.unlink(name)
            elif piece.index and piece.position:
                file = self._directory.open(name, write=True)
                try:
                    if file.size() > piece.position:
                        file.truncate(piece.position)
                        file.sync()
                finally:
                    file.close()
        self._directory.sync()

    def _mark(self, last: int, position: int) -> Tail:
        tail = self._tail._replace(
            boot_id=self._filesystem.boot_id(),
            written=self.end,
            durable=self.end,
            segment=last,
            position=position,
            time_ms=self._time_ms,
            clean=False,
        )
        if self._same_boot and not self._abandoned and self.end >= self._tail.written:
            return tail
        # Offsets above the end may have been handed out before: readers must learn of it.
        starts = (self.end, *self._tail.starts[:-1])
        return tail._replace(incarnation=tail.incarnation + 1, starts=starts)
