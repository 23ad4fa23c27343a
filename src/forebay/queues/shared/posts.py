"""What was posted and is not durable yet: puts whose callers do not wait for the disk.

A post is a put up to the point where it would wait for the disk. From then on one of the threads of
the group commit waits in its place, for all posts together, so that they become durable without
anybody waiting; `flush` waits for that.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

from forebay.queues.shared.verbs import News, Steps, Work
from forebay.storage.commit import Ticket


class Posts:
    """The posts of one queue. Any thread may call it."""

    def __init__(self) -> None:
        self.tickets = itertools.count(1)
        # Guards everything below. Nothing slow is done while it is held.
        self._mutex = threading.Lock()
        # What all posts together wait for, and whether somebody waits for it.
        self._last: Ticket | None = None
        self._awaited = False
        self._error: BaseException | None = None

    def begin(self, steps: Steps[Any]) -> Steps[int]:
        """Takes the steps of a put until they would wait for the disk; returns a ticket."""
        try:
            wait = next(steps)
            while isinstance(wait, News | Work):
                try:
                    answer = yield wait
                except BaseException as error:
                    wait = steps.throw(error)
                else:
                    wait = steps.send(answer)
        except StopIteration:
            return next(self.tickets)
        assert isinstance(wait, Ticket)
        self._add(wait)
        steps.close()
        return next(self.tickets)

    def settle(self) -> Steps[None]:
        """Waits until all that was posted is durable; raises what prevented it, once."""
        while True:
            with self._mutex:
                error, self._error = self._error, None
                last = self._last
            if error is not None:
                raise error.with_traceback(None)
            if last is None:
                return
            try:
                yield last
            except Exception:
                with self._mutex:
                    self._last = self._error = None
                raise
            with self._mutex:
                if self._last is last:
                    self._last = None

    def _add(self, ticket: Ticket) -> None:
        with self._mutex:
            last = self._last
            # The epoch of the oldest: a failed write of any of them is then found.
            self._last = ticket if last is None else ticket._replace(epoch=last.epoch)
            wait, self._awaited = not self._awaited, True
        if wait:
            self._wait(ticket)

    def _wait(self, ticket: Ticket) -> None:
        ticket.notify(partial(self._settled, ticket))

    def _settled(self, ticket: Ticket, error: BaseException | None) -> None:
        with self._mutex:
            last = self._last
            if error is not None:
                self._error, self._last = error, None
            elif last is not None and last.end <= ticket.end:
                self._last = None
            last = self._last
            self._awaited = last is not None
        if last is not None:
            self._wait(last)
