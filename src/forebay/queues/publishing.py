"""Tells other processes, and recovery, where the end of a log is.

Called with the queue's lock held, except `sync`. The durable mark and its place change together
and only after a sync: a mark that names a wrong place would make recovery cut good records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from forebay.storage.tail import Tail, TailFile


class End(NamedTuple):
    """An end of the log: the offset after it, the segment that it is in, where in it, its salt."""

    offset: int
    segment: int
    position: int
    salt: bytes = b""


class Publisher:
    """The owner's hand on `tail`."""

    def __init__(
        self, file: TailFile, tail: Tail, boot_id: bytes, fail: Callable[[BaseException], None]
    ) -> None:
        """`fail` ends the queue's handle: without its mark, nothing more may be acknowledged."""
        self._file = file
        self._boot_id = boot_id
        self._fail = fail
        self.tail = tail
        self.synced = True

    def publish(
        self,
        written: int,
        time_ms: int,
        *,
        durable: End | None = None,
        clean: bool = False,
        begin: int | None = None,
        staged: bool | None = None,
        sync: bool = False,
    ) -> None:
        """Writes a new mark; without `durable`, `begin` or `staged` the old one stays."""
        old = self.tail
        if durable is None:
            durable = End(old.durable, old.segment, old.position, old.salt)
        self.tail = Tail(
            old.queue_id,
            self._boot_id,
            written,
            durable.offset,
            durable.segment,
            durable.position,
            time_ms,
            clean,
            old.incarnation,
            old.starts,
            old.begin if begin is None else begin,
            durable.salt,
            old.staged if staged is None else staged,
        )
        self.synced = False
        try:
            self._file.write(self.tail, sync=sync)
        except OSError as error:
            self._fail(error)
            raise
        self.synced = sync

    def sync(self) -> None:
        """Makes the last mark durable itself."""
        # Before the sync: a mark that is published meanwhile is not covered by it.
        self.synced = True
        try:
            self._file.sync()
        except OSError as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
