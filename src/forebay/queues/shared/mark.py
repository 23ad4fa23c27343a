"""The mark of a queue, which its owner writes: where the durable end is.

Called with the queue's lock held, except `sync`. The durable end and its place change together, and
only after a sync: a mark that names a wrong place would make recovery cut good records. A disk
error is left to the owner, which must end the handle: without its mark, nothing more may be
acknowledged.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from forebay.storage.tail import Tail, TailFile

_Content = TypeVar("_Content")
_Content_contra = TypeVar("_Content_contra", contravariant=True)


class MarkFile(Protocol[_Content_contra]):
    """An open file that holds the newest mark."""

    def write(self, mark: _Content_contra, /, *, sync: bool = False) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class DurableMark(Generic[_Content]):
    """The last mark that was written, and whether it is durable itself."""

    def __init__(self, file: MarkFile[_Content], last: _Content) -> None:
        """Starts with the mark `last`, which is durable."""
        self._file = file
        self.last = last
        self.synced = True

    def write(self, mark: _Content, *, sync: bool = False) -> None:
        """Writes a new mark; with `sync` it is durable on return."""
        self.last = mark
        self.synced = False
        self._file.write(mark, sync=sync)
        self.synced = sync

    def sync(self) -> None:
        """Makes the last mark durable itself."""
        # Set before the sync, because the sync does not cover a mark that is written meanwhile.
        self.synced = True
        self._file.sync()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class End(NamedTuple):
    """An end of the log: the offset after it, its segment, the position there, the salt."""

    offset: int
    segment: int
    position: int
    salt: bytes = b""


class TailMark(DurableMark[Tail]):
    """Writes `tail`, which tells other processes and recovery where the end of a queue is."""

    def __init__(self, file: TailFile, last: Tail, boot_id: bytes) -> None:
        super().__init__(file, last)
        self._boot_id = boot_id

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
        """Writes a new mark; `durable`, `begin` and `staged` keep their values if not given."""
        old = self.last
        if durable is None:
            durable = End(old.durable, old.segment, old.position, old.salt)
        offset, segment, position, salt = durable
        tail = Tail(
            old.queue_id,
            self._boot_id,
            written,
            offset,
            segment,
            position,
            time_ms,
            clean,
            old.incarnation,
            old.starts,
            old.begin if begin is None else begin,
            salt,
            old.staged if staged is None else staged,
        )
        self.write(tail, sync=sync)
