"""Ends a handle whose state was left half changed.

An exception of a signal handler, such as Ctrl-C, can come between any two steps. Between "written
to the file" and "noted in memory" it would make the next write repeat or skip an entry. After it
the handle refuses everything; a reopened queue is whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from forebay.errors import ForebayError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _Fails(Protocol):
    def fail(self, error: BaseException) -> None: ...


_Owner = TypeVar("_Owner", bound=_Fails)


def unbroken(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Wraps a method that handles the errors of the disk itself, and knows no others."""

    @functools.wraps(method)
    def run(
        owner: _Owner, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> _Result:
        try:
            return method(owner, *arguments, **keywords)
        except BaseException as error:
            expected = isinstance(error, OSError | ForebayError | TypeError)
            if not expected or isinstance(error, TimeoutError):
                owner.fail(error)
            raise

    return run
