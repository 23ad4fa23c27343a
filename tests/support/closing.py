"""Things that a test opens and need not close itself."""

from __future__ import annotations

from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None: ...


_Thing = TypeVar("_Thing", bound=_Closable)
_things: list[_Closable] = []


def closed_at_end(thing: _Thing) -> _Thing:
    """Has something closed at the end of the test; returns it."""
    _things.append(thing)
    return thing


def close_all() -> None:
    """Closes what the test left open, the newest first."""
    while _things:
        _things.pop().close()
