"""Group commit: one sync serves all threads that wait for it.

The first thread that waits becomes the leader: it notes the end, syncs outside the queue's lock,
publishes the durable end and wakes the threads that wait below it. Threads that arrived meanwhile
are the next group, led by the first of them. If its last group had more than one thread, the leader
first waits a moment for the others to come back, as long as threads keep arriving: with 64 writers
a sync then serves most of them, and a lone writer never waits.

A failed sync is final: the kernel may have dropped the dirty pages, and a second sync would report
success for bytes that the disk lacks. Every thread that waits, now or later, gets the error.
A failed write is not final: a thread that waits for what was not written gets the error
(`abandon`), and the queue continues. The queue also continues if what had to be written first is
acknowledged and stays where it is (`NotWritten`): the next sync tries again.

A signal handler may raise an exception at any call. Even then a leader ends its lead: each step of
ending it can be done twice.

A caller that cannot wait, such as an event loop, is called back (`notify`). One of a few threads,
which belong to the process and end when they are idle, then waits in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from forebay.errors import ForebayError
from forebay.storage.workers import Workers


class Alarm:
    """A flag that wakes a sleeping thread. Any thread may set it; one thread waits for it.

    A `threading.Event` is plain Python: if a signal handler raises, as after Ctrl-C, while the
    event holds its own lock, the event stays locked, and the next thread that uses it waits for
    ever. Each step here is one call into C, before or after which such an exception does no harm.
    """

    def __init__(self) -> None:
        self._marks: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wakes the thread that waits, now or at its next wait."""
        if self._marks.empty():
            self._marks.put(None)

    def clear(self) -> None:
        """Resets it to not set."""
        while not self._marks.empty():
            self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, and clears it; returns False if the time is up."""
        try:
            self._marks.get(True, seconds)
        except Empty:
            return False
        return True


_ARRIVAL_SECONDS = 0.0005
# At most this many queues sync at the same time on behalf of callers that are called back.
_committers = Workers("forebay commit", 3)


class NotWritten(Exception):
    """A write failed before a sync began: nothing is lost, and the next sync writes it again."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Epoch:
    """The time between two failed writes.

    A caller that was given an offset keeps the epoch of that moment, and with it all later ones: no
    matter how late it checks, it finds every failure that concerns it. Nothing else keeps old
    epochs alive.
    """

    __slots__ = ("error", "first", "next")

    def __init__(self) -> None:
        self.next: Epoch | None = None
        # The error of the write that ended it; it applies to all offsets above `first` given out.
        self.error: OSError | ForebayError | None = None
        self.first = 0


