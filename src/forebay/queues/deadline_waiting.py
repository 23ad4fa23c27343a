"""Waiting for an item to become due, or for room."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from forebay.clock import SteadyClock
from forebay.errors import Empty, Full
from forebay.queues.deadline_journal import Journal
from forebay.queues.deadline_upkeep import Upkeep
from forebay.queues.deadline_verbs import NoRoom
from forebay.queues.options import DeadlineOptions

_WAIT_SECONDS = 0.05
# How often an enqueue looks whether memory has room again.
_TIMES_MAX = 20
_Result = TypeVar("_Result")


class Waiting:
    """Tries again until it works or the time is up. Any thread may call it."""

    def __init__(
        self,
        path: str,
        journal: Journal,
        upkeep: Upkeep,
        options: DeadlineOptions,
        clock: SteadyClock,
    ) -> None:
        self._path = path
        self._journal = journal
        self._upkeep = upkeep
        self._options = options
        self._clock = clock
        # Where the logs ended when room was looked for last.
        self._searched = -1

    def for_room(self, enqueue: Callable[[], _Result], timeout: float | None) -> _Result:
        """Enqueues when there is room: dead items are merged away, then it waits, or raises."""
        start = self._clock.monotonic()
        merge_at = start
        self.for_memory()
        while True:
            with contextlib.suppress(NoRoom):
                return enqueue()
            now = self._clock.monotonic()
            if now >= merge_at:
                # At first it tries again in any case: another thread may have made room.
                found = self._make_room() or merge_at == start
                # Who waits for a slow reader spends a tenth of the time on merging.
                merge_at = self._clock.monotonic() + 9 * (self._clock.monotonic() - now)
                if found:
                    continue
            over = timeout is not None and now >= start + timeout
            if over or self._options.when_full == "reject":
                raise Full(f"{self._path} holds max_bytes = {self._options.max_bytes}")
            self._wait(_WAIT_SECONDS)

    def for_items(
        self, try_once: Callable[[], _Result | None], timeout: float | None
    ) -> _Result | None:
        """Tries until there is something; with a timeout it waits, and raises `Empty`."""
        result = try_once()
        if result is not None or timeout is None:
            return result
        give_up_at = self._clock.monotonic() + timeout
        while True:
            left = give_up_at - self._clock.monotonic()
            if left <= 0:
                raise Empty(f"{self._path}: nothing became due in {timeout} s")
            self._wait(min(left, _WAIT_SECONDS))
            result = try_once()
            if result is not None:
                return result

    def _make_room(self) -> bool:
        """Merges dead items away; False if nothing has changed since that was done last."""
        with self._upkeep.work:
            if self._journal.written == self._searched:
                return False
            frozen = self._upkeep.freeze()
            merged = self._upkeep.merge(everything=True)
            self._searched = self._journal.written
            return frozen or merged

    def for_memory(self) -> None:
        """Waits for the freezing to catch up, but not for ever: it may be that it cannot."""
        for _ in range(_TIMES_MAX):
            if not self._options.background or not self._upkeep.is_behind:
                return
            self._wait(_WAIT_SECONDS)

    def _wait(self, seconds: float) -> None:
        with self._journal.lock:
            self._journal.check()
            self._journal.changes.wait(seconds)
