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


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Gives the milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Gives seconds that never go back, from an arbitrary start."""
        return time.monotonic()
