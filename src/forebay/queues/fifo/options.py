"""The options of a `Fifo`."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.formats.entry import check_ttl
from forebay.queues.shared.options import (
    SIZE_MAX,
    Duration,
    StagedKeywords,
    StagedOptions,
    WhenFull,
)

FILE_BYTES_MIN = 64
FILE_BYTES_MAX = 2**31 - 1
FILE_BYTES_DEFAULT = 32 << 20
# A slot of the head stores in two bytes how often an entry was lent.
ATTEMPTS_MAX = 0xFFFF


class FifoKeywords(StagedKeywords, total=False):
    """The options of a `Fifo` besides its path."""

    when_full: WhenFull
    file_bytes: int | None
    max_entries: int | None
    ttl_seconds: Duration
    max_attempts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoOptions(StagedOptions):
    """The options of a `Fifo`, checked; the docstring of `Fifo` explains them."""

    file_bytes: int | None = None
    max_entries: int | None = None
    ttl_seconds: int = 0
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        StagedOptions.__post_init__(self)
        check_ttl(self.ttl_seconds)
        if self.file_bytes is not None:
            self._between("file_bytes", FILE_BYTES_MIN, FILE_BYTES_MAX)
        if self.max_bytes is not None:
            least = 2 * (self.file_bytes or FILE_BYTES_MIN)
            self._between("max_bytes", least, SIZE_MAX, "two files")
        if self.max_entries is not None:
            self._between("max_entries", 1, SIZE_MAX)
        if self.max_attempts is not None:
            self._between("max_attempts", 1, ATTEMPTS_MAX)

    @property
    def new_file_bytes(self) -> int:
        """The size of the files of a new queue."""
        return self.file_bytes or min(FILE_BYTES_DEFAULT, (self.max_bytes or SIZE_MAX) // 2)
