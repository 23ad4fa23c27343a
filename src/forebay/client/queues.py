"""The classes of shared queues: those of the public queues, with requests for verbs.

`class_of(Fifo)` is a subclass of `Fifo` whose verbs keep their signatures and docstrings; their
steps send a request and wait for its answer. It is made from the verbs of the class, like the
asyncio queues, so that no verb is written twice. A handle belongs to no process: it connects when
it is used, also in the child of a fork and after it was pickled; and it connects anew when its
server has ended.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import forebay
from forebay.client import finding
from forebay.client.connection import Connection, Pending, sent
from forebay.client.consuming import SharedConsumer
from forebay.client.posting import (
    Posting,
    flush,
    post_elsewhere,
    post_to_fifo,
    post_to_log,
)
from forebay.errors import Closed, Empty, InvalidOption, NotAQueue, ServerGone
from forebay.exchange import ITERATOR, LOAN, verbs_of
from forebay.queues.kinds import KINDS, Kind, kind_named, sure_kind_of
from forebay.queues.log.consumer import Start
from forebay.queues.shared.handle import Closing, Handle
from forebay.queues.shared.names import SERVER_LOG
from forebay.queues.shared.options import Duration, as_seconds
from forebay.queues.shared.verbs import Loan, Steps, Work, run, with_steps
from forebay.storage.filesystem import DiskFilesystem
from forebay.wire.messages import SERVER
from forebay.wire.values import Handle as Stays

# Options of the process that owns a queue, which is not this one.
_OF_THE_OWNER = ("background", "clock", "filesystem")
_ITERATED = 100
# How often to start a server that ends at once.
_TRIES = 5


class _Connections:
    """The connections of this process, by directory; a child of a fork begins without any."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._by_directory: dict[tuple[int, int], Connection] = {}

    def get(self, path: str) -> Connection:
        """Returns a connection to the server of a queue; raises `NotAQueue`."""
        path = finding.home(path)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise NotAQueue(f"{path} is gone") from None
        with self._mutex:
            # By identity: the directory may have been moved, and another one may be in its place.
            identity = found.st_dev, found.st_ino
            connection = self._by_directory.get(identity)
            if connection is None or not connection.is_alive:
                connection = self._by_directory[identity] = self._made(path)
            return connection

    def drop_all(self) -> None:
        """Starts over in the child of a fork."""
        self._mutex = threading.Lock()
        for connection in self._by_directory.values():
            connection.forget()
        self._by_directory = {}

    def end_all(self) -> None:
        """Ends all connections."""
        with self._mutex:
            left, self._by_directory = list(self._by_directory.values()), {}
        for connection in left:
            connection.give_up(ServerGone("this process has ended its connections"))

    @staticmethod
    def _made(path: str) -> Connection:
        for _ in range(_TRIES):
            with contextlib.suppress(ServerGone):
                return Connection.made(finding.connect(path))
            # It ended just now, for want of clients, or was stopped.
        raise ServerGone(f"{path}: its server ends as soon as it begins; see {path}/{SERVER_LOG}")


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.drop_all)


def kind_at(path: str | os.PathLike[str]) -> Kind:
    """Returns the kind of a queue that is to be shared; in a root, its server knows it."""
    if finding.home(path) == os.fspath(path):
        return sure_kind_of(path)
    path = os.path.abspath(path)
    _, pending = sent(lambda: (_connections.get(path), SERVER), "kind", path)
    pending.settle()
    return kind_named(pending.result)


def retire(path: str) -> bool:
    """Asks the server of a directory to end, if a client has started it; True if there is none."""
    return _asked_alone(path, "retire") is not False


def facts(path: str) -> dict[str, Any] | None:
    """Returns what the server of a directory tells about itself and its queues; None without it."""
    found: dict[str, Any] | None = _asked_alone(path, "facts")
    return found


def _asked_alone(path: str, verb: str) -> Any:
    """Asks the server of a directory by a connection for this alone; None if there is no server."""
    connected = finding.knock(path)
    if connected is None:
        return None
    # It may end just now.
    with contextlib.suppress(ServerGone):
        connection = Connection.made(connected)
        try:
            asked = connection.call(SERVER, verb)
            asked.settle()
            return asked.result
        finally:
            connection.give_up(Closed("it was asked one thing"))
    return None


