"""A connection to a server: requests and their answers, for any number of threads and tasks.

One thread at a time receives for all: the first that waits. Before it goes on with its own answer
it hands this over to another one that waits. For callers that cannot wait, such as an event loop, a
thread of the process receives.

An exception of a signal handler, such as Ctrl-C, may come while a thread sleeps; that does no harm.
If it comes while what was received is taken apart, the connection is given up: the next call makes
a new one.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import forebay
from forebay.errors import Closed, ForebayError, ProtocolError, ServerGone
from forebay.exchange import CODEC, VOCABULARY
from forebay.storage.commit import Alarm
from forebay.storage.workers import Workers
from forebay.wire.frames import FrameReader, frame
from forebay.wire.messages import PROTOCOLS, SERVER, Request, Status

_RECEIVED_BYTES = 1 << 18
_receivers = Workers("forebay client", 4)
_NoResult = object()


class NotSent(ServerGone):
    """The server had ended before the request was sent: it can be sent to another one."""


class Pending:
    """The answer to a request, to come; a wait of the steps of a verb."""

    __slots__ = ("_alarm", "_call", "_connection", "_error", "_result", "id")

    def __init__(self, connection: Connection, id: int) -> None:
        self._connection = connection
        self.id = id
        self._result: Any = _NoResult
        self._error: BaseException | None = None
        self._alarm: Alarm | None = None
        self._call: Callable[[BaseException | None], None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the answer is there."""
        return self._result is not _NoResult or self._error is not None

    @property
    def error(self) -> BaseException | None:
        """The error that the answer brought."""
        return self._error

    @property
    def is_settled(self) -> bool:
        """Whether the answer is there; raises the error that it brought."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._result is not _NoResult

    @property
    def result(self) -> Any:
        """What the answer brought."""
        return self._result

    def settle(self) -> None:
        """Returns when the answer is there; raises the error that it brought."""
        if not self.is_over:
            self._connection.wait(self)
        if self._error is not None:
            raise self._error.with_traceback(None)

    def notify(self, call: Callable[[BaseException | None], None]) -> None:
        """Calls back when the answer is there, on any thread."""
        if not self._connection.call_back(self, call):
            call(self._error)

    def abandon(self) -> None:
        """Cancels the request: nobody waits for the answer any more."""
        self._connection.cancel(self.id)


def sent(
    reach: Callable[[], tuple[Connection, int]], verb: str, *arguments: Any, **keywords: Any
) -> tuple[Connection, Pending]:
    """Sends a request to what `reach` returns, which is asked again if that has ended."""
    while True:
        connection, target = reach()
        with contextlib.suppress(NotSent):
            return connection, connection.call(target, verb, *arguments, **keywords)


class Connection:
    """A connection to the server of one directory. Any thread may call it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._sending = threading.Lock()
        # Guards everything below. Nothing slow is done while it is held.
        self._mutex = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._waiting: list[Pending] = []
        self._receiving = False
        self._called_for = False
        self._frames = FrameReader()
        self._last_id = 0
        self._untold: deque[tuple[str, int]] = deque()
        self._error: ForebayError | None = None

    @classmethod
    def made(cls, connected: socket.socket) -> Connection:
        """Agrees with the server on a version of the protocol."""
        connection = cls(connected)
        try:
            connection.call(SERVER, "hello", *PROTOCOLS, forebay.__version__).settle()
        except BaseException:
            connection.give_up(ServerGone("the server did not answer the first request"))
            raise
        return connection

    @property
    def is_alive(self) -> bool:
        """Whether requests can be sent, as far as is known."""
        return self._error is None

    def call(self, target: int, verb: str, *arguments: Any, **keywords: Any) -> Pending:
        """Sends a request and returns its answer to come. Raises `NotSent`, or `ServerGone`."""
        pack = VOCABULARY.pack
        packed = [pack(argument) for argument in arguments]
        named = {name: pack(argument) for name, argument in keywords.items()}
        with self._mutex:
            self._check()
            self._last_id += 1
            pending = self._pending[self._last_id] = Pending(self, self._last_id)
        try:
            self._send(Request(pending.id, target, verb, packed, named))
        except BaseException:
            with self._mutex:
                self._pending.pop(pending.id, None)
            raise
        return pending

    def release(self, number: int) -> None:
        """Gives back what a number stands for, and waits for that; a server that ended has it."""
        with contextlib.suppress(ServerGone):
            self.call(SERVER, "close", number).settle()

    def cancel(self, id: int) -> None:
        """Cancels a request, also one that was answered meanwhile."""
        with self._mutex:
            self._pending.pop(id, None)
        with contextlib.suppress(ForebayError):
            self._send(Request(0, SERVER, "cancel", [id]))

    def tell(self, verb: str, number: int) -> None:
        """Sends what has no answer. It may be called in the middle of a call: it takes no lock."""
        self._untold.append((verb, number))
        self._send_untold()

    def _send_untold(self) -> None:
        while self._untold and self._error is None:
            # Whoever sends looks here when it has sent.
            if not self._sending.acquire(blocking=False):
                return
            try:
                while self._untold:
                    verb, number = self._untold.popleft()
                    self._socket.sendall(frame(CODEC.encode(Request(0, SERVER, verb, [number]))))
            except OSError:
                # The server gives everything back.
                return
            except BaseException:
                # A part of the frame may be on its way.
                self._lose(None)
                raise
            finally:
                self._sending.release()

    def wait(self, pending: Pending) -> None:
        """Returns when a request is answered."""
        alarm = pending._alarm = Alarm()
        while True:
            with self._mutex:
                if pending.is_over:
                    return
                leads = not self._receiving
                if leads:
                    self._receiving = True
                elif pending not in self._waiting:
                    self._waiting.append(pending)
            if not leads:
                try:
                    alarm.wait()
                except BaseException:
                    self._pass_on(pending)
                    raise
                continue
            try:
                while not pending.is_over:
                    self._receive()
            finally:
                self._stop_receiving()

    def call_back(self, pending: Pending, call: Callable[[BaseException | None], None]) -> bool:
        """Has a call made when a request is answered; False if it is answered already."""
        with self._mutex:
            if pending.is_over:
                return False
            pending._call = call
            starts, self._called_for = not self._called_for, True
        if starts:
            try:
                _receivers.submit(self._receive_for_calls)
            except MemoryError:
                with self._mutex:
                    self._called_for = False
                raise
        return True

    def give_up(self, error: ForebayError) -> None:
        """Ends the connection: all that is under way raises the error."""
        with self._mutex:
            if self._error is None:
                self._error = error
            left, self._pending = list(self._pending.values()), {}
        # Wakes the thread that receives, which may be another one.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for pending in left:
            self._end(pending, _NoResult, error)
        self._close_if_unused()

    def forget(self) -> None:
        """Closes the descriptor in the child of a fork, whose parent goes on using it."""
        self._error = ServerGone("this connection belongs to the process before the fork")
        # Threads that no longer exist may hold the old ones.
        self._sending, self._mutex = threading.Lock(), threading.Lock()
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _receive_for_calls(self) -> None:
        """Receives as long as there are requests with a call."""
        alarm = Alarm()
        stand_in = Pending(self, 0)
        stand_in._alarm = alarm
        while True:
            with self._mutex:
                over = not any(each._call for each in self._pending.values())
                if over:
                    self._called_for = False
                leads = not self._receiving
                if leads:
                    self._receiving = True
                elif not over:
                    self._waiting.append(stand_in)
            if leads:
                try:
                    if not over:
                        self._receive()
                finally:
                    self._stop_receiving()
            elif not over:
                alarm.wait()
            if over:
                return

    def _receive(self) -> None:
        """Waits for something from the server, and takes it apart."""
        # Here a thread spends its time; an exception of a signal handler does no harm.
        self._poll.poll()
        try:
            self._take(self._socket.recv(_RECEIVED_BYTES))
        except (OSError, ProtocolError) as error:
            self._lose(error)
        except BaseException:
            # Part of what was received may be lost.
            self._lose(None)
            raise

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError
        self._frames.feed(data)
        while (body := self._frames.next()) is not None:
            answer = CODEC.decode_answer(body)
            with self._mutex:
                pending = self._pending.pop(answer.id, None)
            if answer.id == 0:
                # The server did not understand this client, and says why before it hangs up.
                raise ProtocolError(str(answer.result))
            if pending is None:
                continue
            if answer.status == Status.FAILED:
                self._end(pending, _NoResult, answer.result)
            elif answer.status == Status.CANCELLED:
                # Nobody waits for a request that was cancelled here: its handle was closed.
                self._end(pending, _NoResult, Closed("the queue was closed meanwhile"))
            else:
                self._end(pending, answer.result, None)

    def _lose(self, error: Exception | None) -> None:
        if isinstance(error, ProtocolError):
            self.give_up(error)
            return
        self.give_up(
            ServerGone(
                "the server ended during the call: it may have been carried out or not; the next "
                "call starts another server"
            )
        )

    def _end(self, pending: Pending, result: Any, error: BaseException | None) -> None:
        with self._mutex:
            pending._error, pending._result = error, result
            call, alarm = pending._call, pending._alarm
            if pending in self._waiting:
                self._waiting.remove(pending)
        if alarm is not None:
            alarm.set()
        if call is not None:
            call(error)

    def _stop_receiving(self) -> None:
        """Lets another thread that waits receive."""
        with self._mutex:
            self._receiving = False
            heir = self._waiting.pop() if self._waiting else None
        self._close_if_unused()
        if heir is not None and heir._alarm is not None:
            heir._alarm.set()

    def _close_if_unused(self) -> None:
        """Closes the descriptor after the end, once no thread sleeps on it."""
        with self._sending, self._mutex:
            if self._error is not None and not self._receiving:
                self._socket.close()

    def _pass_on(self, pending: Pending) -> None:
        """Passes on the wake-up of a thread that does not wait any more."""
        with self._mutex:
            if pending in self._waiting:
                self._waiting.remove(pending)
                return
            receiving = self._receiving
        if not receiving:
            self._stop_receiving()

    def _send(self, request: Request) -> None:
        data = frame(CODEC.encode(request))
        sent = 0
        try:
            with self._sending:
                if self._error is None:
                    sent = self._socket.send(data)
                    if sent < len(data):
                        self._socket.sendall(data[sent:])
        except OSError:
            self._lose(self._last_words())
        except BaseException:
            # A part of the frame may be on its way: nothing can follow it.
            self._lose(None)
            raise
        if not sent:
            if isinstance(self._error, ProtocolError):
                raise self._error.with_traceback(None)
            raise NotSent("the server has ended")
        self._check()
        self._send_untold()

    def _last_words(self) -> ProtocolError | None:
        """Returns why the server has hung up, if it said so and no other thread will read it."""
        with self._mutex:
            if self._receiving:
                return None
            self._receiving = True
        try:
            self._take(self._socket.recv(_RECEIVED_BYTES, socket.MSG_DONTWAIT))
        except ProtocolError as error:
            return error
        except OSError:
            pass
        finally:
            with self._mutex:
                self._receiving = False
        return None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