class Ticket(NamedTuple):
    """A change that was applied; it is durable when the group commit has passed `end`."""

    commit: GroupCommit
    end: int
    epoch: Epoch | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is durable; raises the error that prevents it."""
        return self.commit.is_settled(self.end, self.epoch)

    def settle(self) -> None:
        """Returns when it is durable."""
        self.commit.wait(self.end, self.epoch)

    def notify(self, call: Callable[[BaseException | None], None]) -> None:
        """Calls back when it is durable, or with the error that prevents it; never waits.

        `call` is called once, on any thread, and must neither wait nor raise.
        """
        self.commit.notify(self, call)


class _Lead:
    """A thread that leads, and the threads that it has to wake when it ends its lead."""

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
        # The callers to be called back, and whether a thread waits on their behalf.
        self._calls: list[tuple[Ticket, Callable[[BaseException | None], None]]] = []
        self._called_for = False
        self.epoch = Epoch()
        self.durable = durable
        self.syncs = 0

    def wait(self, offset: int, epoch: Epoch | None = None) -> None:
        """Returns when all records below `offset` are durable.

        `epoch` is the one in which the offset was given out: after an `abandon` the same offset may
        stand for another record. None means that nothing is ever abandoned.
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
                    # Woken when the previous group has ended: served by it, or part of the next.
                    turn.acquire()
                    continue
                durable = self._lead()
            except BaseException as caught:
                error = caught
                raise
            finally:
                # Even after an interrupt, no thread may be left waiting for a leader.
                if lead is not None:
                    try:
                        self._finish(lead, durable, error)
                    except BaseException:
                        self._finish(lead, durable, error)
                        raise
            if durable is not None and durable >= offset:
                _raise_abandoned(offset, epoch)
                return

    def is_settled(self, offset: int, epoch: Epoch | None = None) -> bool:
        """Returns whether all records below `offset` are durable; raises as `wait` does."""
        with self._mutex:
            return self._is_settled(offset, epoch)

    def notify(self, ticket: Ticket, call: Callable[[BaseException | None], None]) -> None:
        """Calls back when a ticket of this commit is settled; see `Ticket.notify`."""
        with self._mutex:
            self._calls.append((ticket, call))
            starts, self._called_for = not self._called_for, True
        if starts:
            try:
                _committers.submit(self._wait_for_calls)
            except MemoryError:
                # Without a thread the caller has to wait for the disk.
                self._wait_for_calls()

    def advance(self, durable: int) -> None:
        """Raises the durable end, for records that are durable already."""
        with self._mutex:
            if durable > self.durable:
                self.durable = durable

    def check(self, offset: int, epoch: Epoch | None) -> None:
        """Raises if a record was given up; `epoch` as in `wait`."""
        if self.epoch is not epoch:
            with self._mutex:
                _raise_abandoned(offset, epoch)

    def abandon(self, error: OSError | ForebayError, first: int) -> None:
        """Fails all waits for offsets above `first` that were given out so far, with the error."""
        epoch = Epoch()
        with self._mutex:
            last, self.epoch = self.epoch, epoch
            last.first, last.error, last.next = first, error, epoch

    def _wait_for_calls(self) -> None:
        """Waits on behalf of all callers to be called back, and calls them."""
        while True:
            with self._mutex:
                if not self._calls:
                    self._called_for = False
                    return
                end = max(ticket.end for ticket, _ in self._calls)
            error: BaseException | None = None
            try:
                self.wait(end)
            except (OSError, ForebayError) as caught:
                error = caught
            for call, outcome in self._take_settled(error):
                call(outcome)

    def _take_settled(
        self, error: BaseException | None
    ) -> list[tuple[Callable[[BaseException | None], None], BaseException | None]]:
        """Removes and returns the calls whose wait is over; with an error, all of them."""
        settled: list[tuple[Callable[[BaseException | None], None], BaseException | None]] = []
        left = []
        with self._mutex:
            for ticket, call in self._calls:
                try:
                    if self._is_settled(ticket.end, ticket.epoch):
                        settled.append((call, None))
                    elif error is not None:
                        settled.append((call, error))
                    else:
                        left.append((ticket, call))
                except (OSError, ForebayError) as own:
                    settled.append((call, own))
            self._calls = left
        return settled

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
            # Only a write failed: the threads that wait for it find the error in their epoch.
            return None

    def _await_company(self) -> None:
        """Waits while other threads arrive, up to as many as were served last time."""
        arrived = -1
        while True:
            with self._mutex:
                count = len(self._waiting)
                # If no thread has arrived since the last look, the rest are not coming.
                if count + 1 >= self._group or count == arrived:
                    self._company_wanted = 0
                    return
                self._company_wanted = self._group - 1
                self._company.clear()
            arrived = count
            if self._company.wait(_ARRIVAL_SECONDS):
                return

    def _finish(self, lead: _Lead, durable: int | None, error: BaseException | None) -> None:
        """Ends a lead and wakes all waiting threads; a second call does what is left of it."""
        with self._mutex:
            if self._leader is lead:
                self._group = len(self._waiting) + 1
                if durable is not None and durable > self.durable:
                    self.durable = durable
                if error is None:
                    self.syncs += 1
                # In one step: a thread that this lead does not wake is woken by the next one.
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
