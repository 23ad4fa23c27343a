"""How tasks add to a queue that may be full: they wait for room, and hold no thread.

`call` is what adds; it raises `Full` at once where there is no room. Nothing was written then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from forebay.aio.waiting import Line, News
from forebay.errors import Full

_Result = TypeVar("_Result")


class _Options(Protocol):
    @property
    def max_bytes(self) -> int | None: ...
    @property
    def when_full(self) -> str: ...


class _Add(Protocol):
    """Runs a call on a thread of those that add."""

    async def __call__(self, call: Callable[[], _Result], /) -> _Result: ...


class Room:
    """The tasks that wait for room in one queue, in the order in which they came.

    `rest_factor`: after an attempt in vain the next one waits so many times as long as it took, for
    a queue that works hard to make room before it refuses.
    """

    def __init__(
        self,
        path: str,
        options: _Options,
        news: News,
        add: _Add,
        *,
        max_entries: int | None = None,
        rest_factor: int = 0,
    ) -> None:
        self._path = path
        self._options = options
        bounds = {"max_bytes": options.max_bytes, "max_entries": max_entries}
        self._limits = " and ".join(
            f"{name} = {bound}" for name, bound in bounds.items() if bound is not None
        )
        self._line = Line(news)
        self._add = add
        self._rest_factor = rest_factor
        # By the clock of the loop.
        self._rest_until = 0.0

    async def add(
        self,
        call: Callable[[], _Result],
        timeout: float | None,
        *,
        ever_fits: Callable[[], bool] = lambda: True,
    ) -> _Result:
        """Adds when there is room; raises `Full` if that takes more than `timeout` seconds.

        What never fits is refused at once, and so is everything under `when_full="reject"`.
        """
        if not self._limits or self._options.when_full == "reject":
            return await self._add(call)
        clock = asyncio.get_running_loop().time

        def add_if_room() -> tuple[_Result] | None:
            try:
                return (call(),)
            except Full:
                if not ever_fits():
                    # That it never fits is no reason to wait.
                    raise
                return None

        async def attempt() -> tuple[_Result] | None:
            await asyncio.sleep(max(self._rest_until - clock(), 0.0))
            begin = clock()
            added = await self._add(add_if_room)
            if added is None:
                self._rest_until = clock() + self._rest_factor * (clock() - begin)
            return added

        seconds = float("inf") if timeout is None else timeout
        added = await self._line.wait(attempt, seconds)
        if added is None:
            raise Full(
                f"{self._path} has no room of {self._limits} in {timeout} s; nothing was written"
            )
        return added[0]