def disconnect() -> None:
    """Ends the connections of this process; the next call of a shared queue makes a new one."""
    _connections.end_all()


class Remote:
    """Something that stays on a server, and the number under which this process knows it."""

    _at: tuple[Connection, int] | None = None

    def _reopen(self) -> tuple[Connection, int]:
        """Returns the connection, and a number that it knows."""
        raise NotImplementedError

    def _reached(self) -> tuple[Connection, int]:
        at = self._at
        if at is None or not at[0].is_alive:
            at = self._at = self._reopen()
        return at

    def _call(self, verb: str, *arguments: Any, **keywords: Any) -> tuple[Connection, Pending]:
        """Sends a request, to another server if the one of before has ended."""
        return sent(self._reached, verb, *arguments, **keywords)

    def _ask(self, verb: str, *arguments: Any, **keywords: Any) -> Steps[Any]:
        """Sends a request; returns its result."""
        connection, pending = self._call(verb, *arguments, **keywords)
        return self._made(connection, (yield from _answer(pending)))

    def _made(self, connection: Connection, result: Any) -> Any:
        """Makes what an answer has named."""
        if not isinstance(result, Stays):
            return result
        if result.name == LOAN:
            return RemoteLoan(connection, result)
        if result.name == ITERATOR:
            return RemoteIteration(self, connection, result)
        return _stand_in(result.name)(self, connection, result)


def _answer(pending: Pending) -> Steps[Any]:
    """Waits for an answer; has the server undo what the request did if the wait is cancelled."""
    try:
        yield pending
    except BaseException as error:
        if error is not pending.error:
            pending.abandon()
        raise
    return pending.result


class RemoteLoan(Loan[Any]):
    """What the server has lent to this process."""

    def __init__(self, connection: Connection, lent: Stays) -> None:
        self.connection = connection
        self._lent = lent

    @property
    def value(self) -> Any:
        """What is lent."""
        return self._lent.value

    def finish(self) -> Steps[None]:
        """Removes it from the queue for good."""
        yield from _answer(self.connection.call(self._lent.number, "finish"))

    def settle(self) -> Steps[None]:
        """Removes what this process pops; if that fails or is cancelled, the server takes it back.

        Until it knows that the answer has come, it keeps what it would take back.
        """
        finishing = self.connection.call(self._lent.number, "finish")
        yield from _answer(finishing)
        self.connection.tell("settled", finishing.id)

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts it back."""
        yield self.connection.call(self._lent.number, "give_back", error)


class RemoteQueue(Remote, Handle):
    """What all shared queues have in common."""

    _kind: Kind
    _posting: Posting
    _ttl_seconds = 0

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Connects, and opens the queue there; raises what opening it raises."""
        # An unknown option is refused as in any constructor.
        inspect.signature(self._kind.queue_class).bind(path, **options)
        del options["shared"]
        self._begin(os.path.abspath(path), options, create=True)

    def _begin(self, path: str, options: dict[str, Any], *, create: bool) -> None:
        for name in _OF_THE_OWNER:
            if options.pop(name, None) is not None:
                raise InvalidOption(f"{name} has no meaning for a shared queue: its server has it")
        self.path = path
        self._given = {name: _plain(value) for name, value in options.items()}
        # Before anything is written into the directory.
        self._kind.options_class(**self._given)
        self._create = create
        # What the servers called their opening of the queue.
        self._lives: weakref.WeakKeyDictionary[Connection, str] = weakref.WeakKeyDictionary()
        self._consumers: weakref.WeakSet[SharedConsumer] = weakref.WeakSet()
        self._opening = threading.Lock()
        verb, mapped = _POSTING[self._kind.queue]
        self._posting = Posting(self, verb, mapped=mapped)
        self._closed = False
        # What is in a root, its server makes.
        if create and finding.home(path) == path:
            readable = bool(options.get("group_readable"))
            directory = DiskFilesystem().open_directory(path, create=True, group_readable=readable)
            with contextlib.closing(directory):
                assert self._kind.names is not None
                self._kind.names.refuse_foreign(directory, directory.names())
        self._reached()

    def _reopen(self) -> tuple[Connection, int]:
        with self._opening:
            if self._closed:
                raise Closed(f"{self.path} is closed")
            if self._at is not None and self._at[0].is_alive:
                return self._at
            connection, opened = self._opened()
            # A server that was started anew must find the queue, not make another one.
            self._create = False
            self._at = connection, opened.number
            self._options = opened.value["options"]
            self._ttl_seconds = self._options.get("ttl_seconds", 0)
            self._posting.attach(connection, opened.number)
            self._lives[connection] = opened.value["life"]
            return self._at

    def _opened(self) -> tuple[Connection, Stays]:
        """Has a server open the queue; another one if it is killed meanwhile."""
        for _ in range(_TRIES):
            with contextlib.suppress(ServerGone):
                connection, pending = sent(
                    lambda: (_connections.get(self.path), SERVER),
                    *("open", self.path, self._kind.name, self._given),
                    create=self._create,
                )
                pending.settle()
                return connection, pending.result
        log = f"{finding.home(self.path)}/{SERVER_LOG}"
        raise ServerGone(f"{self.path}: its servers are killed; see {log}")

    @property
    def options(self) -> Any:
        """The options of the queue, as its first client gave them."""
        return self._kind.options_class(**self._options)

    def close(self) -> None:
        """Gives back what this handle holds; the last one closes the queue."""
        if self._closed:
            return
        for consumer in list(self._consumers):
            consumer.close()
        self._posting.close()
        with self._opening:
            self._closed = True
            at, self._at = self._at, None
        if at is not None:
            at[0].release(at[1])

    def maintain(self) -> None:
        """Does nothing: the server does the work that is due."""

    def __del__(self) -> None:
        if self._at is not None:
            self._posting.close()
            self._at[0].tell("close", self._at[1])
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._kind.name, self.path, self._given)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "shared"
        return f"<{self._kind.queue} {self.path}, {state}>"

    def _end(self) -> None:
        """Has no use: `close` is replaced."""

    def _refuse(self, error: Closed) -> None:
        """Has no use: nothing of the queue is in this process."""

    def _abandon(self, error: Closed) -> None:
        """Has no use: a handle may be used in the child of a fork."""


