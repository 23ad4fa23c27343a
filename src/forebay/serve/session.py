"""One client of the server: its requests under way, and what it holds.

Only the thread of the loop uses a session. What a client holds goes back when it is gone: what it
was lent, the events it had not acknowledged, the names of its consumers, and the items it had
leased. An item whose `lease_seconds` the client gave stays leased: its token may be somewhere else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay.errors import Closed, InvalidOption, LeaseLost, ProtocolError
from forebay.exchange import (
    CODEC,
    ITERATOR,
    LEASING,
    LOAN,
    OBJECTS,
    SETTLING,
    VOCABULARY,
    Iteration,
    steps_of,
)
from forebay.queues.shared.verbs import Steps, Work
from forebay.serve.access import TAKE, WRITE, class_of
from forebay.serve.driving import Cancelled, Task
from forebay.serve.facts import facts_of
from forebay.serve.holding import Served
from forebay.serve.limits import HELLO_BYTES_MAX
from forebay.serve.loop import Timer
from forebay.serve.posted import Postings
from forebay.wire.frames import FrameReader, frame
from forebay.wire.messages import PROTOCOLS, SERVER, Answer, Request, Status, batch_count
from forebay.wire.values import Handle

if TYPE_CHECKING:
    from forebay.serve.server import Server

_logger = logging.getLogger(__name__)
_RECEIVED_BYTES = 256 << 10
# What one client may ask for in a turn, so that it does not hold up the others.
_TURN_REQUESTS = 256
# While so much waits to be sent, or so many calls are on threads, no request of the client begins:
# their answers may be large.
_WAITING_BYTES_MAX = 1 << 20
_WORKING_MAX = 16
_ITERATORS_MAX = 128
# How many answers that took something can still be cancelled.
_UNDOABLE_MAX = 1024
# Verbs that bring records to a client, not only settle them.
_TAKING = frozenset({"dequeue", "dequeue_many", "popping", "read", "take", "take_many"})


class Lost(Exception):
    """Why a loan came back: its client has gone."""


class Session:
    """A connection to one client."""

    def __init__(self, server: Server, connection: socket.socket, peer: str, user: int) -> None:
        self.user = user
        self._server = server
        self._loop = server.loop
        self._limits = server.limits
        self._connection = connection
        self._peer = peer
        self._frames = FrameReader(HELLO_BYTES_MAX)
        # How much of what was received the server knows of.
        self._counted = 0
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0
        self._flushing = False
        # What the loop waits for. Nothing is received while a request that has arrived must wait.
        self._events = select.EPOLLIN
        self._must_wait = False
        self._going_on = False
        self._greeted = False
        self._deaf = False
        # When it connected, and when a byte last went over: a client that stops in the middle of
        # something is watched by a timer, and only then.
        self._began = self._moved = time.monotonic()
        self._patience: Timer | None = None
        self._tasks: dict[int, Task] = {}
        self._targets: dict[int, int] = {}
        # How many calls of its requests are on threads.
        self._working = 0
        # What the client holds, by number: queues, and what their verbs have named.
        self._objects: dict[int, Any] = {}
        self._numbers = 0
        # The queue that a number belongs to.
        self._owners: dict[int, int] = {}
        self._leases: dict[int, dict[int, Any]] = {}
        self._postings = Postings(server.loop)
        # How to take back what a request has taken, if it is cancelled after its answer was sent;
        # and what is to be forgotten when that cannot happen any more.
        self._undoable: OrderedDict[int, tuple[Callable[[], None], Callable[[], None]]]
        self._undoable = OrderedDict()
        self.closed = False
        connection.setblocking(False)
        self._loop.watch(connection.fileno(), self._on_events)
        self._be_patient()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that will be answered soon, or an answer is to be sent."""
        return bool(self._output) or not all(task.is_asleep for task in self._tasks.values())

    def stop_receiving(self) -> None:
        """Begins no more requests."""
        self._deaf = self._must_wait = True
        self._watch()

    def _on_events(self, events: int) -> None:
        try:
            self._go_on_with(events)
        except MemoryError:
            self._loop.free_reserve()
            _logger.error("%s: cut off: there is no memory for what it asks", self._peer)
            self.close()

    def _go_on_with(self, events: int) -> None:
        self._flush()
        if self.closed:
            return
        if not self._must_wait:
            self._receive()
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            self.close()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_RECEIVED_BYTES)
            self._frames.feed(data)
            self._count_received()
        except BlockingIOError:
            return
        except (OSError, MemoryError):
            data = b""
        if not data:
            self.close()
            return
        self._moved = time.monotonic()
        self._take_requests()
        if self._is_stalled:
            self._be_patient()

    def _count_received(self) -> None:
        """Tells the server how much it holds of what this client has sent."""
        size = self._frames.size
        self._server.received_bytes += size - self._counted
        self._counted = size

    @property
    def _is_stalled(self) -> bool:
        """Whether something is half done that only the client can go on with."""
        return not self.closed and (
            not self._greeted
            or bool(self._output)
            or (self._frames.is_inside and not self._must_wait)
        )

    def _be_patient(self) -> None:
        """Has the client looked at later, if that is not planned."""
        if self._patience is not None or self.closed:
            return
        now = time.monotonic()
        if not self._greeted:
            left = self._began + self._limits.hello_seconds - now
        else:
            left = self._moved + self._limits.stalled_seconds - now
        self._patience = self._loop.later(max(left, 0.0), self._look_at_it)

    def _look_at_it(self) -> None:
        """Cuts off a client that has stopped in the middle of something for too long."""
        self._patience = None
        if not self._is_stalled:
            return
        now = time.monotonic()
        if not self._greeted and now - self._began >= self._limits.hello_seconds:
            self._refuse(ProtocolError(f"no hello within {self._limits.hello_seconds:g} seconds"))
        elif self._greeted and now - self._moved >= self._limits.stalled_seconds:
            what = "did not read" if self._output else "did not finish a message"
            _logger.warning("%s: cut off: it %s", self._peer, what)
            self.close()
        else:
            self._be_patient()

    def _refuse(self, error: BaseException) -> None:
        """Says what is wrong with the client as a whole, and hangs up."""
        _logger.warning("%s: %s", self._peer, error)
        self._answer(Answer(0, Status.FAILED, VOCABULARY.pack(error)))
        self._send()
        self.close()

    def _take_requests(self) -> None:
        """Begins requests that have arrived; the rest of many waits for the next turn."""
        self._must_wait = self._going_on = False
        try:
            if self._server.received_bytes > self._limits.received_bytes:
                raise ProtocolError(
                    f"the clients have sent more than {self._limits.received_bytes} bytes of "
                    "requests that are not finished: try again later"
                )
            for _ in range(_TURN_REQUESTS):
                if self.closed:
                    return
                if self._is_full:
                    break
                data = self._frames.next()
                if data is None:
                    self._watch()
                    return
                self._begin(self._decoded(data))
        except (ProtocolError, MemoryError) as error:
            # What follows cannot be understood either.
            self._refuse(error)
            return
        finally:
            self._count_received()
        self._must_wait = True
        self._watch()
        self._go_on()

    def _decoded(self, data: bytes) -> Request:
        # Before its values are made. Each takes a byte at least.
        if len(data) > self._limits.batch_records:
            count = batch_count(data)
            if count > self._limits.batch_records:
                raise ProtocolError(
                    f"a request of {count} records: at most {self._limits.batch_records}"
                )
        return CODEC.decode_request(data)

    @property
    def _is_full(self) -> bool:
        return (
            self._deaf or self._output_bytes > _WAITING_BYTES_MAX or self._working >= _WORKING_MAX
        )

    def _count_work(self, change: int) -> None:
        self._working += change
        self._go_on()

    def _go_on(self) -> None:
        """Begins the requests that had to wait, if they need not wait any more."""
        if self._must_wait and not self._is_full and not self._going_on:
            self._going_on = True
            self._loop.post(self._take_requests)

    def _watch(self) -> None:
        """Has the loop wait for what this session can use."""
        wanted = 0 if self._must_wait else select.EPOLLIN
        wanted |= select.EPOLLOUT if self._output else 0
        if wanted != self._events:
            self._events = wanted
            self._loop.change(self._connection.fileno(), wanted)

    def _begin(self, request: Request) -> None:
        if request.id == 0:
            self._obey(request)
            return
        if request.id in self._tasks:
            raise ProtocolError(f"request {request.id}: the number is in use")
        try:
            if len(self._tasks) >= self._limits.requests:
                raise InvalidOption(f"a client may make {self._limits.requests} requests at a time")
            steps = self._steps_of(request)
        except Exception as error:
            self._fail(request.id, error)
            return
        task = Task(self._loop, steps, partial(self._done, request), self._count_work)
        self._tasks[request.id] = task
        self._targets[request.id] = request.target
        task.start()

    def _steps_of(self, request: Request) -> Steps[Any]:
        if not self._greeted and request.verb != "hello":
            raise ProtocolError("the first request must be hello")
        if len(self._objects) >= self._limits.held and not self._ends_something(request):
            raise InvalidOption(f"a client may hold {self._limits.held} things at a time")
        if request.target == SERVER:
            return self._own_steps(request)
        target = self._objects.get(request.target)
        if target is None:
            raise Closed(f"{request.verb}: number {request.target} is closed")
        if isinstance(target, _Lent):
            steps = target.steps_of(request.verb, *_given(request))
            del self._objects[request.target], self._owners[request.target]
            if request.verb == "finish" and target.is_popping:
                self._note(request.id, lambda: self._drive(target.undo()), target.forget)
            return steps
        if isinstance(target, Served):
            self._server.access.check(self.user, target.name, request.verb)
        if request.verb == "__iter__":
            self._check_iterators()
        if request.verb == "had_left":
            return self._had_left(target, *request.arguments)
        if request.verb == "attach":
            return self._postings.attach(request.target, target, *request.arguments)
        if request.verb == "flushed":
            return self._postings.flushed(request.target, *request.arguments)
        # In the order in which the client has made them.
        self._postings.take_now(self._owners.get(request.target, request.target))
        return steps_of(getattr(target, "queue", target), request.verb, *_given(request))

    def _check_iterators(self) -> None:
        """Refuses one more iterator than a client may have: each holds what it has read ahead."""
        count = sum(isinstance(each, Iteration) for each in self._objects.values())
        if count >= _ITERATORS_MAX:
            raise InvalidOption(f"a client may have {_ITERATORS_MAX} iterators at a time")

    def _ends_something(self, request: Request) -> bool:
        if request.target == SERVER:
            return request.verb == "close"
        return isinstance(self._objects.get(request.target), _Lent)

    def _own_steps(self, request: Request) -> Steps[Any]:
        verbs: dict[str, Callable[..., Steps[Any]]]
        verbs = {
            "hello": self._hello,
            "open": self._open,
            "close": self._close,
            "facts": self._facts,
            "kind": self._kind,
            "retire": self._retire,
        }
        if request.verb not in verbs:
            raise AttributeError(f"the server has no verb {request.verb!r}")
        return verbs[request.verb](*request.arguments, **request.keywords)

    def _hello(self, oldest: int, newest: int, version: str) -> Steps[dict[str, Any]]:
        """Agrees on a version of the protocol."""
        protocol = min(newest, PROTOCOLS[1])
        if protocol < max(oldest, PROTOCOLS[0]):
            raise ProtocolError(
                f"the client speaks versions {oldest} to {newest} of the protocol, this server "
                f"{PROTOCOLS[0]} to {PROTOCOLS[1]}: restart the older of the two"
            )
        self._greeted = True
        self._frames.bytes_max = self._limits.frame_bytes
        return {"protocol": protocol, "version": self._server.version}
        yield

    def _open(
        self, path: str, kind: str, options: dict[str, Any], *, create: bool
    ) -> Steps[Handle]:
        """Opens a queue, or shares the one that is open."""
        holding = self._server.holding
        self._check_access(path)
        served: Served = yield Work(
            partial(holding.open, path, kind, options, create=create), holding.release
        )
        number = self._keep(served)
        self._owners[number] = number
        return Handle(kind, number, served.described)

    def _check_access(self, path: str) -> None:
        self._server.access.check(self.user, os.path.basename(path), "info")

    def _kind(self, path: str) -> Steps[str]:
        """Returns the kind of a queue: the client need not be able to list its directory."""
        self._check_access(path)
        kind: str = yield Work(partial(self._server.holding.kind_at, path))
        return kind

    def _facts(self) -> Steps[dict[str, Any]]:
        """Returns the state of the server and of all open queues that the user may look at."""
        every: list[Served] = yield Work(self._server.holding.all)
        seen = [each for each in every if self._may_look(each.name)]
        counts = {each.name: (each.written, each.taken) for each in seen}
        queues = yield Work(lambda: [facts_of(each, *counts[each.name]) for each in seen])
        up = time.monotonic() - self._server.began
        return {"clients": self._server.clients, "up_seconds": up, "queues": queues}

    def _may_look(self, name: str) -> bool:
        try:
            self._server.access.check(self.user, name, "info")
        except PermissionError:
            return False
        return True

    def _retire(self) -> Steps[bool]:
        """Ends a server that a client has started, for one that is to stay; says whether it does.

        The user of the server may, nobody else.
        """
        self._server.access.check(self.user, "", "retire")
        return self._server.retire()
        yield

    def _had_left(self, target: Any, life: str, numbers: list[int]) -> Steps[list[bool] | None]:
        """Says which entries of a fifo a server that was killed had removed; None if unknown."""
        if life != target.options.before:
            return None
        left: list[bool] = yield from target.queue._had_left(numbers)
        return left

    def _close(self, number: int) -> Steps[None]:
        """Ends what is under way for a number, gives back what the client holds, and forgets it."""
        held = [each for each, owner in self._owners.items() if owner == number and each != number]
        for request_id, target in list(self._targets.items()):
            if target == number or target in held:
                self._tasks[request_id].cancel()
        for each in held:
            yield from self._give_back(each)
        yield from self._give_back(number)

    def _done(self, request: Request, task: Task, result: Any, error: BaseException | None) -> None:
        """Answers a request that is over."""
        self._tasks.pop(request.id, None)
        self._targets.pop(request.id, None)
        if isinstance(error, Cancelled):
            self._answer(Answer(request.id, Status.CANCELLED))
        elif error is not None:
            self._fail(request.id, error)
        elif self.closed:
            self._take_back(request, result)
        else:
            try:
                self._answer(Answer(request.id, Status.DONE, self._packed(request, result)))
                self._count_records(request, result)
            except Exception as unpackable:
                # What it has taken goes back; the client will not see it.
                self._cancel(request.id)
                self._fail(request.id, unpackable)

    def _packed(self, request: Request, result: Any) -> Any:
        """Returns a result as it is sent; keeps what stays here."""
        if hasattr(result, "finish") and hasattr(result, "give_back"):
            lent = _Lent(result)
            number = self._keep(lent, request.target)
            self._note(request.id, lambda: self._undo(number, lent))
            value = result.value
            if lent.is_popping:
                # Only what the client needs, as two lists: entries one by one would be much slower.
                value = [[entry.offset for entry in value], [entry.value for entry in value]]
            return VOCABULARY.pack(Handle(LOAN, number, value))
        name = type(result).__name__
        if name in OBJECTS:
            keep, tell = OBJECTS[name]
            number = self._keep(keep(result), request.target)
            self._note(request.id, lambda: self._drive(self._give_back(number)))
            return VOCABULARY.pack(Handle(name, number, tell(result)))
        if request.verb == "__iter__":
            return VOCABULARY.pack(Handle(ITERATOR, self._keep(Iteration(result), request.target)))
        if request.verb in LEASING:
            self._note_leases(request, result)
        elif request.verb in SETTLING:
            self._forget_leases(request)
        return VOCABULARY.pack(result)

    def _count_records(self, request: Request, result: Any) -> None:
        """Counts what went into a queue or out of it, for those who watch it."""
        served = self._objects.get(request.target)
        if not isinstance(served, Served):
            return
        group = class_of(request.verb)
        if group == WRITE and request.arguments:
            first = request.arguments[0]
            served.written += len(first) if isinstance(first, list) else 1
        elif group == TAKE and request.verb in _TAKING:
            taken = getattr(result, "value", getattr(result, "events", result))
            served.taken += len(taken) if isinstance(taken, list) else taken is not None

    def _keep(self, thing: Any, target: int = SERVER) -> int:
        self._numbers += 1
        self._objects[self._numbers] = thing
        if target != SERVER:
            self._owners[self._numbers] = self._owners.get(target, target)
        return self._numbers

    def _note(
        self,
        request_id: int,
        undo: Callable[[], None],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Notes how to take back what a request has taken, if it is cancelled late."""
        self._undoable[request_id] = undo, forget
        if len(self._undoable) > _UNDOABLE_MAX:
            self._undoable.popitem(last=False)[1][1]()

    def _forget(self, request_id: int) -> None:
        """Forgets how to take back: the client has what the request has taken."""
        undoable = self._undoable.pop(request_id, None)
        if undoable is not None:
            undoable[1]()

    def _undo(self, number: int, lent: _Lent) -> None:
        """Takes back a loan, unless it has ended since."""
        if self._objects.pop(number, None) is lent:
            del self._owners[number]
            self._drive(lent.undo())

    def _obey(self, request: Request) -> None:
        """Does what has no answer."""
        if len(request.arguments) != 1 or not isinstance(request.arguments[0], int):
            raise ProtocolError(f"{request.verb[:40]!r}: not a number")
        if request.verb == "cancel":
            self._cancel(request.arguments[0])
        elif request.verb == "settled":
            self._forget(request.arguments[0])
        elif request.verb == "close":
            self._drive(self._close(request.arguments[0]))
        elif request.verb == "posted":
            self._postings.wake(request.arguments[0])
        else:
            raise ProtocolError(f"a request of number 0 cannot be {request.verb[:40]!r}")

    def _cancel(self, request_id: int) -> None:
        task = self._tasks.get(request_id)
        undoable = self._undoable.pop(request_id, None)
        if task is not None:
            task.cancel()
        elif undoable is not None:
            undoable[0]()
        if undoable is not None:
            undoable[1]()

    def _take_back(self, request: Request, result: Any) -> None:
        """Gives back what an answer would have brought to a client that is gone."""
        with contextlib.suppress(Exception):
            self._packed(request, result)
        self._give_all_back()

    def _note_leases(self, request: Request, result: Any) -> None:
        """Notes what goes back when the client is gone; an explicit lease outlives it."""
        items = result if isinstance(result, list) else [result] if result is not None else []
        if not items:
            return
        if request.keywords.get("lease_seconds") is None:
            leases = self._leases.setdefault(request.target, {})
            leases.update((item.id, item) for item in items)
        queue = self._objects[request.target].queue
        self._note(request.id, partial(queue._take_back, items))

    def _forget_leases(self, request: Request) -> None:
        leases = self._leases.get(request.target, {})
        for argument in request.arguments[:1]:
            for item in argument if isinstance(argument, list) else [argument]:
                leases.pop(item if isinstance(item, int) else item.id, None)

    def _give_back(self, number: int) -> Steps[None]:
        """Gives back what stands under a number."""
        thing = self._objects.pop(number, None)
        self._owners.pop(number, None)
        if thing is None:
            return
        leases = self._leases.pop(number, {})
        for item in leases.values():
            # The lease ends now.
            with contextlib.suppress(LeaseLost, Closed):
                thing.queue._touch(item, 0)
        if isinstance(thing, _Lent):
            yield from thing.give_back()
        elif hasattr(thing, "nack"):
            with contextlib.suppress(Closed, LeaseLost):
                yield from type(thing).nack.steps(thing)
        elif hasattr(thing, "queue"):
            self._postings.leave(number)
            yield Work(partial(self._server.holding.release, thing))
        else:
            yield Work(thing.close)

    def _give_all_back(self) -> None:
        """Gives back everything, the queues last."""
        for number in sorted(self._objects, key=lambda each: self._owners.get(each) == each):
            self._drive(self._give_back(number))

    def _drive(self, steps: Steps[None]) -> None:
        """Drives steps that nobody waits for."""
        Task(self._loop, steps, self._told).start()

    def _told(self, task: Task, result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Closed):
            _logger.error("%s: could not give back: %s", self._peer, error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        try:
            self._answer(Answer(request_id, Status.FAILED, VOCABULARY.pack(error)))
        except Exception as unpackable:
            refusal = ProtocolError(f"{type(error).__name__}, which cannot be sent: {unpackable}")
            self._answer(Answer(request_id, Status.FAILED, VOCABULARY.pack(refusal)))

    def _answer(self, answer: Answer) -> None:
        """Sends an answer at the end of the turn; raises if it cannot be sent."""
        if self.closed:
            return
        data = frame(CODEC.encode(answer))
        VOCABULARY.relax()
        self._output.append(data)
        self._output_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.at_end(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._output and not self.closed:
            self._send()

    def _send(self) -> None:
        """Sends what the socket takes; the rest goes when it can be written again."""
        sent = 0
        try:
            data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
            with contextlib.suppress(BlockingIOError):
                sent = self._connection.send(data)
        except (OSError, MemoryError):
            self.close()
            return
        if sent:
            self._moved = time.monotonic()
        # Not copied: it may be large, and go in many parts.
        self._output = [memoryview(data)[sent:]] if sent < len(data) else []
        self._output_bytes = len(data) - sent
        if self._output:
            self._be_patient()
        self._watch()
        self._go_on()

    def close(self) -> None:
        """Ends the session; what the client holds goes back."""
        if self.closed:
            return
        self.closed = True
        self._server.received_bytes -= self._counted
        if self._patience is not None:
            self._patience.cancel()
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        for task in list(self._tasks.values()):
            task.cancel()
        while self._undoable:
            self._undoable.popitem()[1][1]()
        self._give_all_back()
        self._server.forget(self)


class _Lent:
    """A loan that a client holds."""

    def __init__(self, loan: Any) -> None:
        self._loan = loan

    def steps_of(self, verb: str, arguments: list[Any], keywords: dict[str, Any]) -> Steps[None]:
        """Returns the steps that end it; raises `AttributeError` or `TypeError`, and it stays."""
        verbs: dict[str, Callable[..., Steps[None]]]
        verbs = {"finish": self._loan.finish, "give_back": self.give_back}
        if verb not in verbs:
            raise AttributeError(f"a loan has no verb {verb!r}")
        return verbs[verb](*arguments, **keywords)

    def give_back(self, reason: BaseException | None = None) -> Steps[None]:
        """Gives it back."""
        yield from self._loan.give_back(reason or Lost("its client has gone"))

    @property
    def is_popping(self) -> bool:
        """Whether it can still be taken back after it was finished."""
        return hasattr(self._loan, "forget")

    def undo(self) -> Steps[None]:
        """Takes it back: the client has not seen it."""
        with contextlib.suppress(Closed):
            if hasattr(self._loan, "undo"):
                self._loan.undo()
            else:
                yield from self._loan.give_back(Lost("its client did not want it any more"))

    def forget(self) -> None:
        """Says that the client has it."""
        self._loan.forget()


def _given(request: Request) -> tuple[list[Any], dict[str, Any]]:
    return request.arguments, request.keywords
