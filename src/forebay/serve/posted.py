"""The files of a session's client: what it posts is stored as it comes. Page: docs/protocol.md.

Only the thread of the loop uses them. A file is looked at again shortly after something was found
in it; after a while without anything the server asks the client to wake it, and sleeps.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from forebay.errors import Closed, ForebayError, Full, InvalidOption
from forebay.queues.shared.posted import Intake
from forebay.queues.shared.verbs import News, Steps
from forebay.queues.shared.waiting import ROOM, countdown
from forebay.serve.loop import Loop, Timer
from forebay.storage.commit import Ticket
from forebay.storage.posted import ROOM_BYTES, PostedFile, size_max

if TYPE_CHECKING:
    from forebay.serve.holding import Served

_logger = logging.getLogger(__name__)
# How long to gather, after something was found; and how long to look before going to sleep.
_GATHER_SECONDS = 0.001
_AWAKE_SECONDS = 0.005
# How long until what could not be stored is tried again.
_PAUSE_SECONDS = 0.1
# After so many records in one look there are more.
_MANY = 512
# While a queue is full, room may come without a change.
_ROOM_SECONDS = 1.0


class Posting:
    """What one client posts into one queue."""

    def __init__(self, loop: Loop, served: Served, name: str) -> None:
        """Opens the file of that name; raises if it cannot be used."""
        queue = served.queue
        if queue._intake is None:
            raise InvalidOption(f"{served.kind} queues take no posts from files")
        self._loop = loop
        self._served = served
        self._queue = queue
        self._intake: Intake = queue._intake
        self._file: PostedFile = self._intake.attach(name)
        self._timer: Timer | None = None
        self._ticket: Ticket | None = None
        self._committing = False
        self._trouble = ""
        self._ended = False
        self._found_at = time.monotonic()
        self._look()

    def wake(self) -> None:
        """Looks at once: its client has put something."""
        if self._timer is None and not self._committing and not self._ended:
            self._found_at = time.monotonic()
            self._look()

    def take_now(self) -> None:
        """Stores what is there, before a request of the same client is carried out."""
        end = self._file.note.place + self._file.room
        while not self._ended and self._file.note.place < end and self._take():
            pass

    def flushed(self, number: int, timeout: float | None, *, stored: bool) -> Steps[int]:
        """Waits until the record of a number is stored; returns how much of the file is taken.

        `stored`: as safe as the policy says; otherwise only taken out of the file.
        """
        seconds_left = countdown(self._queue._clock, timeout)
        end = self._file.note.place + self._file.room
        while self._file.number <= number:
            if self._ended:
                raise Closed("the queue was closed meanwhile")
            if self._take_some():
                if self._file.note.place >= end:
                    # Others come in between.
                    end = self._file.note.place + self._file.room
                    yield News(self._queue.changes, math.inf, ROOM, 0.0)
                continue
            if self._file.look() is None:
                raise InvalidOption(f"record {number} was not posted")
            if seconds_left() <= 0:
                raise Full(f"{self._queue.path} had no room in time; what was posted waits")
            yield News(self._queue.changes, seconds_left(), ROOM, _ROOM_SECONDS)
        if stored and self._ticket is not None:
            yield self._ticket
        self.wake()
        return self._file.note.place

    def leave(self) -> None:
        """Stores what is left; its client has gone, or has closed the queue."""
        if not self._ended:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
            self._intake.leave(self._file)

    def _look(self) -> None:
        """Stores what is there, and arranges the next look."""
        self._timer = None
        if self._ended:
            return
        count = self._take()
        now = time.monotonic()
        if count:
            self._found_at = now
        if self._ticket is not None:
            self._commit(self._ticket)
        elif self._trouble:
            self._timer = self._loop.later(_PAUSE_SECONDS, self._look)
        elif count > _MANY:
            self._timer = self._loop.later(0, self._look)
        elif now - self._found_at < _AWAKE_SECONDS:
            self._timer = self._loop.later(_GATHER_SECONDS, self._look)
        else:
            self._file.sleep()
            if self._file.look() is not None:
                # It came in between; its client may have seen nobody asleep.
                self._file.wake()
                self._timer = self._loop.later(0, self._look)

    def _take(self) -> int:
        """Stores what is there, as far as that is possible now."""
        try:
            count = self._take_some()
        except (ForebayError, OSError) as error:
            # Whoever waits for it gets the error; it stays in the file.
            self._tell(str(error))
            return 0
        stuck = not count and self._file.look() is not None
        self._tell("there is no room" if stuck else "")
        return count

    def _take_some(self) -> int:
        count, ticket = self._intake.take(self._file)
        self._served.written += count
        if ticket is not None:
            last = self._ticket
            # The epoch of the oldest: a failed write of any of them is then found.
            self._ticket = ticket if last is None else ticket._replace(epoch=last.epoch)
        return count

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _logger.warning("%s: posted records wait: %s", self._queue.path, trouble)
        self._trouble = trouble

    def _commit(self, ticket: Ticket) -> None:
        """Makes what was taken durable, then looks again: one sync for all that comes meanwhile."""
        self._committing = True

        def settled(error: BaseException | None) -> None:
            self._loop.post(partial(self._settled, ticket, error))

        self._loop.at_end(lambda: ticket.notify(settled))

    def _settled(self, ticket: Ticket, error: BaseException | None) -> None:
        self._committing = False
        if error is not None:
            self._tell(str(error))
        if error is not None or (self._ticket is not None and self._ticket.end <= ticket.end):
            self._ticket = None
        self._look()


class Postings:
    """The files of one client, by the number of its queue."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._by_number: dict[int, Posting] = {}

    def attach(self, number: int, served: Served, name: str) -> Steps[int]:
        """Opens a client's file; returns the size of the largest record for it."""
        if number in self._by_number:
            raise InvalidOption("a client has one file for a queue")
        self._by_number[number] = Posting(self._loop, served, name)
        return size_max(ROOM_BYTES)
        yield

    def flushed(self, number: int, record: int, stored: bool, timeout: float | None) -> Steps[int]:
        """Waits until a record of a client's file is stored; returns how much of it is taken."""
        if number not in self._by_number:
            raise InvalidOption("this client has no file for this queue")
        return self._by_number[number].flushed(record, timeout, stored=stored)

    def wake(self, number: int) -> None:
        """Looks at a file: its client has put something."""
        if number in self._by_number:
            self._by_number[number].wake()

    def take_now(self, number: int) -> None:
        """Stores what a client has posted, before its next request to the same queue."""
        if self._by_number and number in self._by_number:
            self._by_number[number].take_now()

    def leave(self, number: int) -> None:
        """Stores what is left in a file, whose client will put nothing more into it."""
        posting = self._by_number.pop(number, None)
        if posting is not None:
            posting.leave()