class RemoteObject(Remote):
    """What a verb of a shared queue has named: a consumer, a batch of events."""

    def __init__(self, parent: Remote, connection: Connection, named: Stays) -> None:
        self._parent = parent
        self._at = connection, named.number
        self.events = named.value

    def _reopen(self) -> tuple[Connection, int]:
        raise Closed(f"{type(self).__name__}: its server has ended, and what it held came back")


def _reopened(kind: str, path: str, options: dict[str, Any]) -> Any:
    """Makes a handle that was pickled; the queue must be there."""
    found = class_of(kind_named(kind).queue_class)
    queue = object.__new__(found)
    queue._begin(path, options, create=False)
    return queue


@cache
def class_of(queue: type[Any]) -> type[Any]:
    """Returns the class of the shared queues of a public class."""
    kind = next((each for each in KINDS if each.queue == queue.__name__), None)
    if kind is None or kind.names is None:
        raise InvalidOption(f"shared = True: {queue.__name__} cannot be shared")
    members = _members(queue, own=_OWN.get(queue.__name__, {}))
    return type(f"Shared{queue.__name__}", (RemoteQueue, queue), {**members, "_kind": kind})


@cache
def _stand_in(name: str) -> type[RemoteObject]:
    """Returns the class of what stays on the server, by the name of its public class."""
    public = getattr(forebay, name)
    members = _members(public, own=_OWN.get(name, {}))
    return type(f"Shared{name}", (RemoteObject, public), members)


def _members(public: type, own: dict[str, Any]) -> dict[str, Any]:
    verbs = {name: _asking(name, member) for name, member in verbs_of(public).items()}
    verbs |= {name: _own(verbs_of(public)[name], steps) for name, steps in own.items()}
    kept = {name: verbs[name] for name in verbs if name not in _LOCAL.get(public.__name__, ())}
    return {**kept, "__module__": __name__}


