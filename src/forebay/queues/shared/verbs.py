"""Verbs: each is written once, for threads, asyncio and servers.

A verb that may wait is a generator of *steps*: it yields what it waits for and returns its result.

    @verb
    def push(self, value: bytes, *, timeout: float | None = None) -> Steps[int]:
        ...
        yield ticket
        return entry_id

It may wait for three things:

- a `Ticket`, until what it has applied is durable;
- `News`, until the queue has changed or some time has passed; the verb then tries again;
- `Work`, a call that reads much or computes long. A loop runs it on another thread.

The lock of the queue is never held across a `yield`. If the wait fails, or the caller is cancelled,
the error is raised at the `yield`: a verb that has taken something gives it back there and lets the
error propagate. It must not wait while it does so.

`run` drives the steps of a verb on the calling thread; `forebay.aio` drives the same steps on a
loop. `verb` and `lends` make blocking methods from steps; `shortcut` makes steps from a blocking
method that mostly needs no wait. All three store the steps in the attribute `steps` of the method,
where aio and the tests find them, and in the attribute `begin`. That of a shortcut may return the
result instead of steps, if no wait is needed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import GeneratorType, GenericAlias, TracebackType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from forebay.queues.shared.signal import ALL, Seat, Signal
from forebay.storage.commit import Alarm

_Arguments = ParamSpec("_Arguments")
_Queue = TypeVar("_Queue")
_Result = TypeVar("_Result")
_Lent = TypeVar("_Lent")
_Lent_co = TypeVar("_Lent_co", covariant=True)


class News(NamedTuple):
    """A wait for a change of the queue, for at most `give_up_in` seconds.

    The first wait of a verb in a line returns at once: from then on no change is missed, and the
    verb must look again. Of the waiters in one `line`, the first is woken; without a line, all
    are. `look_in`: after so many seconds something may be there without a change; only the first in
    line needs to look then.
    """

    changes: Signal
    give_up_in: float
    line: str = ALL
    look_in: float = math.inf


@dataclass(frozen=True, slots=True)
class Work:
    """A call that takes long; its result is what the `yield` returns.

    `undo` is called with the result if the caller was cancelled meanwhile and does not get it.
    """

    call: Callable[[], Any]
    undo: Callable[[Any], None] = lambda result: None


class Settles(Protocol):
    """Something that is settled later: a `Ticket`, or the answer of a server."""

    @property
    def is_settled(self) -> bool:
        """Whether it is; raises the error that prevents it."""
        ...

    def settle(self) -> None:
        """Returns when it is."""
        ...

    def notify(self, call: Callable[[BaseException | None], None]) -> None:
        """Calls back when it is, on any thread."""
        ...


Wait: TypeAlias = Settles | News | Work
Steps: TypeAlias = Generator[Wait, Any, _Result]
Run: TypeAlias = Callable[[Steps[_Result]], _Result]


class Loan(Protocol[_Lent_co]):
    """Something that is lent out until it is finished or given back."""

    @property
    def value(self) -> _Lent_co:
        """What is lent out."""
        ...

    def finish(self) -> Steps[None]:
        """Removes it from the queue for good."""
        ...

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts it back; `error` is why."""
        ...


def run(steps: Steps[_Result]) -> _Result:
    """Drives the steps of a verb on this thread; returns its result."""
    alarm: Alarm | None = None
    seat: Seat | None = None
    try:
        wait = next(steps)
        while True:
            answer: Any = None
            try:
                if isinstance(wait, News):
                    if seat is None or alarm is None or seat.line != wait.line:
                        leave(seat)
                        alarm = Alarm()
                        seat = Seat(wait.changes, alarm, wait.line)
                        seat.join()
                    else:
                        alarm.wait(seat.seconds(wait.give_up_in, wait.look_in))
                elif isinstance(wait, Work):
                    answer = wait.call()
                elif seat is None or not wait.is_settled:
                    leave(seat)
                    seat = None
                    wait.settle()
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(answer)
    except StopIteration as done:
        result: _Result = done.value
        return result
    finally:
        leave(seat)


def leave(seat: Seat | None) -> None:
    """Leaves a seat, if there is one.

    Call it also before a wait for the disk or in another line: a waiter at the front of a line
    holds back the wake-ups of those after it.
    """
    if seat is not None:
        seat.leave()


