"""Stands for the module `cython` where Cython is not installed and the kernels run as plain Python.

Has only what the kernels name outside of annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

compiled = False
_T = TypeVar("_T")


def cast(_kind: object, value: _T) -> _T:
    """Gives the value back: plain Python has no C types."""
    return value


def declare(_kind: object, value: Any = None, visibility: str = "") -> Any:
    """Gives the value back: attributes need no declaration."""
    return value


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _NoGil:
    """Stands for `nogil`, which is a decorator and a context."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...


def exceptval(*, check: bool) -> Callable[..., Any]:
    """Gives a decorator that changes nothing."""
    return _unchanged


cclass = cfunc = ccall = inline = final = _unchanged
nogil = _NoGil()
bint = int = uint = longlong = ulonglong = Py_ssize_t = size_t = None