def _own(verb: Any, steps: Any) -> Any:
    """Returns a verb with its own steps; one that has a short way is a method already."""
    if not hasattr(steps, "steps"):
        return with_steps(verb, steps)
    for name in ("__name__", "__qualname__", "__doc__", "__signature__"):
        setattr(steps, name, getattr(verb, name))
    return steps


def _asking(name: str, member: Any) -> Any:
    """Returns a verb that asks the server, with the signature and docstring of the verb."""

    def steps(self: Remote, /, *arguments: Any, **keywords: Any) -> Steps[Any]:
        return self._ask(name, *arguments, **keywords)

    if isinstance(member, property):
        return property(lambda self: run(steps(self)), doc=member.__doc__)
    if name == "__iter__":
        return _iterate
    return with_steps(member, steps)


class RemoteIteration(RemoteObject, Closing):
    """An iterator on the server."""

    def close(self) -> None:
        """Ends it."""
        at, self._at = self._at, None
        if at is not None:
            at[0].release(at[1])


def _iterate(self: Remote) -> Iterator[Any]:
    """Goes over what the server iterates, some at a time."""
    with run(self._ask("__iter__")) as found:
        while some := run(found._ask("next", _ITERATED)):
            yield from some


def _consumer(self: RemoteQueue, name: str, *, start: Start = "earliest") -> Steps[SharedConsumer]:
    """Has the server hold the name, and reads by itself."""

    def claim() -> tuple[Connection, Stays]:
        connection, pending = self._call("consumer", name, start=start)
        pending.settle()
        return connection, pending.result

    consumer: SharedConsumer = yield Work(
        lambda: SharedConsumer(claim, self.path, name), SharedConsumer.close
    )
    self._consumers.add(consumer)
    return consumer


def _pop_many(self: RemoteQueue, count: int, timeout: Duration | None = None) -> Steps[list[bytes]]:
    """Takes entries by a loan: they stay lent until this process has them."""
    try:
        loan = yield from self._ask("popping", count, timeout)
    except Empty:
        if timeout is not None:
            raise
        return []
    try:
        yield from loan.settle()
    except ServerGone:
        return (yield from _popped_before(self, loan))
    values: list[bytes] = loan.value[1]
    return values


def _popped_before(self: RemoteQueue, loan: RemoteLoan) -> Steps[list[bytes]]:
    """Returns what a server had removed for this process before it was killed.

    The rest is in the queue again. Raises `ServerGone` if that is all, or if it is unknown.
    """
    life = self._lives.get(loan.connection)
    numbers, values = loan.value
    had_left = yield from self._ask("had_left", life, numbers)
    if not had_left or not any(had_left):
        raise ServerGone("the server ended during the call: what it was to return is in the queue")
    return [value for value, gone in zip(values, had_left, strict=True) if gone]


def _pop(self: RemoteQueue, timeout: Duration | None = None) -> Steps[bytes | None]:
    values = yield from _pop_many(self, 1, timeout)
    return values[0] if values else None


def _get(self: RemoteQueue, block: bool = True, timeout: Duration | None = None) -> Steps[bytes]:
    patience = 0 if not block else math.inf if timeout is None else timeout
    (value,) = yield from _pop_many(self, 1, patience)
    return value


def _plain(value: Any) -> Any:
    """Returns an option as the server compares it."""
    return os.fspath(value) if isinstance(value, os.PathLike) else as_seconds(value)


# Verbs of which a client needs more than one request.
_OWN: dict[str, dict[str, Callable[..., Any]]] = {
    "BeatsQueue": {"post": post_elsewhere, "flush": flush},
    "DeadlineQueue": {"post": post_elsewhere, "flush": flush},
    "Log": {"consumer": _consumer, "post": post_to_log, "flush": flush},
    "Fifo": {
        "get": _get,
        "pop": _pop,
        "pop_many": _pop_many,
        "post": post_to_fifo,
        "flush": flush,
    },
}
# What takes the place of a post over the socket, and whether a client's file can.
_POSTING = {
    "BeatsQueue": ("put", False),
    "DeadlineQueue": ("enqueue", False),
    "Fifo": ("push", True),
    "Log": ("append", True),
}
# What a stand-in has itself.
_LOCAL = {"EventBatch": ("__iter__", "__len__")}
