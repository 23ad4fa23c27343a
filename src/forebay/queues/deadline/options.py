"""The options of a `DeadlineQueue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.extras import require
from forebay.queues.shared.options import SIZE_MAX, Duration, StagedKeywords, StagedOptions


class DeadlineKeywords(StagedKeywords, total=False):
    """The options of a `DeadlineQueue` besides its path."""

    when_full: Literal["block", "reject"]
    lease_seconds: Duration
    max_attempts: int | None
    retry_seconds: Duration
    retry_seconds_max: Duration
    segment_items: int
    segment_bytes: int
    compression: Literal["none", "lz4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineOptions(StagedOptions):
    """The options of a `DeadlineQueue`, checked; the docstring of the class explains them."""

    when_full: Literal["block", "reject"] = "block"
    lease_seconds: float = 60.0
    max_attempts: int | None = None
    retry_seconds: float = 1.0
    retry_seconds_max: float = 300.0
    segment_items: int = 131_072
    segment_bytes: int = 64 << 20
    compression: Literal["none", "lz4"] = "none"

    @property
    def items_in_memory_max(self) -> int:
        """How many rows the newest segment may have before freezing counts as lagging."""
        return self.segment_items * 3 // 2

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        StagedOptions.__post_init__(self)
        self._one_of("when_full", ("block", "reject"))
        self._one_of("compression", ("none", "lz4"))
        if self.compression == "lz4":
            require("lz4.block", "lz4")
        self._between("segment_items", 1, 2**31 - 1)
        self._between("segment_bytes", 1, 2**31 - 1)
        self._seconds("lease_seconds", least=0.001)
        self._seconds("retry_seconds", least=0)
        self._seconds("retry_seconds_max", least=0)
        if self.max_attempts is not None:
            self._between("max_attempts", 1, 2**31 - 1)
        if self.max_bytes is not None:
            self._between("max_bytes", 1_000, SIZE_MAX)
