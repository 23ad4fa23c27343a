"""Where time comes from: one object that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for waiting."""

    def now_ms(self) -> int:
        """Gives the milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Gives seconds that never go back, from an arbitrary start."""
        ...


class BootClock(Clock, Protocol):
    """A clock that also tells how long the machine has run."""

    def boot_ms(self) -> int:
        """Gives the milliseconds since the machine started, asleep or not."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Gives the milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Gives seconds that never go back, from an arbitrary start."""
        return time.monotonic()

    def boot_ms(self) -> int:
        """Gives the milliseconds since the machine started, asleep or not."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class SteadyClock:
    """Wall time as it was when this was made, and what the machine has run since.

    What expires while a queue is open does not care how somebody sets the wall clock.
    """

    def __init__(self, clock: BootClock) -> None:
        self._clock = clock
        self.ahead_ms = clock.now_ms() - clock.boot_ms()
        self.is_system = type(clock) is SystemClock

    def now_ms(self) -> int:
        """Gives the milliseconds since 1970, UTC."""
        return self._clock.boot_ms() + self.ahead_ms

    def monotonic(self) -> float:
        """Gives seconds that never go back, from an arbitrary start."""
        return self._clock.monotonic()
