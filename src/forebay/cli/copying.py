"""What the copies of queues share: a clock that stands at the time of what is copied."""

from __future__ import annotations

from forebay.clock import SystemClock


class CopyClock(SystemClock):
    """Stands at the time of the entries that are copied."""

    ms = 0

    def now_ms(self) -> int:
        """Gives the time of the entries."""
        return self.ms

    def boot_ms(self) -> int:
        """Gives the same, so that an open queue follows it."""
        return self.ms
