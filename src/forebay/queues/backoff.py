"""When to try again what failed: after 1 s, then twice as long each time, up to 30 s."""

from __future__ import annotations

from forebay.clock import Clock

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0


class Backoff:
    """The tries of one write, within a bound."""

    def __init__(self, clock: Clock, bound_seconds: float) -> None:
        self._clock = clock
        self._bound_seconds = bound_seconds
        self._give_up_at: float | None = None
        self._delay_seconds = _FIRST_SECONDS

    def next_try(self) -> float | None:
        """Returns the moment of the next try, on the monotonic clock; None to give up."""
        now = self._clock.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._bound_seconds
        left = self._give_up_at - now
        if left <= 0:
            return None
        delay = min(self._delay_seconds, left)
        self._delay_seconds = min(2 * self._delay_seconds, _LONGEST_SECONDS)
        return now + delay

    def succeeded(self) -> None:
        """Starts anew with the next failure."""
        self._give_up_at = None
        self._delay_seconds = _FIRST_SECONDS
