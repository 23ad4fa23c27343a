"""The options of a `BeatsQueue`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.formats.beats.versions import LAYOUTS, Dialect
from forebay.queues.shared.options import (
    SIZE_MAX,
    Duration,
    QueueKeywords,
    QueueOptions,
    WhenFull,
)

# The possible values of `version`, and the layout that each means.
VERSIONS: dict[str | int, str] = {
    **{name: name for name, row in LAYOUTS.items() if row.writable},
    1: "v1",
    2: "v2",
    3: "v3-seed",
}


class BeatsKeywords(QueueKeywords, total=False):
    """The keyword arguments of a `BeatsQueue`."""

    when_full: WhenFull
    version: str | int | None
    key_file: str | os.PathLike[str] | None
    dialect: Dialect | None
    segment_bytes: int
    retry_seconds: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsOptions(QueueOptions):
    """The options of a `BeatsQueue`, checked; the docstring of `BeatsQueue` says what they mean."""

    version: str | int | None = None
    key_file: str | os.PathLike[str] | None = None
    dialect: Dialect | None = None
    segment_bytes: int = 100_000_000
    retry_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        QueueOptions.__post_init__(self)
        self._one_of("dialect", (None, "released", "seed"))
        self._one_of("version", (None, *VERSIONS))
        self._between("segment_bytes", 1_000, 2**31 - 1)
        if self.max_bytes is not None:
            self._between("max_bytes", 2 * self.segment_bytes, SIZE_MAX, "two segments")
        self._seconds("retry_seconds", least=0)
        layout = self.layout_name
        if layout is not None and LAYOUTS[layout].encrypted and self.key_file is None:
            raise InvalidOption(f"version = {self.version!r}: {layout} needs a key_file")

    @property
    def layout_name(self) -> str | None:
        """The name of the layout that `version` asks for."""
        if self.version == 2 and self.dialect == "seed":
            return "v2-seed"
        return None if self.version is None else VERSIONS[self.version]
