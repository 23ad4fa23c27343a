"""What the queues of all kinds have in common on a loop: opening, closing, and calls on threads."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

from forebay.aio.threads import Threads, begin_alone, finish
from forebay.aio.waiting import News
from forebay.errors import Closed
from forebay.queues.shared.owner import Signal

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class BlockingQueue(Protocol):
    """What every queue has."""

    path: str
    changes: Signal

    def sync(self) -> None: ...
    def maintain(self) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


_Blocking = TypeVar("_Blocking", bound=BlockingQueue)
_Closing = TypeVar("_Closing", bound=BlockingQueue)


class LoopQueue(ABC, Generic[_Blocking]):
    """A queue on a loop. The tasks of the loop that opened it may call it.

    Nothing happens on the disk before `open`, or `async with`, which opens it.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = os.fspath(path)
        self._options = options
        self._queue: _Blocking | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def queue(self) -> _Blocking:
        """The queue itself, with calls that block, for the threads of the same process."""
        self._check()
        assert self._queue is not None
        return self._queue

    async def open(self) -> Self:
        """Opens the queue or creates it, as its blocking class does; an open one stays as it is.

        Once closed it stays closed.
        """
        if self._queue is None:
            self.serve(await open_queue(self._make))
        self._check()
        return self

    def serve(self, queue: _Blocking) -> None:
        """Takes over a queue that is open."""
        self._queue = queue
        self.path = queue.path
        self._threads = Threads(os.path.basename(queue.path))
        self._news = News(queue.changes)

    async def sync(self) -> None:
        """Makes everything durable."""
        await self._work(self.queue.sync)

    async def maintain(self) -> None:
        """Does what is due; for a queue that was opened with `background=False`."""
        await self._work(self.queue.maintain)

    async def info(self) -> dict[str, Any]:
        """Returns facts on the queue, for people and for scripts."""
        return await self._work(self.queue.info)

    async def close(self) -> None:
        """Makes everything durable and returns the directory back; a second time does nothing.

        Calls that have begun come to their end; those that wait raise `Closed`. A cancellation is
        raised when the queue is closed.
        """
        queue = self._queue
        if queue is None or (self._closing is not None and self._closing.done()):
            return
        if self._closing is None:
            self._closing = begin_alone(lambda: self._threads.end(queue.close))
            self._news.tell()
        _, cancellation = await finish(self._closing)
        if cancellation is not None:
            raise cancellation

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "not open" if self._queue is None or self._closing is not None else "open"
        return f"<forebay.aio.{type(self).__name__} {self.path}, {state}>"

    @abstractmethod
    def _make(self) -> _Blocking:
        """Opens the blocking queue. On a thread."""

    async def _add(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **keywords: _Arguments.kwargs,
    ) -> _Result:
        """Runs a call that writes something new; a cancellation leaves it alone."""
        self._check()
        return await self._threads.add(call, *arguments, **keywords)

    async def _work(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **keywords: _Arguments.kwargs,
    ) -> _Result:
        """Runs any other call; a cancellation is raised when it has ended."""
        result, cancellation = await self._see_through(call, *arguments, **keywords)
        if cancellation is not None:
            raise cancellation
        return result

    async def _see_through(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **keywords: _Arguments.kwargs,
    ) -> tuple[_Result, asyncio.CancelledError | None]:
        """Runs a call whose result must not be lost to a cancellation; returns both."""
        self._check()
        return await finish(self._threads.work(call, *arguments, **keywords))

    def _check(self) -> None:
        """Raises if the queue is not open: its threads take nothing any more."""
        if self._queue is None:
            raise Closed(f'{self.path} is not open yet: use "async with", or await open()')
        if self._closing is not None:
            raise Closed(f"{self.path} is closed")


async def open_queue(make: Callable[[], _Closing]) -> _Closing:
    """Opens a queue off the loop; a task that is cancelled meanwhile leaves none open."""
    queue, cancellation = await finish(begin_alone(make))
    if cancellation is not None:
        await finish(begin_alone(queue.close))
        raise cancellation
    return queue