def verb(
    steps: Callable[Concatenate[_Queue, _Arguments], Steps[_Result]],
) -> Callable[Concatenate[_Queue, _Arguments], _Result]:
    """Makes a blocking method from the steps of a verb."""

    @functools.wraps(steps)
    def call(queue: _Queue, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> Any:
        return run(steps(queue, *arguments, **keywords))

    _keep_steps(call, steps, "Steps[")
    return call


def shortcut(
    method: Callable[Concatenate[_Queue, _Arguments], _Result],
) -> Callable[Concatenate[_Queue, _Arguments], _Result]:
    """Adds steps to a blocking method that mostly needs no wait.

    The method tries the short way first, and ends with `return _run(steps)` if that is not enough.
    `_run` is its last parameter, hidden from its signature. It is `run` for a blocking call; when
    the method is called for its steps, these go on with the steps that are passed to `_run`.
    `_run` is keyword-only if the method has another keyword-only parameter: only a function without
    such parameters is called in the fastest way.
    """

    signature = inspect.signature(method)
    *public, last = signature.parameters.values()
    if last.name != "_run" or last.default is not run:
        raise TypeError(f"{method.__qualname__}: the last parameter must be `_run`, which is `run`")
    call: Any = method
    call.__signature__ = signature.replace(parameters=public)
    begin = functools.partial(call, _run=_hand_over)

    @functools.wraps(method)
    def steps(queue: _Queue, /, *arguments: Any, **keywords: Any) -> Steps[Any]:
        result: Any = begin(queue, *arguments, **keywords)
        if type(result) is GeneratorType:
            result = yield from result
        return result

    call.steps = steps
    call.begin = begin
    return method


def _hand_over(steps: Steps[_Result]) -> Any:
    return steps


def with_steps(method: Callable[..., Any], steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    """Returns a blocking method like another one, with its signature, that runs other steps."""
    lending = getattr(method, "lends", False)

    @functools.wraps(method)
    def call(queue: Any, /, *arguments: Any, **keywords: Any) -> Any:
        begun = steps(queue, *arguments, **keywords)
        return _Lending(begun) if lending else run(begun)

    made: Any = call
    made.begin = made.steps = steps
    return call


def lends(
    steps: Callable[Concatenate[_Queue, _Arguments], Steps[Loan[_Lent]]],
) -> Callable[Concatenate[_Queue, _Arguments], AbstractContextManager[_Lent]]:
    """Makes a blocking context manager from steps that lend something out.

    At the end of the block the loan is finished; after an exception it is given back.
    """

    @functools.wraps(steps)
    def call(queue: _Queue, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> Any:
        return _Lending(steps(queue, *arguments, **keywords))

    _keep_steps(call, steps, "Steps[Loan[")
    lending: Any = call
    lending.lends = True
    return call


class _Lending(AbstractContextManager[_Lent], Generic[_Lent]):
    """A loan for the length of a `with` block."""

    def __init__(self, steps: Steps[Loan[_Lent]]) -> None:
        self._steps = steps
        self._loan: Loan[_Lent] | None = None

    def __enter__(self) -> _Lent:
        self._loan = run(self._steps)
        return self._loan.value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loan is not None
        run(self._loan.finish() if error is None else self._loan.give_back(error))


def _keep_steps(call: Any, steps: Callable[..., Any], wrapper: str) -> None:
    """Stores the steps in a blocking method, and sets its signature to return their result."""
    signature = inspect.signature(steps)
    returned = str(signature.return_annotation)
    if not returned.startswith(wrapper):
        raise TypeError(f"{steps.__qualname__} must return {wrapper}...], not {returned}")
    inner = returned[len(wrapper) : -wrapper.count("[")]
    shown: str = inner
    hint: object = inner
    if wrapper != "Steps[":
        shown = f"AbstractContextManager[{inner}]"
        # Not the text `shown`: the module of the verb need not have that name.
        hint = GenericAlias(AbstractContextManager, (inner,))
    call.__signature__ = signature.replace(return_annotation=shown)
    call.__annotations__ = {**steps.__annotations__, "return": hint}
    call.begin = call.steps = steps
