"""Removes segments from the head of a log: those that everybody has read, or to make room.

Called with the queue's lock held. Order: the readers' places are durable, then the mark that the
records may go, then the files, one after the other, each gone for good before the next.
"""

from __future__ import annotations

import contextlib
import logging

from forebay.errors import Damaged, Full
from forebay.queues.log.consumer import Positions
from forebay.queues.log.writer import LogWriter
from forebay.queues.shared.options import LogOptions
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)


class Trimmer:
    """Takes whole segments away."""

    def __init__(
        self,
        directory: Directory,
        segments: SegmentList,
        positions: Positions,
        options: LogOptions,
    ) -> None:
        self._directory = directory
        self._segments = segments
        self._positions = positions
        self._options = options
        self._untold: list[int] = []
        self.dropped_records = 0

    @property
    def begin(self) -> int:
        """The offset of the oldest record that must be there."""
        assert self._segments.begin is not None
        return self._segments.begin

    def trim(self, writer: LogWriter) -> int:
        """Removes segments that all consumers and cursors are past; returns how many records."""
        lowest = self._positions.lowest()
        if lowest is None:
            return 0
        lowest = min(lowest, writer.commit.durable)
        count = sum(1 for following in self._segments.bases[1:] if following <= lowest)
        return self._remove_first(writer, count)

    def make_room(self, writer: LogWriter, size: int) -> int:
        """Waits, refuses or drops until `size` bytes may be written; returns how many may be."""
        limit = self._options.max_bytes
        if limit is None:
            return 2**62
        if size > limit:
            raise Full(f"{size} bytes are more than max_bytes = {limit}; nothing was written")
        while True:
            left = limit - writer.used_bytes
            if size <= left:
                return left
            if self._trim_if_sound(writer) or self._trim_newest(writer):
                continue
            if self._options.when_full == "reject":
                path = self._directory.path
                raise Full(f"{path} holds {writer.used_bytes} of max_bytes = {limit}")
            if self._options.when_full == "drop_oldest":
                self._drop_oldest(writer)
                continue
            writer.changes.wait(1.0)
            writer.check()

    def respect_limit(self, writer: LogWriter) -> None:
        """Drops what is above the limit, if the user said so: it may have been set anew."""
        limit = self._options.max_bytes
        if limit is None or self._options.when_full != "drop_oldest":
            return
        while writer.used_bytes > limit and (
            self._trim_if_sound(writer) or self._drop_oldest(writer)
        ):
            pass

    def tell(self) -> None:
        """Logs what was dropped; called without the lock, which a handler of messages may want."""
        while self._untold:
            try:
                count = self._untold.pop(0)
            except IndexError:
                return
            path = self._directory.path
            _logger.warning("%s is full: the %d oldest records were dropped", path, count)

    def _trim_if_sound(self, writer: LogWriter) -> int:
        try:
            return self.trim(writer)
        except Damaged:
            # Whether somebody still reads is not known: nothing is trimmed, the rest goes on.
            return 0

    def _trim_newest(self, writer: LogWriter) -> int:
        """Removes the last segment too, if all of it was read: else some batches would never fit.

        Only where room is needed: a log that is trimmed keeps its newest segment.
        """
        try:
            lowest = self._positions.lowest()
        except Damaged:
            return 0
        if lowest is None or lowest < writer.written or writer.used_bytes == 0:
            return 0
        writer.roll()
        return self._remove_first(writer, len(self._segments.bases))

    def _drop_oldest(self, writer: LogWriter) -> int:
        if len(self._segments.bases) < 2:
            writer.roll()
        count = self._remove_first(writer, 1)
        self.dropped_records += count
        self._untold.append(count)
        return count

    def _remove_first(self, writer: LogWriter, count: int) -> int:
        if count == 0:
            return 0
        bases = self._segments.bases
        following = bases[count] if count < len(bases) else writer.written
        removed = following - bases[0]
        # On record before the first unlink: a first segment that is missing above it is damage,
        # and one that comes back below it after a power cut is not taken for the beginning.
        if writer.commit.durable < following:
            # Segments that come back after a power cut must be whole.
            writer.sync_now(begin=following)
        else:
            writer.publish(sync=True, begin=following)
        self._segments.begin = following
        for name in [self._segments.names[base] for base in bases[:count]]:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
            self._segments.drop_first(1)
        # Not synced: those that come back after a power cut go at the next open.
        keep_reserve(self._directory)
        return removed
