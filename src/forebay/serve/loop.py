"""The loop of the server: waits for sockets, posted calls and timers, on one thread.

A turn takes what is ready from all sockets, then runs what other threads have posted, then the
timers that are due, and at last the calls of `at_end`: so that what one turn has gathered is
answered together.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from forebay.storage.filesystem import Doorbell

_logger = logging.getLogger(__name__)
# Set aside for the moment in which there is no memory.
_RESERVE_BYTES = 4 << 20
# Fewer timers are not looked through for cancelled ones.
_TIMERS_MIN = 1024


class Timer:
    """A call at some time, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Makes sure that it is not called."""
        self.call = None


class Loop:
    """Runs on the thread that calls `run`; only `post` and `stop` may be called from others."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._doorbell = Doorbell()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._at_end: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_max = _TIMERS_MIN
        self._numbers = itertools.count()
        self._thread: int | None = None
        self._stopped = False
        self._reserve: bytearray | None = bytearray(_RESERVE_BYTES)
        self._epoll.register(self._doorbell.descriptor, select.EPOLLIN)
        self._calls[self._doorbell.descriptor] = lambda events: self._doorbell.clear()

    def watch(self, descriptor: int, call: Callable[[int], None]) -> None:
        """Calls with the events whenever a descriptor can be read."""
        self._calls[descriptor] = call
        self._epoll.register(descriptor, select.EPOLLIN)

    def change(self, descriptor: int, events: int) -> None:
        """Waits for other events of a descriptor."""
        self._epoll.modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Forgets a descriptor; call it before it is closed."""
        self._epoll.unregister(descriptor)
        del self._calls[descriptor]

    def post(self, call: Callable[[], None]) -> None:
        """Calls soon, on the thread of the loop. Any thread may call it, with any lock held."""
        self._posted.append(call)
        if threading.get_ident() != self._thread:
            self._doorbell.ring()

    def post_from_anywhere(self, call: Callable[[], None]) -> None:
        """Like `post`, also for a signal handler, which may run while the loop's thread sleeps."""
        self._posted.append(call)
        self._doorbell.ring()

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls at the end of this turn."""
        self._at_end.append(call)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Calls after some time; infinity means never."""
        timer = Timer(call)
        if seconds != math.inf:
            if len(self._timers) > self._timers_max:
                self._drop_cancelled()
            at = time.monotonic() + seconds
            heapq.heappush(self._timers, (at, next(self._numbers), timer))
        return timer

    def stop(self) -> None:
        """Ends `run` after this turn. Any thread or signal handler may call it."""
        self._stopped = True
        self._doorbell.ring()

    def run(self) -> None:
        """Runs until `stop`."""
        self._thread = threading.get_ident()
        while not self._stopped:
            self.turn()

    def turn(self) -> None:
        """Waits until something is to be done, and does it."""
        for descriptor, events in self._epoll.poll(self._patience()):
            call = self._calls.get(descriptor)
            # An earlier call of this turn may have closed it.
            if call is not None:
                self._run(partial(call, events))
        # Only what is there now: a call may post the next one.
        for _ in range(len(self._posted)):
            self._run(self._posted.popleft())
        self._run_timers()
        ending, self._at_end = self._at_end, []
        for end in ending:
            self._run(end)
        if self._reserve is None:
            with contextlib.suppress(MemoryError):
                self._reserve = bytearray(_RESERVE_BYTES)

    def free_reserve(self) -> None:
        """Frees some memory, with which what must be done can be done."""
        self._reserve = None

    def _run(self, call: Callable[[], None]) -> None:
        """Makes a call; one for which there is no memory does not end the loop."""
        try:
            call()
        except MemoryError:
            self.free_reserve()
            _logger.error("no memory: something was not done")

    def close(self) -> None:
        """Releases the descriptors."""
        self._epoll.close()
        os.close(self._doorbell.descriptor)

    def _patience(self) -> float | None:
        if self._posted or self._stopped:
            return 0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _drop_cancelled(self) -> None:
        """Drops what would only be dropped when it is due, which may be in an hour."""
        self._timers = [each for each in self._timers if each[2].call is not None]
        heapq.heapify(self._timers)
        self._timers_max = max(_TIMERS_MIN, 2 * len(self._timers))

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._run(call)
