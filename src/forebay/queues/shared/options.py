"""Options of the queues: frozen, keyword-only, checked, units at the end of their names."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TypeVar

from forebay.errors import InvalidOption
from forebay.formats.beats.versions import LAYOUTS, Dialect
from forebay.formats.entry import TTL_SECONDS_MAX
from forebay.formats.fflg import VERSIONS_WRITABLE

SYNC_POLICIES = ("always", "interval", "os")
_SECONDS_MAX = 10.0**9
FILE_BYTES_MIN = 64
FILE_BYTES_MAX = 2**31 - 1
FILE_BYTES_DEFAULT = 32 << 20
WHEN_FULL = ("block", "reject", "drop_oldest")
# What `version` of a Beats queue may be, and the layout that it means.
EVENT_VERSIONS: dict[str | int, str] = {
    **{name: name for name, row in LAYOUTS.items() if row.writable},
    1: "v1",
    2: "v2",
    3: "v3-seed",
}
_Options = TypeVar("_Options", "LogOptions", "BeatsOptions", "FifoOptions", "DeadlineOptions")


class Checks:
    """What the options of all queues are checked with."""

    __slots__ = ()

    def _one_of(self, name: str, allowed: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed or isinstance(value, bool):
            listed = ", ".join(repr(item) for item in allowed)
            raise InvalidOption(f"{name} = {value!r}: must be one of {listed}")

    def _one_of_two(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise InvalidOption(f"{name} = {value!r}: must be True or False")

    def _between(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidOption(f"{name} = {value!r}: must be a whole number, {low} to {high}")

    def _seconds(self, name: str, *, least: float) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and least <= value < _SECONDS_MAX):
            raise InvalidOption(f"{name} = {value!r}: must be a number of seconds from {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Checks):
    """The options of a `Log`, checked; its docstring says what they mean."""

    sync: str = "always"
    sync_interval_ms: int = 100
    segment_bytes: int = 100_000_000
    max_bytes: int | None = None
    when_full: str = "block"
    trim_interval_seconds: float | None = 60.0
    version: int | None = None
    background: bool = True
    group_readable: bool = False
    staging_bytes: int = 1 << 20
    mapped: bool = True

    def __post_init__(self) -> None:
        """Refuses values out of bounds, naming field, value and bound."""
        self._one_of("sync", SYNC_POLICIES)
        self._one_of("when_full", WHEN_FULL)
        self._one_of("version", (None, *VERSIONS_WRITABLE))
        self._between("sync_interval_ms", 1, 3_600_000)
        self._between("segment_bytes", 1_000, 2**31 - 1)
        self._between("staging_bytes", 4_096, 4 << 20)
        if self.max_bytes is not None:
            self._between("max_bytes", 2 * self.segment_bytes, 2**62)
        self._one_of_two("background")
        self._one_of_two("group_readable")
        self._one_of_two("mapped")
        seconds = self.trim_interval_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and 0 < seconds < _SECONDS_MAX):
            raise InvalidOption(
                f"trim_interval_seconds = {seconds!r}: must be a number above 0 or None"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsOptions(Checks):
    """The options of a `BeatsQueue`, checked; its docstring says what they mean."""

    version: str | int | None = None
    key_file: str | os.PathLike[str] | None = None
    dialect: Dialect | None = None
    sync: str = "always"
    sync_interval_ms: int = 100
    segment_bytes: int = 100_000_000
    max_bytes: int | None = None
    when_full: str = "block"
    retry_seconds: float = 30.0
    background: bool = True
    group_readable: bool = False

    def __post_init__(self) -> None:
        """Refuses values out of bounds, naming field, value and bound."""
        self._one_of("sync", SYNC_POLICIES)
        self._one_of("when_full", WHEN_FULL)
        self._one_of("dialect", (None, "released", "seed"))
        self._one_of("version", (None, *EVENT_VERSIONS))
        self._between("sync_interval_ms", 1, 3_600_000)
        self._between("segment_bytes", 1_000, 2**31 - 1)
        if self.max_bytes is not None:
            self._between("max_bytes", 2 * self.segment_bytes, 2**62)
        self._one_of_two("background")
        self._one_of_two("group_readable")
        self._seconds("retry_seconds", least=0)
        layout = self.layout_name
        if layout is not None and LAYOUTS[layout].encrypted and self.key_file is None:
            raise InvalidOption(f"version = {self.version!r}: {layout} needs a key_file")

    @property
    def layout_name(self) -> str | None:
        """The name of the layout that `version` asks for."""
        if self.version == 2 and self.dialect == "seed":
            return "v2-seed"
        return None if self.version is None else EVENT_VERSIONS[self.version]


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoOptions(Checks):
    """The options of a `Fifo`, checked; its docstring says what they mean."""

    sync: str = "always"
    sync_interval_ms: int = 100
    file_bytes: int | None = None
    max_bytes: int | None = None
    max_entries: int | None = None
    when_full: str = "block"
    ttl_seconds: int = 0
    background: bool = True
    group_readable: bool = False
    staging_bytes: int = 1 << 20
    mapped: bool = True

    def __post_init__(self) -> None:
        """Refuses values out of bounds, naming field, value and bound."""
        self._one_of("sync", SYNC_POLICIES)
        self._one_of("when_full", WHEN_FULL)
        self._between("sync_interval_ms", 1, 3_600_000)
        self._between("staging_bytes", 4_096, 4 << 20)
        self._between("ttl_seconds", 0, TTL_SECONDS_MAX)
        if self.file_bytes is not None:
            self._between("file_bytes", FILE_BYTES_MIN, FILE_BYTES_MAX)
        if self.max_bytes is not None:
            self._between("max_bytes", 2 * (self.file_bytes or FILE_BYTES_MIN), 2**62)
        if self.max_entries is not None:
            self._between("max_entries", 1, 2**62)
        self._one_of_two("background")
        self._one_of_two("group_readable")
        self._one_of_two("mapped")

    @property
    def new_file_bytes(self) -> int:
        """The size of the files of a queue that is made anew."""
        return self.file_bytes or min(FILE_BYTES_DEFAULT, (self.max_bytes or 2**62) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineOptions(Checks):
    """The options of a `DeadlineQueue`, checked; its docstring says what they mean."""

    sync: str = "always"
    sync_interval_ms: int = 100
    lease_seconds: float = 60.0
    max_attempts: int | None = None
    segment_items: int = 131_072
    segment_bytes: int = 64 << 20
    compression: str = "none"
    max_bytes: int | None = None
    when_full: str = "block"
    background: bool = True
    group_readable: bool = False
    staging_bytes: int = 1 << 20
    mapped: bool = True

    def __post_init__(self) -> None:
        """Refuses values out of bounds, naming field, value and bound."""
        self._one_of("sync", SYNC_POLICIES)
        self._one_of("when_full", ("block", "reject"))
        self._one_of("compression", ("none", "lz4"))
        self._between("sync_interval_ms", 1, 3_600_000)
        self._between("segment_items", 1, 2**31 - 1)
        self._between("segment_bytes", 1, 2**31 - 1)
        self._between("staging_bytes", 4_096, 4 << 20)
        self._seconds("lease_seconds", least=0.001)
        if self.max_attempts is not None:
            self._between("max_attempts", 1, 2**31 - 1)
        if self.max_bytes is not None:
            self._between("max_bytes", 1_000, 2**62)
        self._one_of_two("background")
        self._one_of_two("group_readable")
        self._one_of_two("mapped")


def make_options(kind: type[_Options], given: dict[str, object]) -> _Options:
    """Makes options of keyword arguments; an unknown one is named, with those there are."""
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise InvalidOption(f"unknown option {name!r}: there are {', '.join(known)}")
    return kind(**given)  # type: ignore[arg-type]  # each value is checked on creation
