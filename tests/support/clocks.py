"""Clocks for tests: one that stands still, and one that goes on with each look."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until a test moves it; wall and monotonic time are apart."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self.ms = start_ms
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.ms

    def boot_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


class SteppingClock:
    """A clock that goes on by some milliseconds at each look."""

    def __init__(self, start_ms: int = 1_800_000_000_000, step_ms: int = 1) -> None:
        self.ms = start_ms
        self._step_ms = step_ms

    def now_ms(self) -> int:
        self.ms += self._step_ms
        return self.ms

    def boot_ms(self) -> int:
        return self.now_ms()

    def monotonic(self) -> float:
        return self.now_ms() / 1000
