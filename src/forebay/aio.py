"""The queues for programs on asyncio: the same verbs, awaited.

    async with forebay.aio.Fifo("spool/jobs") as fifo:
        await fifo.push(b"...")
        async with fifo.take(timeout=5) as entry: ...

The verbs, their parameters and what they promise are those of the blocking queues; so are the
errors. Many tasks may use a queue at once, and threads may use its attribute `queue`, the blocking
queue, at the same time. `Fifo` can replace an `asyncio.Queue`.

**What runs where.** The part of a verb that works in memory runs on the loop. A verb that waits
holds no thread: for an entry, an item, an event, a record or room it sleeps until the queue
announces a change; for the disk, one of a few threads syncs for all tasks that wait for it. Long
reads and computations, and everything that opens or closes, run on one of a few threads. All of
these threads end when they are idle.

**Cancellation.** A cancelled task stops at once, and `asyncio.timeout`, `wait_for` and `TaskGroup`
work as they do with an `asyncio.Queue`:

- What the task has taken, by `pop`, `get`, `dequeue`, `read` or `take`, goes back to where it was;
  events of a Beats queue go back when the thread that reads them has finished.
- What it was adding is not in the queue if it still waited for room. If it waited for the disk, it
  is in the queue, and becomes durable with the next sync.
- What it has changed, for example by `release`, `commit` or `ack`, stays changed, and becomes
  durable with the next sync.
- A call that was handed to a thread runs to its end there, even if the thread had not begun it; its
  result is dropped.

Only `open` and `close` run to their ends before they raise the cancellation: so no handle holds the
directory when the task goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from operator import length_hint
from types import GeneratorType, TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from forebay.damage import Damage
from forebay.errors import Closed, NotAQueue
from forebay.formats.beats.events import Event
from forebay.kernels.entry import Entry
from forebay.queues import opening
from forebay.queues.beats import batch
from forebay.queues.beats import queue as beats
from forebay.queues.beats.options import BeatsKeywords
from forebay.queues.deadline import queue as deadline
from forebay.queues.deadline.options import DeadlineKeywords
from forebay.queues.fifo import queue as fifo
from forebay.queues.fifo.options import FifoKeywords
from forebay.queues.kinds import sure_kind_of
from forebay.queues.log import consumer
from forebay.queues.log import queue as log
from forebay.queues.log.consumer import Start
from forebay.queues.log.options import LogKeywords
from forebay.queues.log.staged import Record
from forebay.queues.opening import KindName
from forebay.queues.shared.options import AnyKeywords, Duration
from forebay.queues.shared.signal import Seat
from forebay.queues.shared.verbs import Loan, News, Settles, Steps, Wait, Work, leave
from forebay.storage.workers import Workers

__all__ = ["BeatsQueue", "Consumer", "DeadlineQueue", "EventBatch", "Fifo", "Log", "open"]

_Arguments = ParamSpec("_Arguments")
_Blocking = TypeVar("_Blocking")
_Blocking_co = TypeVar("_Blocking_co", covariant=True)
_Result = TypeVar("_Result")
_Lent = TypeVar("_Lent")

_Path: TypeAlias = str | os.PathLike[str]
AnyLoopQueue: TypeAlias = "Log | Fifo | DeadlineQueue | BeatsQueue"

_logger = logging.getLogger(__name__)
# At most 8 calls run at the same time, for all loops of the process together.
_workers = Workers("forebay work", 8)


async def drive(steps: Steps[_Result], turn: asyncio.Lock | None = None) -> _Result:
    """Drives the steps of a verb on the running loop; returns its result.

    The caller holds `turn`; it is released while the verb waits for news.
    """
    try:
        wait = next(steps)
    except StopIteration as done:
        result: _Result = done.value
        return result
    return await _go_on(steps, wait, turn)


async def _go_on(steps: Steps[_Result], wait: Wait, turn: asyncio.Lock | None) -> _Result:
    """Drives steps that wait; what a wait raises, cancellation included, is raised in the steps."""
    bell = _Bell()
    seat: Seat | None = None
    try:
        while True:
            answer: Any = None
            try:
                if isinstance(wait, Work):
                    answer = await _do(wait)
                elif not isinstance(wait, News):
                    if not wait.is_settled:
                        leave(seat)
                        seat = None
                        await _settle(wait)
                elif seat is None or seat.line != wait.line:
                    leave(seat)
                    seat = Seat(wait.changes, bell, wait.line)
                    seat.join()
                else:
                    await bell.wait(seat.seconds(wait.give_up_in, wait.look_in), turn)
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(answer)
    except StopIteration as done:
        result: _Result = done.value
        return result
    finally:
        leave(seat)


class _Bell:
    """Wakes one task of the running loop. Any thread may ring it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[None] | None = None
        self._rung = False

    def set(self) -> None:
        """Wakes the task, now or at its next wait."""
        if not self._rung:
            self._rung = True
            # A loop that is closed has no tasks left to wake, and the queue must go on.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, seconds: float, turn: asyncio.Lock | None) -> None:
        """Waits for a ring, `seconds` at most, and clears it; releases the turn meanwhile."""
        if not self._rung:
            self._sleeper = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._wake)
            if turn is not None:
                turn.release()
            try:
                await self._sleeper
            finally:
                timer.cancel()
                if turn is not None:
                    await _take_turn(turn)
        self._rung = False

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


