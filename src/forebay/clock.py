"""The source of time: one object that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for waiting."""

    def now_ms(self) -> int:
        """Returns the milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never go back, from an arbitrary start."""
        ...


class BootClock(Clock, Protocol):
    """A clock that also knows how long the machine has run."""

    def boot_ms(self) -> int:
        """Returns the milliseconds since the machine started, including time asleep."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Returns the milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Returns seconds that never go back, from an arbitrary start."""
        return time.monotonic()

    def boot_ms(self) -> int:
        """Returns the milliseconds since the machine started, including time asleep."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def ahead_ms(self) -> int:
        """Returns how far wall time is ahead of the time that the machine has run.

        The result is in whole milliseconds, but it is not the difference of two rounded times: a
        later call must not return less, or an item that is due for one handle would not yet be due
        for the next. It is the largest of three measurements, because a measurement is too low if
        the thread has to wait between its two readings.
        """
        boot = time.CLOCK_BOOTTIME
        looks = [time.time_ns() - time.clock_gettime_ns(boot) for _ in range(3)]
        return max(looks) // 1_000_000


class SteadyClock:
    """Wall time when this was created, plus how long the machine has run since.

    Setting the wall clock does not affect what expires while a queue is open.
    """

    def __init__(self, clock: BootClock) -> None:
        self._clock = clock
        self.is_system = type(clock) is SystemClock
        if type(clock) is SystemClock:
            self.ahead_ms = clock.ahead_ms()
        else:
            self.ahead_ms = clock.now_ms() - clock.boot_ms()

    def now_ms(self) -> int:
        """Returns the milliseconds since 1970, UTC."""
        return self._clock.boot_ms() + self.ahead_ms

    def monotonic(self) -> float:
        """Returns seconds that never go back, from an arbitrary start."""
        return self._clock.monotonic()
