"""The files of a log that is being written: its segments, and what of them is durable.

Owns the queue's one lock, the segment being written, the group commit and `tail`. A failed or short
write is cut back and raised, and the queue goes on. A failed cut, or any failed sync, ends the
handle: what was not acknowledged is never tried again on that file.

The syncs of appends run outside the lock. Creating a segment, adoption and trimming sync with the
lock held: they are rare, and nothing may be appended in between.
"""

from __future__ import annotations

import threading

from forebay.errors import Closed, ForebayError
from forebay.formats.fflg import LAYOUTS, MS_MAX, Frames
from forebay.queues.changes import Changes
from forebay.queues.new_segments import NewSegments
from forebay.queues.options import LogOptions
from forebay.queues.publishing import End, Publisher
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter
from forebay.storage.tail import Tail, TailFile


class SegmentLog:
    """The segments of a log that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segments: SegmentList,
        tail_file: TailFile,
        tail: Tail,
        options: LogOptions,
        version: int,
    ) -> None:
        self._directory = directory
        self._segments = segments
        self.publisher = Publisher(tail_file, tail, filesystem.boot_id(), self.fail)
        self._options = options
        self._layout = LAYOUTS[version]
        self._new_segments = NewSegments(filesystem, directory, version, options.segment_bytes)
        self._always = options.sync == "always"
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self.written = tail.written
        self._place = End(tail.written, tail.segment, tail.position, tail.salt)
        self._last_ms = tail.time_ms
        self.commit = GroupCommit(self._sync_files, tail.durable)
        self._writer: SegmentWriter | None = None
        self._frames: Frames | None = None
        self.sealed: list[SegmentWriter] = []
        self._error: ForebayError | None = None
        self._failed = False

    @property
    def writing(self) -> bool:
        """Whether a segment is being written."""
        return self._writer is not None

    @property
    def used_bytes(self) -> int:
        """What all segments take, without preallocated space that the next records go to."""
        return sum(self._segments.sizes.values()) + (self._writer.end if self._writer else 0)

    def check(self) -> None:
        """Raises if the handle can no longer be used."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def roll(self) -> None:
        """Seals the segment being written, into which everything was drained. Lock held."""
        if self._writer is None:
            return
        if self.written == self._segments.bases[-1]:
            # Kept open until the next sync: somebody may be syncing it now.
            self.sealed.append(self._writer)
            name, self._writer, self._frames = self._writer.name, None, None
            self._segments.drop_last()
            self._new_segments.discard(name)
            return
        try:
            self._writer.seal()
        except OSError as error:
            self.fail(error)
            raise
        self._segments.sizes[self._segments.bases[-1]] = self._writer.end
        self.sealed.append(self._writer)
        self._writer = self._frames = None

    def sync_now(self, *, begin: int | None = None) -> None:
        """Makes everything in the files durable with the lock held: nothing comes after it.

        `begin` goes on record with it.
        """
        try:
            for segment in [*self.sealed, *([self._writer] if self._writer else [])]:
                segment.sync()
        except OSError as error:
            self.fail(error)
            raise
        self.publish(durable=self._place, sync=True, begin=begin)
        self.commit.advance(self._place.offset)

    def adopted(self, place: End, time_ms: int) -> None:
        """Takes note of durable segments that were put after the end. Lock held."""
        end = place.offset
        self.written = end
        self._place = place
        self._last_ms = max(self._last_ms, time_ms)
        self.publish(durable=self._place, sync=True)
        self.commit.advance(end)
        self.changes.announce()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        self._failed = True
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error!r}")
            )

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork, whose lock may be held by nobody that lives."""
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self._error = error

    def release_files(self) -> None:
        """Closes all files."""
        for writer in [*self.sealed, *([self._writer] if self._writer else [])]:
            writer.close()
        self.sealed = []
        self._writer = None
        self.publisher.close()

    def write_pending(self) -> None:
        """Writes what waits for the next commit; here, nothing does."""

    def _check_whole(self) -> None:
        """Raises if the handle failed; while it is closing, what is left is still synced."""
        if self._failed:
            self.check()

    def _segment_for(self, size: int, now_ms: int) -> tuple[SegmentWriter, Frames]:
        """Returns a segment with room for a record of `size` bytes at a time."""
        if self._writer is not None and self._frames is not None:
            used = self._writer.end + self._layout.frame_bytes + size
            elapsed = now_ms - self._frames.header.epoch_ms
            in_time = elapsed <= MS_MAX or not self._layout.checked
            if used <= self._options.segment_bytes and in_time:
                return self._writer, self._frames
            self.roll()
        if self.publisher.tail.clean:
            # Before anything is acknowledged: a clean mark would hide it after a power cut.
            self.publish(sync=True)
        size_max = self._options.segment_bytes
        if self._options.max_bytes is not None:
            # Space that is set aside counts: the disk never holds more than the limit.
            size_max = min(size_max, self._options.max_bytes - self.used_bytes)
        self._writer, self._frames = self._new_segments.create(self.written, now_ms, size_max)
        self._segments.add(self.written, self._writer.name)
        try:
            # After a power cut, what is acknowledged from here on must have a name.
            self._directory.sync()
        except OSError as error:
            self.fail(error)
            raise
        return self._writer, self._frames

    def _write(self, data: memoryview, count: int) -> None:
        """Writes the frames of the next `count` records to the segment."""
        writer = self._writer
        assert writer is not None
        try:
            writer.append(data)
        except OSError as error:
            if writer.broken:
                self.fail(error)
            raise
        assert self._frames is not None
        offset, salt = self._place.offset + count, self._frames.header.salt
        self._place = End(offset, self._segments.bases[-1], writer.end, salt)

    def _sync_files(self) -> int:
        """Syncs all that is written; led by one thread at a time, without the lock."""
        with self.lock:
            self._check_whole()
            self.write_pending()
            end = self._place
            sealed, writer = self.sealed[:], self._writer
        try:
            for segment in sealed:
                segment.sync()
            if writer is not None:
                writer.sync()
            self._directory.check_there()
        except OSError as error:
            self.fail(error)
            raise
        with self.lock:
            self._check_whole()
            if end.offset >= self.publisher.tail.durable:
                self.publish(durable=end, sync=not self._layout.checked or bool(sealed))
            # After the mark: if that fails, they are closed with the other files.
            self.sealed = self.sealed[len(sealed) :]
            self.changes.announce()
        for segment in sealed:
            segment.close()
        return end.offset

    def publish(
        self,
        *,
        durable: End | None = None,
        clean: bool = False,
        begin: int | None = None,
        staged: bool | None = None,
        sync: bool = False,
    ) -> None:
        """Tells where the end is, and where the beginning if that has changed. Lock held."""
        written = self.written
        if self._always:
            # Nothing is readable before it is durable.
            written = durable.offset if durable is not None else self.publisher.tail.durable
        self.publisher.publish(
            written,
            self._last_ms,
            durable=durable,
            clean=clean,
            begin=begin,
            staged=staged,
            sync=sync,
        )
