"""Removes segments from the head of a log: those that all readers are past, or to make room.

Called with the queue's lock held. Order: first the readers' places are durable, then the mark with
the new beginning, then the files are removed one after the other, the oldest first.
"""

from __future__ import annotations

import contextlib
import logging

from forebay.errors import Damaged, Full
from forebay.queues.log.options import LogOptions
from forebay.queues.log.places import Places
from forebay.queues.log.writer import LogWriter
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)


class Trimmer:
    """Removes whole segments."""

    def __init__(
        self,
        directory: Directory,
        segments: SegmentList,
        places: Places,
        writer: LogWriter,
        options: LogOptions,
    ) -> None:
        self._directory = directory
        self._segments = segments
        self._places = places
        self._writer = writer
        self._options = options
        # How many records each drop removed, to be logged when the lock is released.
        self.untold: list[int] = []
        self.dropped_records = 0

    @property
    def begin(self) -> int:
        """The offset of the oldest record that must be there."""
        assert self._segments.begin is not None
        return self._segments.begin

    def trim(self) -> int:
        """Removes segments that all consumers and cursors are past; returns how many records."""
        lowest = self._places.lowest()
        if lowest is None:
            return 0
        lowest = min(lowest, self._writer.commit.durable)
        count = sum(1 for following in self._segments.bases[1:] if following <= lowest)
        return self._remove_first(count)

    def make_room(self, size: int) -> bool:
        """Trims, or drops records if that is the policy; says whether anything was removed.

        Raises `Full` if `size` bytes can never fit, or the policy is not to wait for room.
        """
        limit = self._options.max_bytes
        assert limit is not None
        if size > limit:
            raise Full(f"{size} bytes are more than max_bytes = {limit}; nothing was written")
        if self._trim_if_sound() or self._trim_newest():
            return True
        if self._options.when_full == "reject":
            path, used = self._directory.path, self._writer.used_bytes
            raise Full(f"{path} holds {used} of max_bytes = {limit}")
        if self._options.when_full == "drop_oldest":
            self._drop_oldest()
            return True
        return False

    def respect_limit(self) -> None:
        """Drops what is above the limit, if that is the policy: the limit may be a new one."""
        limit = self._options.max_bytes
        if limit is None or self._options.when_full != "drop_oldest":
            return
        while self._writer.used_bytes > limit and (self._trim_if_sound() or self._drop_oldest()):
            pass

    def tell(self) -> None:
        """Logs what was dropped; called without the lock, because a log handler may need it."""
        while self.untold:
            try:
                count = self.untold.pop(0)
            except IndexError:
                return
            path = self._directory.path
            _logger.warning("%s is full: the %d oldest records were dropped", path, count)

    def _trim_if_sound(self) -> int:
        try:
            return self.trim()
        except Damaged:
            # It is not known which readers there are: trim nothing, and go on without.
            return 0

    def _trim_newest(self) -> int:
        """Removes the last segment too, if all of it was read: else some batches would never fit.

        Only when room is needed: otherwise trimming keeps the newest segment.
        """
        try:
            lowest = self._places.lowest()
        except Damaged:
            return 0
        if lowest is None or lowest < self._writer.written or self._writer.used_bytes == 0:
            return 0
        self._writer.roll()
        return self._remove_first(len(self._segments.bases))

    def _drop_oldest(self) -> int:
        if len(self._segments.bases) < 2:
            self._writer.roll()
        count = self._remove_first(1)
        self.dropped_records += count
        self.untold.append(count)
        return count

    def _remove_first(self, count: int) -> int:
        if count == 0:
            return 0
        bases = self._segments.bases
        following = bases[count] if count < len(bases) else self._writer.written
        removed = following - bases[0]
        # Record the new beginning before the first unlink: a first segment that is missing above it
        # is damage, and one that comes back below it after a power cut is not taken for the
        # beginning.
        if self._writer.commit.durable < following:
            # Segments that come back after a power cut must be whole.
            self._writer.sync_now()
        self._writer.publish(sync=True, begin=following)
        self._segments.begin = following
        for name in [self._segments.names[base] for base in bases[:count]]:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
            self._segments.drop_first(1)
        # Not synced: segments that come back after a power cut are removed at the next open.
        keep_reserve(self._directory)
        return removed
