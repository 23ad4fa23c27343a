"""Drives the steps of verbs on the loop of the server, as `aio` does on an asyncio loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.queues.shared.signal import Seat
from forebay.queues.shared.verbs import News, Steps, Wait, Work, leave
from forebay.serve.loop import Loop, Timer
from forebay.storage.workers import Workers

# At most so many long reads and openings run at the same time.
_workers = Workers("forebay serve", 8)


class Cancelled(BaseException):
    """Raised in the steps of a verb that nobody waits for any more."""


class Task:
    """A verb under way. Only `set` may be called from other threads."""

    def __init__(
        self,
        loop: Loop,
        steps: Steps[Any],
        done: Callable[[Task, Any, BaseException | None], None],
        count_work: Callable[[int], None] = lambda change: None,
    ) -> None:
        """`done` is called once, with the result or the error.

        `count_work` is called with 1 as a call goes to a thread, and with -1 when it is over.
        """
        self._loop = loop
        self._steps = steps
        self._done = done
        self._count_work = count_work
        self._seat: Seat | None = None
        self._timer: Timer | None = None
        # Counts the waits: what belongs to an earlier one is ignored.
        self._number = 0
        self._rung = False
        self._asleep = False
        self._work: Work | None = None
        self.cancelled = False

    @property
    def is_asleep(self) -> bool:
        """Whether it waits for a change of the queue that may never come."""
        return self._asleep

    def start(self) -> None:
        """Runs to the first wait, or to the end."""
        self._go_on(None, None)

    def cancel(self) -> None:
        """Cancels it: the verb gives back what it has taken. It may be over already."""
        if self.cancelled:
            return
        self.cancelled = True
        # A call on a thread runs to its end; what it has taken is then given back.
        if self._work is None:
            self._go_on(None, Cancelled())

    def set(self) -> None:
        """Wakes it: the queue has changed. Called with the lock of the queue held."""
        if not self._rung:
            self._rung = True
            self._loop.post(self._wake)

    def _wake(self) -> None:
        if self._asleep:
            self._rung = False
            self._go_on(None, None)

    def _go_on(self, answer: Any, error: BaseException | None) -> None:
        self._number += 1
        self._asleep = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            while True:
                if error is None:
                    wait = self._steps.send(answer)
                else:
                    wait = self._steps.throw(error)
                answer = error = None
                try:
                    if not self._must_wait(wait):
                        continue
                except BaseException as caught:
                    error = caught
                    continue
                return
        except StopIteration as stop:
            self._finish(stop.value, None)
        except BaseException as caught:
            self._finish(None, caught)

    def _must_wait(self, wait: Wait) -> bool:
        """Arranges that the steps go on when a wait is over; False if it is over already."""
        if isinstance(wait, Work):
            self._begin(wait)
            return True
        if isinstance(wait, News):
            return self._sleep(wait)
        if wait.is_settled:
            return False
        leave(self._seat)
        self._seat = None
        number = self._number

        def settled(error: BaseException | None) -> None:
            self._loop.post(lambda: self._settled(number, error))

        # At the end of the turn: one sync then serves all that was gathered in it.
        self._loop.at_end(lambda: wait.notify(settled))
        return True

    def _settled(self, number: int, error: BaseException | None) -> None:
        if number == self._number:
            self._go_on(None, error)

    def _sleep(self, news: News) -> bool:
        seat = self._seat
        if seat is None or seat.line != news.line:
            leave(seat)
            self._rung = False
            self._seat = Seat(news.changes, self, news.line)
            self._seat.join()
            # No change is missed from now on: look once more.
            return False
        if self._rung:
            self._rung = False
            return False
        number = self._number
        seconds = seat.seconds(news.give_up_in, news.look_in)
        self._timer = self._loop.later(seconds, lambda: self._settled(number, None))
        self._asleep = True
        return True

    def _begin(self, work: Work) -> None:
        self._work = work
        self._count_work(1)

        def run() -> None:
            try:
                result, error = work.call(), None
            except BaseException as caught:
                result, error = None, caught
            self._loop.post(lambda: self._worked(work, result, error))

        try:
            _workers.submit(run)
        except MemoryError as error:
            failure = error
            self._loop.post(lambda: self._worked(work, None, failure))

    def _worked(self, work: Work, result: Any, error: BaseException | None) -> None:
        self._work = None
        self._count_work(-1)
        if self.cancelled:
            if error is None:
                work.undo(result)
            error = Cancelled()
        self._go_on(result, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        leave(self._seat)
        self._seat = None
        self._done(self, result, error)
