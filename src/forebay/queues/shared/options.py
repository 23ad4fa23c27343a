"""The options that all queues have in common: frozen, keyword-only, checked.

Units are at the end of their names. A value out of bounds is refused with an error that tells name,
value and bound. Where a caller may give a `timedelta`, `as_seconds` turns it into a number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from forebay.errors import InvalidOption

SyncPolicy: TypeAlias = Literal["always", "interval", "os"]
WhenFull: TypeAlias = Literal["block", "reject", "drop_oldest"]
Duration: TypeAlias = float | timedelta

SYNC_POLICIES = ("always", "interval", "os")
WHEN_FULL = ("block", "reject", "drop_oldest")
SIZE_MAX = 2**62
_SECONDS_MAX = 10.0**9
_Options = TypeVar("_Options", bound="QueueOptions")


class QueueKeywords(TypedDict, total=False):
    """The options that every queue has, as keywords."""

    shared: bool
    sync: SyncPolicy
    sync_interval_seconds: Duration
    max_bytes: int | None
    background: bool
    group_readable: bool


class AnyKeywords(QueueKeywords, total=False):
    """The options of a queue of any kind; a deadline queue does not drop the oldest."""

    when_full: WhenFull


class StagedKeywords(QueueKeywords, total=False):
    """The options, as keywords, of a queue with a mapped buffer in front of its files."""

    staging_bytes: int
    mapped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options that every queue has; the docstrings of the queues say what they mean."""

    sync: SyncPolicy = "always"
    sync_interval_seconds: float = 0.1
    max_bytes: int | None = None
    when_full: WhenFull = "block"
    background: bool = True
    group_readable: bool = False

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        self._one_of("sync", SYNC_POLICIES)
        self._one_of("when_full", WHEN_FULL)
        self._seconds("sync_interval_seconds", least=0.001, most=3600.0)
        self._true_or_false("background")
        self._true_or_false("group_readable")

    def _one_of(self, name: str, allowed: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed or isinstance(value, bool):
            listed = ", ".join(repr(item) for item in allowed)
            raise InvalidOption(f"{name} = {value!r}: must be one of {listed}")

    def _true_or_false(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise InvalidOption(f"{name} = {value!r}: must be True or False")

    def _between(self, name: str, low: int, high: int, low_means: str = "") -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            meaning = f"; the least is {low_means}" if low_means else ""
            raise InvalidOption(
                f"{name} = {value!r}: must be a whole number, {low} to {high}{meaning}"
            )

    def _seconds(self, name: str, *, least: float, most: float = _SECONDS_MAX) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and least <= value <= most):
            bounds = f"{least:g} to {most:g}" if most < _SECONDS_MAX else f"at least {least:g}"
            raise InvalidOption(f"{name} = {value!r}: must be {bounds} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOptions(QueueOptions):
    """The options of a queue with a mapped buffer in front of its files."""

    staging_bytes: int = 1 << 20
    mapped: bool = True

    def __post_init__(self) -> None:
        """Refuses values out of bounds."""
        QueueOptions.__post_init__(self)
        self._between("staging_bytes", 4_096, 4 << 20)
        self._true_or_false("mapped")


def as_seconds(duration: Duration) -> float:
    """Returns a duration as a number of seconds; a value of another type is returned unchanged."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def make_options(kind: type[_Options], given: dict[str, Any]) -> _Options:
    """Makes options from keyword arguments; refuses unknown ones, listing those that exist."""
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise InvalidOption(f"unknown option {name!r}: there are {', '.join(known)}")
    return kind(**given)
