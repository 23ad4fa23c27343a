"""What a client posts: into a file of its own where that is possible, else over the socket.

A record that is put into the file survives this process and the server: the server stores it, or
the next owner of the queue does. Page: docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from forebay.client.connection import Connection, Pending
from forebay.errors import Closed, ForebayError, ServerGone
from forebay.formats.entry import as_bytes, check_ttl
from forebay.kernels.buffers import PostedRecords
from forebay.queues.shared.options import Duration
from forebay.queues.shared.verbs import Run, Steps, Work, run, shortcut
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.posted import ASLEEP_AT, DATA_AT, ROOM_BYTES, ClientFile, size_max

if TYPE_CHECKING:
    from forebay.client.queues import RemoteQueue

# Of one queue, so many requests that nobody waits for are under way at a time.
_UNDER_WAY_MAX = 1024
# More than what the file of any kind has beside a record.
_FRAME_BYTES = 256
# How often to ask another server that is killed.
_TRIES = 5


class Posting:
    """What one handle posts. Any thread may call it; a child of a fork begins with nothing."""

    def __init__(self, queue: RemoteQueue, verb: str, *, mapped: bool) -> None:
        """`verb` is what takes the place of a post over the socket."""
        self._queue = weakref.ref(queue)
        self._verb = verb
        self._mapped = mapped
        self._closed = False
        self._begin()
        _postings.add(self)

    def _begin(self) -> None:
        self._file: ClientFile | None = None
        self._size_max = 0
        self.records = PostedRecords(threading.Lock(), self._ring)
        # Held while a file is made.
        self._making = threading.Lock()
        # What became of a file that a server did not find again.
        self._loss: ForebayError | None = None
        # Over the socket: the tickets of requests whose answers are to come.
        self._pending: deque[tuple[int, Pending]] = deque()
        self._sent = 0

    def post(self, value: Any, extra: int, timeout: Duration | None, **given: Any) -> Steps[int]:
        """Posts what did not go the short way: at first, without room, too large or empty."""
        if self._mapped and self._file is None:
            yield Work(self._make_file)
        if not self._mapped:
            return (yield from self._send(value, timeout, given))
        data = value if type(value) is bytes else as_bytes(value)
        if not 0 < len(data) <= self._size_max:
            # In its place: before each request the server stores what was posted.
            yield from self._alive()._ask(self._verb, data, timeout=timeout, **given)
            return self.records.number - 1
        while (ticket := self.records.put(data, extra)) is None:
            yield from self._await_room(timeout)
        return ticket

    def flush(self, ticket: int | None) -> Steps[None]:
        """Waits until all that was posted is stored, or all up to a ticket."""
        self._alive()
        loss, self._loss = self._loss, None
        if loss is not None:
            raise loss
        last = self.records.number - 1
        wanted = last if ticket is None else min(ticket, last)
        if self._file is not None and wanted > 0:
            yield from self._taken(wanted, stored=True, timeout=None)
        error: BaseException | None = None
        while self._pending and (ticket is None or self._pending[0][0] <= ticket):
            number, pending = self._pending[0]
            try:
                yield pending
            except Exception as caught:
                error = error or caught
            if self._pending and self._pending[0][0] == number:
                self._pending.popleft()
        if error is not None:
            raise error.with_traceback(None)

    def attach(self, connection: Connection, number: int) -> None:
        """Names the file to a server, which may be another one than before."""
        file = self._file
        if file is None:
            return
        try:
            connection.call(number, "attach", file.name).settle()
        except ServerGone:
            raise
        except ForebayError as error:
            # What was flushed is in the queue. The next post begins another file.
            self._drop()
            self._loss = error

    def close(self) -> None:
        """Ends it: what is in the file is the server's."""
        self._closed = True
        self._drop()

    def forget(self) -> None:
        """Starts over in the child of a fork: what was posted belongs to the parent."""
        self._drop()
        self._begin()

    def _drop(self) -> None:
        self.records.stop()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _make_file(self) -> None:
        with self._making:
            if self._file is not None or not self._mapped:
                return
            queue = self._alive()
            filesystem = DiskFilesystem()
            made = None
            # Another user can make no file there.
            with contextlib.suppress(PermissionError), contextlib.ExitStack() as stack:
                directory = filesystem.open_directory(queue.path)
                stack.callback(directory.close)
                made = ClientFile.make(directory, filesystem.boot_id())
            if made is None:
                self._mapped = False
                return
            try:
                connection, number = queue._reached()
                connection.call(number, "attach", made.name).settle()
            except BaseException:
                made.close()
                raise
            options = queue._options
            limits = [size_max(ROOM_BYTES), options.get("segment_bytes", ROOM_BYTES) - _FRAME_BYTES]
            if options.get("max_bytes") is not None:
                limits.append(options["max_bytes"] // 2 - _FRAME_BYTES)
            self._size_max = min(limits)
            self.records.use(made.mapping, DATA_AT, ASLEEP_AT, self._size_max, made.seed)
            self._file = made

    def _await_room(self, timeout: Duration | None) -> Steps[None]:
        """Waits until a part of the file is free again."""
        self._alive()
        file = self._file
        if file is None:
            raise self._loss or Closed("what was posted is lost")
        note = file.note()
        if note.place <= self.records.head:
            # Half of what is there, so that this process need not wait again soon.
            half = (note.number + self.records.number) // 2
            yield from self._taken(half, stored=False, timeout=timeout)
        else:
            self.records.free(note.place)

    def _taken(self, number: int, *, stored: bool, timeout: Duration | None) -> Steps[None]:
        """Waits until the server has taken a record; asks the next one if it is killed."""
        for left in reversed(range(_TRIES)):
            try:
                place = yield from self._alive()._ask("flushed", number, stored, timeout)
            except ServerGone:
                if not left:
                    raise
            else:
                self.records.free(place)
                return

    def _send(self, value: Any, timeout: Duration | None, given: dict[str, Any]) -> Steps[int]:
        """Sends a request, and does not wait for its answer."""
        if len(self._pending) >= _UNDER_WAY_MAX:
            yield from self.flush(self._pending[0][0])
        _, pending = self._alive()._call(self._verb, value, timeout=timeout, **given)
        self._sent += 1
        self._pending.append((self._sent, pending))
        return self._sent

    def _ring(self) -> None:
        """Wakes the server, or starts one. Called by `records`, in the middle of a post."""
        file = self._file
        try:
            connection, number = self._alive()._reached()
            connection.tell("posted", number)
        except (ForebayError, OSError):
            # The record is in the file. The next one tries again.
            if file is not None:
                file.sleep()

    def _alive(self) -> RemoteQueue:
        queue = self._queue()
        if queue is None or self._closed:
            raise Closed("the queue is closed" if queue is None else f"{queue.path} is closed")
        return queue


_postings: weakref.WeakSet[Posting] = weakref.WeakSet()


def _forget_all() -> None:
    for posting in list(_postings):
        posting.forget()


os.register_at_fork(after_in_child=_forget_all)


@shortcut
def post_to_log(
    self: RemoteQueue, value: Any, timeout: Duration | None = None, _run: Run[int] = run
) -> int:
    """Posts a record."""
    posting = self._posting
    ticket = posting.records.put(value, 0)
    return _run(posting.post(value, 0, timeout)) if ticket is None else ticket


@shortcut
def post_to_fifo(
    self: RemoteQueue,
    value: Any,
    *,
    ttl_seconds: Duration | None = None,
    timeout: Duration | None = None,
    _run: Run[int] = run,
) -> int:
    """Posts an entry."""
    posting = self._posting
    ttl = self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)
    ticket = posting.records.put(value, ttl)
    if ticket is not None:
        return ticket
    return _run(posting.post(value, ttl, timeout, ttl_seconds=ttl))


def post_elsewhere(
    self: RemoteQueue, value: Any, *, timeout: Duration | None = None, **given: Any
) -> Steps[int]:
    """Posts an item or an event."""
    return self._posting.post(value, 0, timeout, **given)


def flush(self: RemoteQueue, ticket: int | None = None) -> Steps[None]:
    """Waits for what was posted."""
    return self._posting.flush(ticket)