async def _take_turn(turn: asyncio.Lock) -> None:
    """Takes a turn, however often the task is cancelled meanwhile; then raises the cancellation."""
    cancellation: asyncio.CancelledError | None = None
    while True:
        try:
            await turn.acquire()
        except asyncio.CancelledError as error:
            cancellation = error
        else:
            break
    if cancellation is not None:
        raise cancellation


async def _settle(ticket: Settles) -> None:
    """Waits until what was applied is durable."""
    loop = asyncio.get_running_loop()
    settled: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_end, settled, error)

    try:
        # Let all tasks that are ready apply their changes first: one sync then serves them all.
        await asyncio.sleep(0)
    finally:
        # Also if the task is cancelled: others may wait until what it gave back is durable.
        ticket.notify(tell)
    await settled


def _end(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Ends a wait, unless it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def _do(work: Work) -> Any:
    """Runs a call on a thread, even if the task is cancelled before the thread begins.

    The call must run because it may give back something that was lent out. If the task is
    cancelled, what the call has taken is given back.
    """
    future = _begin(work.call)
    try:
        return await asyncio.wrap_future(future)
    except (asyncio.CancelledError, GeneratorExit):
        future.add_done_callback(functools.partial(_undo, work))
        raise


def _undo(work: Work, future: Future[Any]) -> None:
    error = future.exception()
    if error is None:
        work.undo(future.result())
    else:
        _logger.warning("a call whose task was cancelled has failed: %s", error)


def _begin(call: Callable[[], _Result]) -> Future[_Result]:
    """Begins a call on a thread; after that nothing stops it."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    _workers.submit(run)
    return future


async def _see_through(begun: Future[_Result]) -> tuple[_Result, BaseException | None]:
    """Waits for the end of a call; returns its result, and the cancellation that came meanwhile."""
    future = asyncio.wrap_future(begun)
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None and future.exception() is not None:
        raise cancellation from future.exception()
    return future.result(), cancellation


class Awaited(Generic[_Blocking_co]):
    """An object whose verbs are awaited; it wraps the blocking object."""

    _blocking: _Blocking_co | None = None

    @property
    def queue(self) -> _Blocking_co:
        """The blocking object, for threads of the same process."""
        if self._blocking is None:
            raise Closed(f'{self!r}: use "async with", or await open()')
        return self._blocking

    def _drive(self, steps: Steps[_Result]) -> Coroutine[Any, Any, _Result]:
        return drive(steps)


def awaited(
    method: Callable[Concatenate[_Blocking, _Arguments], _Result],
) -> Callable[Concatenate[Awaited[_Blocking], _Arguments], Coroutine[Any, Any, _Result]]:
    """Makes an awaited verb from the steps of a blocking one."""
    name = _named(method)

    @functools.wraps(method)
    async def call(
        face: Awaited[_Blocking], /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> Any:
        queue = face.queue
        # That of its own class: a shared queue has others.
        begun = getattr(type(queue), name).begin(queue, *arguments, **keywords)
        # The result, if the verb is a shortcut and needs no wait: a generator and a coroutine more
        # would take as long as all the rest.
        return await face._drive(begun) if type(begun) is GeneratorType else begun

    return call


def lent(
    method: Callable[Concatenate[_Blocking, _Arguments], AbstractContextManager[_Lent]],
) -> Callable[Concatenate[Awaited[_Blocking], _Arguments], AbstractAsyncContextManager[_Lent]]:
    """Makes an asynchronous context manager from a blocking one that lends something out."""
    name = _named(method)

    @functools.wraps(method)
    def call(
        face: Awaited[_Blocking], /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> Any:
        queue = face.queue
        return _Lending(face, getattr(queue, name).steps(queue, *arguments, **keywords))

    call.__doc__ = (method.__doc__ or "").replace("`with ", "`async with ")
    signature = inspect.signature(method)
    returned = f"AbstractAsync{signature.return_annotation.removeprefix('Abstract')}"
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returned
    )
    return call


class _Lending(AbstractAsyncContextManager[_Lent]):
    """A loan for the length of an `async with` block."""

    def __init__(self, face: Awaited[Any], steps: Steps[Loan[_Lent]]) -> None:
        self._face = face
        self._steps = steps
        self._loan: Loan[_Lent] | None = None

    async def __aenter__(self) -> _Lent:
        self._loan = await self._face._drive(self._steps)
        return self._loan.value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loan is not None
        await self._face._drive(
            self._loan.finish() if error is None else self._loan.give_back(error)
        )


def off_loop(
    method: Callable[Concatenate[_Blocking, _Arguments], _Result],
) -> Callable[Concatenate[Awaited[_Blocking], _Arguments], Coroutine[Any, Any, _Result]]:
    """Makes an awaited verb from a blocking one that works long or waits for the disk."""

    @functools.wraps(method)
    async def call(
        face: Awaited[_Blocking], /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> Any:
        queue = face.queue
        own = getattr(queue, method.__name__)
        steps = getattr(own, "steps", None)
        if steps is None:
            return await face._drive(_work(own, *arguments, **keywords))
        return await face._drive(steps(queue, *arguments, **keywords))

    return call


def plain(
    method: Callable[Concatenate[_Blocking, _Arguments], _Result],
) -> Callable[Concatenate[Awaited[_Blocking], _Arguments], _Result]:
    """Forwards a method that only reads numbers in memory, or asks the server of a shared queue."""

    @functools.wraps(method)
    def call(
        face: Awaited[_Blocking], /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> Any:
        result: _Result = getattr(face.queue, method.__name__)(*arguments, **keywords)
        return result

    return call


def _work(
    call: Callable[_Arguments, _Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs
) -> Steps[_Result]:
    result: _Result = yield Work(functools.partial(call, *arguments, **keywords))
    return result


def _named(method: Callable[..., Any]) -> str:
    """Returns the name of a verb that has steps."""
    if not hasattr(method, "steps"):
        raise TypeError(f"{method.__qualname__} has no steps")
    return method.__name__


class _Queue(Protocol):
    """What every queue has."""

    path: str

    def close(self) -> None: ...


_Owned = TypeVar("_Owned", bound=_Queue)


class LoopQueue(Awaited[_Owned]):
    """A queue on a loop. Nothing happens on the disk before `open`, or `async with`."""

    path: str
    _make: Callable[[], _Owned]
    _closing: Future[None] | None = None

    async def open(self) -> Self:
        """Opens the queue or creates it, as its blocking class does; does nothing if it is open.

        A closed queue stays closed: opening it raises `Closed`.
        """
        if self._closing is not None:
            raise Closed(f"{self.path} is closed")
        if self._blocking is None:
            opened, cancellation = await _see_through(_begin(self._make))
            if cancellation is not None:
                await _see_through(_begin(opened.close))
                raise cancellation
            self._serve(opened)
        return self

    async def close(self) -> None:
        """Makes everything durable and releases the directory; a second call does nothing.

        Calls that wait raise `Closed`. A cancellation is raised after the queue is closed.
        """
        if self._blocking is None:
            return
        if self._closing is None:
            self._closing = _begin(self._blocking.close)
        _, cancellation = await _see_through(self._closing)
        if cancellation is not None:
            raise cancellation

    def _serve(self, queue: _Owned) -> None:
        """Takes over a queue that is open."""
        self._blocking = queue
        self.path = queue.path

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
        state = f"{self.path}, not open yet" if self._blocking is None else repr(self._blocking)
        return f"<forebay.aio.{type(self).__name__} of {state}>"


def _opens(
    make: Callable[_Arguments, _Owned],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[LoopQueue[_Owned], _Arguments], None]]:
    """Makes a constructor with the parameters of the blocking class that opens nothing yet."""
    signature = inspect.signature(make)

    def replace(
        stub: Callable[[Any], None],
    ) -> Callable[Concatenate[LoopQueue[_Owned], _Arguments], None]:
        @functools.wraps(stub)
        def construct(
            face: LoopQueue[_Owned], /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
        ) -> None:
            face.path = os.fspath(signature.bind(*arguments, **keywords).arguments["path"])
            face._make = functools.partial(make, *arguments, **keywords)

        face_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [face_parameter, *signature.parameters.values()]
        construct.__doc__ = make.__doc__
        construct.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation="None"
        )
        return construct

    return replace


@overload
async def open(path: _Path, *, kind: Literal["log"], **options: Unpack[LogKeywords]) -> Log: ...
@overload
async def open(path: _Path, *, kind: Literal["fifo"], **options: Unpack[FifoKeywords]) -> Fifo: ...
@overload
async def open(
    path: _Path, *, kind: Literal["deadline"], **options: Unpack[DeadlineKeywords]
) -> DeadlineQueue: ...
@overload
async def open(
    path: _Path, *, kind: Literal["beats"], **options: Unpack[BeatsKeywords]
) -> BeatsQueue: ...
@overload
async def open(
    path: _Path, *, kind: KindName | None = None, **options: Unpack[AnyKeywords]
) -> AnyLoopQueue: ...
@functools.wraps(opening.open, assigned=())
async def open(path: _Path, **options: Any) -> Any:
    """Opens an existing queue: `async with await forebay.aio.open(path) as queue`.

    The docstring of `forebay.open` says what it raises and what each option means.
    """
    (opened, face), cancellation = await _see_through(
        _begin(functools.partial(_open_any, path, **options))
    )
    if cancellation is not None:
        await _see_through(_begin(opened.close))
        raise cancellation
    queue = face.__new__(face)
    queue._serve(opened)
    return queue


def _open_any(path: _Path, **options: Any) -> tuple[Any, type[LoopQueue[Any]]]:
    """Opens a queue of any kind; returns it and the class of its kind in this module."""
    kind = sure_kind_of(path)
    if not kind.loop:
        raise NotAQueue(f"{os.fspath(path)} is {kind.title}: forebay.aio has no class for it")
    return opening.open(path, **options), kind.loop_class


class Log(LoopQueue[log.Log]):
    """A durable log; see `forebay.Log`, also for the options."""

    @_opens(log.Log)
    def __init__(self) -> None: ...

    append = awaited(log.Log.append)
    append_many = awaited(log.Log.append_many)
    put = awaited(log.Log.put)
    put_many = awaited(log.Log.put_many)
    append_encoded = awaited(log.Log.append_encoded)
    post = awaited(log.Log.post)
    flush = awaited(log.Log.flush)
    sync = awaited(log.Log.sync)
    trim = off_loop(log.Log.trim)
    adopt = off_loop(log.Log.adopt)
    forget_consumer = off_loop(log.Log.forget_consumer)
    _consumer = off_loop(log.Log.consumer)
    maintain = off_loop(log.Log.maintain)
    info = off_loop(log.Log.info)
    __len__ = plain(log.Log.__len__)

    @property
    def begin(self) -> int:
        """The offset of the oldest record that must be there."""
        return self.queue.begin

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.queue.end

    @property
    def durable(self) -> int:
        """The offset after the last record that survives a power cut."""
        return self.queue.durable

    async def consumer(self, name: str, *, start: Start = "earliest") -> Consumer:
        """Opens a named consumer at its saved place, or at `start` if it is new.

        See `forebay.Log.consumer`.
        """
        return Consumer(await self._consumer(name, start=start))


class Consumer(Awaited[consumer.Consumer]):
    """Reads a log from its saved place. Tasks that share a consumer get each record once."""

    def __init__(self, blocking: consumer.Consumer) -> None:
        self._blocking = blocking
        # Only one thread at a time may use the blocking consumer, and it reads ahead on another.
        self._turn = asyncio.Lock()

    read = awaited(consumer.Consumer.read)
    take = lent(consumer.Consumer.take)
    commit = awaited(consumer.Consumer.commit)
    seek = off_loop(consumer.Consumer.seek)
    close = off_loop(consumer.Consumer.close)

    @property
    def name(self) -> str:
        """Its name."""
        return self.queue.name

    @property
    def position(self) -> int:
        """The place after the last record that was read."""
        return self.queue.position

    @property
    def committed(self) -> int:
        """The place that is saved."""
        return self.queue.committed

    @property
    def lag(self) -> int:
        """How many records it has not committed yet."""
        return self.queue.lag

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yields the records that are there now, one by one; a commit covers those given so far."""
        while length_hint(records := await self._drive(self.queue._next_run())):
            for record in records:
                yield record

    def __repr__(self) -> str:
        return f"<forebay.aio of {self._blocking!r}>"

    async def _drive(self, steps: Steps[_Result]) -> _Result:
        async with self._turn:
            return await drive(steps, self._turn)


class Fifo(LoopQueue[fifo.Fifo]):
    """A durable queue of bytes, first in first out; see `forebay.Fifo`, also for the options."""

    @_opens(fifo.Fifo)
    def __init__(self) -> None: ...

    push = awaited(fifo.Fifo.push)
    push_many = awaited(fifo.Fifo.push_many)
    pop = awaited(fifo.Fifo.pop)
    pop_many = awaited(fifo.Fifo.pop_many)
    take = lent(fifo.Fifo.take)
    take_many = lent(fifo.Fifo.take_many)
    peek = off_loop(fifo.Fifo.peek)
    put = awaited(fifo.Fifo.put)
    put_many = awaited(fifo.Fifo.put_many)
    push_encoded = awaited(fifo.Fifo.push_encoded)
    get = awaited(fifo.Fifo.get)
    dead = off_loop(fifo.Fifo.dead)
    post = awaited(fifo.Fifo.post)
    flush = awaited(fifo.Fifo.flush)
    sync = awaited(fifo.Fifo.sync)
    maintain = off_loop(fifo.Fifo.maintain)
    info = off_loop(fifo.Fifo.info)
    capacity_for = plain(fifo.Fifo.capacity_for)
    qsize = plain(fifo.Fifo.qsize)
    empty = plain(fifo.Fifo.empty)
    full = plain(fifo.Fifo.full)
    __len__ = plain(fifo.Fifo.__len__)

    @property
    def size(self) -> int:
        """How many entries there are; see `forebay.Fifo.size`."""
        return self.queue.size

    @property
    def file_bytes(self) -> int:
        """The size of its files, fixed when the queue was created."""
        return self.queue.file_bytes

    @property
    def capacity(self) -> int | None:
        """How many entries it can hold (`max_entries`); None: no bound but that of bytes."""
        return self.queue.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """How many bytes of entries it can hold, 32 for each included; None: no bound."""
        return self.queue.capacity_bytes

    async def __aiter__(self) -> AsyncIterator[Entry]:
        """Goes over all entries that have not expired, oldest first; none is removed."""
        entries = iter(self.queue)
        while some := await drive(_work(_next_of, entries)):
            for entry in some:
                yield entry


def _next_of(entries: Iterator[Entry]) -> list[Entry]:
    """Returns the next few entries: a call on a thread for each would cost more than the read."""
    return list(itertools.islice(entries, 100))


class DeadlineQueue(LoopQueue[deadline.DeadlineQueue]):
    """A durable queue by deadline; see `forebay.DeadlineQueue`, also for the options."""

    @_opens(deadline.DeadlineQueue)
    def __init__(self) -> None: ...

    enqueue = awaited(deadline.DeadlineQueue.enqueue)
    enqueue_many = awaited(deadline.DeadlineQueue.enqueue_many)
    put = awaited(deadline.DeadlineQueue.put)
    put_many = awaited(deadline.DeadlineQueue.put_many)
    dequeue = awaited(deadline.DeadlineQueue.dequeue)
    dequeue_many = awaited(deadline.DeadlineQueue.dequeue_many)
    take = lent(deadline.DeadlineQueue.take)
    release = awaited(deadline.DeadlineQueue.release)
    release_many = awaited(deadline.DeadlineQueue.release_many)
    requeue = awaited(deadline.DeadlineQueue.requeue)
    reclaim = awaited(deadline.DeadlineQueue.reclaim)
    touch = awaited(deadline.DeadlineQueue.touch)
    bury = awaited(deadline.DeadlineQueue.bury)
    kick = awaited(deadline.DeadlineQueue.kick)
    delete = awaited(deadline.DeadlineQueue.delete)
    peek = off_loop(deadline.DeadlineQueue.peek)
    get = off_loop(deadline.DeadlineQueue.get)
    browse = off_loop(deadline.DeadlineQueue.browse)
    post = awaited(deadline.DeadlineQueue.post)
    flush = awaited(deadline.DeadlineQueue.flush)
    sync = awaited(deadline.DeadlineQueue.sync)
    freeze = awaited(deadline.DeadlineQueue.freeze)
    merge = awaited(deadline.DeadlineQueue.merge)
    maintain = off_loop(deadline.DeadlineQueue.maintain)
    info = off_loop(deadline.DeadlineQueue.info)
    __len__ = plain(deadline.DeadlineQueue.__len__)

    @property
    def damage(self) -> list[Damage]:
        """What could not be read when the queue was opened; see `forebay.Damage`."""
        return self.queue.damage

    @property
    def pending(self) -> int:
        """How many items wait, due or not."""
        return self.queue.pending

    @property
    def due(self) -> int:
        """How many of the pending items are due."""
        return self.queue.due

    @property
    def working(self) -> int:
        """How many items are leased."""
        return self.queue.working

    @property
    def buried(self) -> int:
        """How many items are put aside."""
        return self.queue.buried


class BeatsQueue(LoopQueue[beats.BeatsQueue]):
    """A durable queue of events, in the files of Beats; see `forebay.BeatsQueue`."""

    @_opens(beats.BeatsQueue)
    def __init__(self) -> None: ...

    put = awaited(beats.BeatsQueue.put)
    put_many = awaited(beats.BeatsQueue.put_many)
    post = awaited(beats.BeatsQueue.post)
    flush = awaited(beats.BeatsQueue.flush)
    sync = awaited(beats.BeatsQueue.sync)
    maintain = off_loop(beats.BeatsQueue.maintain)
    info = off_loop(beats.BeatsQueue.info)
    take = lent(beats.BeatsQueue.take)
    put_encoded = awaited(beats.BeatsQueue.put_encoded)
    __len__ = plain(beats.BeatsQueue.__len__)
    _read = awaited(beats.BeatsQueue.read)

    async def read(self, count: int = 1000, *, timeout: Duration | None = None) -> EventBatch:
        """Returns up to `count` of the next events; see `forebay.BeatsQueue.read`."""
        return EventBatch(await self._read(count, timeout=timeout))

    @property
    def version(self) -> str:
        """The version of the segments that it writes."""
        return self.queue.version

    @property
    def damage(self) -> list[Damage]:
        """What it has met so far that could not be read or looked wrong."""
        return self.queue.damage


class EventBatch(Awaited[batch.EventBatch]):
    """Events, in the order in which they were put, to be acknowledged or given back, once."""

    def __init__(self, blocking: batch.EventBatch) -> None:
        self._blocking = blocking

    ack = awaited(batch.EventBatch.ack)
    nack = awaited(batch.EventBatch.nack)
    __len__ = plain(batch.EventBatch.__len__)
    __iter__ = plain(batch.EventBatch.__iter__)

    @property
    def events(self) -> list[Event]:
        """The events."""
        return self.queue.events

    def __repr__(self) -> str:
        return f"<forebay.aio of {self._blocking!r}>"
