"""Group commit: one sync serves all who wait for it.

The first who waits leads: it notes the end, syncs outside the queue's lock, tells what is durable
now and wakes all who wait below it. Those who came meanwhile are the next group, led by the first
of them. A leader whose last group had company waits a moment for it to come back, as long as
somebody keeps arriving: with 64 writers a sync then carries most of them, and a lone writer never
waits.

A failed sync is final: the kernel may have dropped the dirty pages and a second sync would claim
success for bytes that the disk lacks. Everybody who waits, and everybody who comes later, gets it.
A failed write is not: who waits for what was not written gets the error (`abandon`), and the queue
goes on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

_ARRIVAL_SECONDS = 0.0005


class GroupCommit:
    """Makes offsets durable for many threads with few syncs. Any thread may call it."""

    def __init__(self, sync: Callable[[], int], durable: int) -> None:
        """`sync` makes all that is written durable and gives the offset behind it."""
        self._sync = sync
        self._mutex = threading.Lock()
        self._waiting: list[_Turn] = []
        self._leading = False
        self._group = 0
        self._company = threading.Lock()
        self._company.acquire()
        self._company_wanted = 0
        self._error: BaseException | None = None
        self._abandoned: BaseException | None = None
        self.epoch = 0
        self.durable = durable
        self.syncs = 0

    def wait(self, offset: int, epoch: int) -> None:
        """Returns when all records below `offset` are durable.

        `epoch` is that of the moment when the offset was given out: after an `abandon` the same
        offset stands for another record.
        """
        while True:
            with self._mutex:
                if epoch != self.epoch and self._abandoned is not None:
                    raise self._abandoned
                if self._error is not None:
                    raise self._error
                if self.durable >= offset:
                    return
                turn = None if not self._leading else self._join()
                self._leading = True
            if turn is not None:
                # Woken when the group before is done: served by it, or first of the next.
                turn.take()
                continue
            self._lead()

    def advance(self, durable: int) -> None:
        """Takes note of records that are durable already."""
        with self._mutex:
            self.durable = max(self.durable, durable)

    def abandon(self, error: BaseException) -> None:
        """Gives the error to all who wait for offsets that were given out so far."""
        with self._mutex:
            self._abandoned = error
            self.epoch += 1

    def _join(self) -> _Turn:
        turn = _Turn()
        self._waiting.append(turn)
        if self._company_wanted and len(self._waiting) >= self._company_wanted:
            self._company_wanted = 0
            self._company.release()
        return turn

    def _lead(self) -> None:
        if self._group > 1:
            self._await_company()
        epoch = self.epoch
        try:
            durable = self._sync()
        except BaseException as error:
            self._finish(None, error if self.epoch == epoch else None)
            raise
        self._finish(durable, None)

    def _await_company(self) -> None:
        """Waits while others arrive, up to as many as were served last time."""
        arrived = -1
        while True:
            with self._mutex:
                count = len(self._waiting)
                # Without news since the last look, the rest is not coming.
                if count + 1 >= self._group or count == arrived:
                    self._company_wanted = 0
                    return
                self._company_wanted = self._group - 1
            arrived = count
            if self._company.acquire(timeout=_ARRIVAL_SECONDS):
                return
            # The count may be reached between the timeout and the next look.
            with self._mutex:
                if self._company_wanted == 0:
                    self._company.acquire()
                    return

    def _finish(self, durable: int | None, error: BaseException | None) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
            self._group = len(waiting) + 1
            self._leading = False
            self.syncs += 1
            if error is not None:
                self._error = error
            if durable is not None:
                self.durable = max(self.durable, durable)
        if waiting:
            for turn, following in itertools.pairwise(waiting):
                turn.following = following
            waiting[0].give()


class _Turn:
    """One who waits, and who is woken after it.

    All woken at once would fight for the interpreter; one after the other, each runs until it
    waits again.
    """

    __slots__ = ("_lock", "following")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.following: _Turn | None = None

    def give(self) -> None:
        self._lock.release()

    def take(self) -> None:
        self._lock.acquire()
        if self.following is not None:
            self.following.give()
