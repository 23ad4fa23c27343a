"""Looking at a deadline queue: single items, counts, and when something may be due.

Nothing of it changes what is in the queue; leases that have ended are noticed.
"""

from __future__ import annotations

import itertools
import math

from forebay.clock import SteadyClock
from forebay.errors import InvalidOption
from forebay.kernels.deadline_clerk import Clerk
from forebay.queues.deadline_item import DeadlineItem, as_item
from forebay.queues.deadline_journal import Journal
from forebay.queues.deadline_state import State


class Looking:
    """What can be seen of a queue that is open. Any thread may call it."""

    _journal: Journal
    _state: State
    _desk: Clerk
    _clock: SteadyClock

    def peek(self) -> DeadlineItem | None:
        """Returns the pending item that is due first, now or later; it stays."""
        with self._journal.lock:
            self._journal.check()
            self._desk.leases.expire(self._clock.now_ms())
            return self._desk.load() if self._desk.head() else None

    def get(self, id: int) -> DeadlineItem | None:
        """Returns an item by its id, pending, given out or buried; None if there is none."""
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            return None if found is None else as_item(*found)

    def browse(self, count: int = 100) -> list[DeadlineItem]:
        """Returns the first items by deadline, given out ones too, buried ones last; they stay."""
        if count < 0:
            raise InvalidOption(f"count = {count}: must be at least 0")
        with self._journal.lock:
            self._journal.check()
            first = itertools.islice(self._state.browse(), count)
            return [as_item(item, times) for item, times in first]

    @property
    def pending(self) -> int:
        """How many items wait, due or not."""
        with self._journal.lock:
            self._desk.leases.expire(self._clock.now_ms())
            return self._state.pending

    @property
    def due(self) -> int:
        """How many of the pending items are due."""
        with self._journal.lock:
            return self._state.due(self._clock.now_ms())

    @property
    def working(self) -> int:
        """How many items are given out."""
        with self._journal.lock:
            self._desk.leases.expire(self._clock.now_ms())
            return self._state.working

    @property
    def buried(self) -> int:
        """How many items are put aside."""
        return self._desk.buried

    def due_in(self) -> float:
        """Returns in how many seconds an item may be due, by its deadline or the end of a lease."""
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            self._desk.leases.expire(now)
            end = self._desk.leases.next_end()
            times = [] if end is None else [end]
            times += [self._desk.deadline] if self._desk.head() else []
            return max(0, min(times) - now) / 1000 if times else math.inf

    def __len__(self) -> int:
        """How many items there are, given out and buried ones too."""
        return self._desk.total + self._desk.buried
