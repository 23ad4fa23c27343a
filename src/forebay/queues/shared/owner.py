"""Lets threads and tasks wait for news of a queue, at no cost while nobody does.

Ends a handle whose state was left half changed.

An exception of a signal handler, such as Ctrl-C, can come between any two steps. Between "written
to the file" and "noted in memory" it would make the next write repeat or skip an entry. After it
the handle refuses everything; a reopened queue is whole.

Tells other processes, and recovery, where the end of a log is.

Called with the queue's lock held, except `sync`. The durable mark and its place change together
and only after a sync: a mark that names a wrong place would make recovery cut good records.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from forebay.errors import ForebayError
from forebay.storage.tail import Tail, TailFile


class Changes:
    """A condition on the queue's lock. Called with the lock held.

    `listener` may be set by any thread without the lock: it is called with the lock held, so it
    must neither wait nor raise. Who does not want the lock for nothing looks first whether there
    are `watchers` or a listener.

    Not a `threading.Condition`: an exception of a signal handler may leave the wait of one without
    the lock, and whoever then gives it back takes it from another thread.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.watchers: list[threading.Lock] = []
        self.listener: Callable[[], None] | None = None

    def wait(self, seconds: float) -> None:
        """Waits until something was written, made durable, saved or trimmed."""
        news = threading.Lock()
        news.acquire()
        self.watchers.append(news)
        try:
            # In here: an exception after any of the two finds the lock taken again.
            self._lock.release()
            news.acquire(timeout=max(0, seconds))
        finally:
            self._lock.acquire()
            if news in self.watchers:
                self.watchers.remove(news)

    def announce(self) -> None:
        """Wakes all who wait."""
        if self.watchers:
            watchers, self.watchers = self.watchers, []
            for news in watchers:
                news.release()
        listener = self.listener
        if listener is not None:
            listener()


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _Fails(Protocol):
    def fail(self, error: BaseException) -> None: ...


_Owner = TypeVar("_Owner", bound=_Fails)


def unbroken(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Wraps a method that handles the errors of the disk itself, and knows no others."""

    @functools.wraps(method)
    def run(
        owner: _Owner, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> _Result:
        try:
            return method(owner, *arguments, **keywords)
        except BaseException as error:
            expected = isinstance(error, OSError | ForebayError | TypeError)
            if not expected or isinstance(error, TimeoutError):
                owner.fail(error)
            raise

    return run


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
