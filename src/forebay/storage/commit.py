"""Group commit: one sync serves all who wait for it.

The first who waits leads: it notes the end, syncs outside the queue's lock, tells what is durable
now and wakes all who wait below it. Those who came meanwhile are the next group, led by the first
of them. A leader whose last group had company waits a moment for it to come back, as long as
somebody keeps arriving: with 64 writers a sync then carries most of them, and a lone writer never
waits.

A failed sync is final: the kernel may have dropped the dirty pages and a second sync would claim
success for bytes that the disk lacks. Everybody who waits, and everybody who comes later, gets it.
A failed write is not: who waits for what was not written gets the error (`abandon`), and the queue
goes on. So it does if what had to be written first is acknowledged and stays where it is
(`NotWritten`): the next sync tries again.

An exception of a signal handler may come at every call. Whoever leads ends its lead all the same:
each step of that can be done twice.

Wakes a thread that sleeps, whatever interrupts who wakes it.

A `threading.Event` is plain Python: an exception of a signal handler, such as Ctrl-C, that comes
while it holds its own lock leaves it locked, and the next who touches it waits for ever. Each step
here is one call into C, before or after which such an exception can come and do no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from forebay.errors import ForebayError


class Alarm:
    """Is set or not. Any thread may set it; one waits for it."""

    def __init__(self) -> None:
        self._marks: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wakes who waits, now or at its next wait."""
        if self._marks.empty():
            self._marks.put(None)

    def clear(self) -> None:
        """Takes it as not set."""
        while not self._marks.empty():
            self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, and clears it; False if the time is up."""
        try:
            self._marks.get(True, seconds)
        except Empty:
            return False
        return True


_ARRIVAL_SECONDS = 0.0005


class NotWritten(Exception):
    """A write failed before a sync began: nothing is lost, and the next sync writes it again."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Epoch:
    """The time between two failed writes.

    Who was given an offset keeps the epoch of that moment, and with it all that come after: however
    late it looks, it finds every failure that it has to know of. Nobody else keeps them.
    """

    __slots__ = ("error", "first", "next")

    def __init__(self) -> None:
        self.next: Epoch | None = None
        # Of the write that ended it: all offsets above `first` that were given out got the error.
        self.error: OSError | ForebayError | None = None
        self.first = 0


class _Lead:
    """A thread that leads, and those whom it has to wake when it is done."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[threading.Lock] = []


class GroupCommit:
    """Makes offsets durable for many threads with few syncs. Any thread may call it."""

    def __init__(self, sync: Callable[[], int], durable: int) -> None:
        """`sync` makes all that is written durable and returns the offset after it."""
        self._sync = sync
        self._mutex = threading.Lock()
        self._waiting: list[threading.Lock] = []
        self._leader: _Lead | None = None
        self._group = 0
        self._company = Alarm()
        self._company_wanted = 0
        self._error: Exception | None = None
        self.epoch = Epoch()
        self.durable = durable
        self.syncs = 0

    def wait(self, offset: int, epoch: Epoch | None = None) -> None:
        """Returns when all records below `offset` are durable.

        `epoch` is that of the moment when the offset was given out: after an `abandon` the same
        offset may stand for another record. None: nothing is ever abandoned.
        """
        while True:
            lead: _Lead | None = None
            durable: int | None = None
            error: BaseException | None = None
            try:
                with self._mutex:
                    if self._is_settled(offset, epoch):
                        return
                    turn = self._join() if self._leader is not None else None
                    if turn is None:
                        lead = self._leader = _Lead()
                if turn is not None:
                    # Woken when the group before is done: served by it, or part of the next.
                    turn.acquire()
                    continue
                durable = self._lead()
            except BaseException as caught:
                error = caught
                raise
            finally:
                # Whatever happens, even an interrupt: nobody may be left waiting for a leader.
                if lead is not None:
                    try:
                        self._finish(lead, durable, error)
                    except BaseException:
                        self._finish(lead, durable, error)
                        raise

    def advance(self, durable: int) -> None:
        """Takes note of records that are durable already."""
        with self._mutex:
            self.durable = max(self.durable, durable)

    def check(self, offset: int, epoch: Epoch) -> None:
        """Raises if a record was given up; `epoch` as in `wait`."""
        if self.epoch is not epoch:
            with self._mutex:
                _raise_abandoned(offset, epoch)

    def abandon(self, error: OSError | ForebayError, first: int) -> None:
        """Gives the error to all who wait for offsets above `first` that were given out so far."""
        epoch = Epoch()
        with self._mutex:
            last, self.epoch = self.epoch, epoch
            last.first, last.error, last.next = first, error, epoch

    def _is_settled(self, offset: int, epoch: Epoch | None) -> bool:
        _raise_abandoned(offset, epoch)
        if self.durable >= offset:
            return True
        if self._error is not None:
            raise self._error.with_traceback(None)
        return False

    def _join(self) -> threading.Lock:
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        if self._company_wanted and len(self._waiting) >= self._company_wanted:
            self._company_wanted = 0
            self._company.set()
        return turn

    def _lead(self) -> int | None:
        if self._group > 1:
            self._await_company()
        epoch = self.epoch
        try:
            return self._sync()
        except NotWritten as failed:
            raise failed.error from None
        except (OSError, ForebayError) as error:
            if self.epoch is epoch:
                self._error = error
                raise
            # Only a write failed: those who wait for it find that out for themselves.
            return None

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
                self._company.clear()
            arrived = count
            if self._company.wait(_ARRIVAL_SECONDS):
                return

    def _finish(self, lead: _Lead, durable: int | None, error: BaseException | None) -> None:
        """Ends a lead and wakes all who wait; a second time does what is left of it."""
        with self._mutex:
            if self._leader is lead:
                self._group = len(self._waiting) + 1
                if durable is not None:
                    self.durable = max(self.durable, durable)
                if error is None:
                    self.syncs += 1
                # One step: who is not woken by this lead is woken by the next.
                lead.waiting, self._waiting, self._leader = self._waiting, [], None
        while lead.waiting:
            turn = lead.waiting[-1]
            if turn.locked():
                turn.release()
            lead.waiting.pop()


def _raise_abandoned(offset: int, epoch: Epoch | None) -> None:
    while epoch is not None and epoch.error is not None:
        if offset > epoch.first:
            raise epoch.error.with_traceback(None)
        epoch = epoch.next
