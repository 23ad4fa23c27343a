"""Replaces the module `cython` where the compiled modules run as plain Python.

It has only the names that they use outside of annotations. Cython's own shadow module does not have
to be installed, and is slower: it converts and checks values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

compiled = False
_T = TypeVar("_T")


def cast(_kind: object, value: _T) -> _T:
    """Returns the value: plain Python has no C types."""
    return value


def declare(_kind: object, value: Any = None, visibility: str = "") -> Any:
    """Returns the value: attributes need no declaration."""
    return value


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _NoGil:
    """Replaces `nogil`, which is both a decorator and a context manager."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...


def exceptval(*, check: bool) -> Callable[..., Any]:
    """Returns a decorator that changes nothing."""
    return _unchanged


cclass = cfunc = ccall = inline = final = _unchanged
nogil = _NoGil()
bint = int = uint = longlong = ulonglong = double = Py_ssize_t = size_t = None
