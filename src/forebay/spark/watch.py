"""The queues that a stream reads: which there are, and how far each is durable.

A poll is one `pread` of `tail` a queue. Patterns are looked up again every ten seconds, never by a
poll. Polls that take long are done rarely, so that an idle stream over a thousand queues costs
little: at least nine tenths of the time it does nothing.

A directory that has no `tail`, because another program writes it, is looked at every ten seconds.
"""

from __future__ import annotations

import fnmatch
import logging
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import NotAQueue
from forebay.queues.reader import LogReader
from forebay.spark import paths
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import Tail, TailFile

DISCOVERY_SECONDS = 10.0
_IDLE_SHARE = 9
_RECORD_BYTES = 256
_FILES_PER_QUEUE = 4
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a queue is durable, and in which incarnation."""

    queue_id: str
    incarnation: int
    durable: int
    record_bytes: int
    tail: Tail | None = None

    def lost_since(self, incarnation: int, offset: int) -> bool:
        """Says whether a reader that stood at an offset missed records, or stands past the end."""
        if offset > self.durable:
            return True
        return self.tail is not None and self.tail.lost_since(incarnation, offset)

    def restart(self, incarnation: int, offset: int) -> int:
        """Gives the offset from which on records are new to a reader that stood at `offset`."""
        offset = min(offset, self.durable)
        if self.tail is None:
            return offset
        passed = self.tail.incarnation - incarnation
        return min([offset, *self.tail.starts[:passed]])


class Watch:
    """The queues of one stream. One thread at a time may use it."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = given
        self._tails: dict[str, TailFile | None] = {}
        self._marks: dict[str, Mark] = {}
        self._discovered = self._polled = self._took = float("-inf")

    def belongs(self, path: str) -> bool:
        """Says whether a path is one of those that were given, or matches one."""
        return any(path == one or fnmatch.fnmatchcase(path, one) for one in self._given)

    def marks(self) -> dict[str, Mark]:
        """Gives where each queue stands, as of now or a moment ago."""
        now = time.monotonic()
        if now - self._discovered >= DISCOVERY_SECONDS:
            self._discover()
            self._discovered = now
        elif now - self._polled < self._took * _IDLE_SHARE:
            return dict(self._marks)
        for path, tail_file in self._tails.items():
            tail = tail_file.read() if tail_file is not None else None
            if tail is not None:
                self._marks[path] = _mark_of(tail)
        self._polled = time.monotonic()
        self._took = self._polled - now
        return dict(self._marks)

    def look_again(self) -> None:
        """Makes the next poll look for queues that came or went."""
        self._discovered = float("-inf")

    def close(self) -> None:
        """Closes its files."""
        for path in list(self._tails):
            self._forget(path)

    def _discover(self) -> None:
        found = _directories(self._given)
        _allow_open_files(len(found) * _FILES_PER_QUEUE)
        for path in set(self._tails) - set(found):
            self._forget(path)
        for path in found:
            # One that was removed and made anew has another file under the same name.
            self._forget(path)
            try:
                self._open(path)
            except (NotAQueue, FileNotFoundError):
                _logger.info("%s is not a queue (yet); passed over", path)

    def _open(self, path: str) -> None:
        directory = DiskFilesystem().open_directory(path)
        try:
            tail_file = TailFile.open(directory, write=False)
        finally:
            directory.close()
        if tail_file is None:
            with LogReader(path) as reader:
                self._marks[path] = Mark("", 0, reader.written, _RECORD_BYTES)
        self._tails[path] = tail_file

    def _forget(self, path: str) -> None:
        tail_file = self._tails.pop(path, None)
        if tail_file is not None:
            tail_file.close()
        self._marks.pop(path, None)


def _directories(given: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for path in given:
        try:
            found.update(paths.expand([path]))
        except NotAQueue:
            continue
    return sorted(found)


def _mark_of(tail: Tail) -> Mark:
    records = tail.durable - tail.segment
    size = tail.position // records if records > 0 else _RECORD_BYTES
    return Mark(tail.queue_id.hex(), tail.incarnation, tail.durable, max(size, 1), tail)


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count > soft:
        allowed = count * 2 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
