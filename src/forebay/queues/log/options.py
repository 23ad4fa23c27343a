"""The options of a `Log`."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.formats.fflg import VERSIONS_WRITABLE
from forebay.queues.shared.options import (
    SIZE_MAX,
    Duration,
    StagedKeywords,
    StagedOptions,
    WhenFull,
)


class LogKeywords(StagedKeywords, total=False):
    """The keyword arguments of a `Log`."""

    when_full: WhenFull
    segment_bytes: int
    trim_interval_seconds: Duration | None
    seal_seconds: Duration | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(StagedOptions):
    """The options of a `Log`, checked; the docstring of `Log` says what they mean."""

    segment_bytes: int = 100_000_000
    trim_interval_seconds: float | None = 60.0
    seal_seconds: float | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        StagedOptions.__post_init__(self)
        self._one_of("version", (None, *VERSIONS_WRITABLE))
        self._between("segment_bytes", 1_000, 2**31 - 1)
        if self.max_bytes is not None:
            self._between("max_bytes", 2 * self.segment_bytes, SIZE_MAX, "two segments")
        if self.trim_interval_seconds is not None:
            self._seconds("trim_interval_seconds", least=0.001)
        if self.seal_seconds is not None:
            self._seconds("seal_seconds", least=0.001)
