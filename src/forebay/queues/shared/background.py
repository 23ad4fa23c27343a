"""Background work: one thread per process works for all queues.

The thread sleeps while nothing is due: a queue plans work when something changes, and an idle one
plans nothing. The thread starts with the first queue that needs it and ends with the last. Work
that fails is logged once and tried again, less and less often, and `state` reports it; a failure
does not end the thread. With `background=False` a queue does not use the thread: its `maintain`,
which the caller calls from time to time, does the same work.

Long work (a merge) calls `run_urgent_work` in between, so that other queues are drained and synced
in time.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.queues.shared.handle import Handle
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Directory, Doorbell, Watcher

DRAIN, SYNC, LOOK = "drain", "sync", "look"
# How long the mark of the durable end may lag behind when each change is synced at once.
MARK_SECONDS = 1.0
_DRAIN_SECONDS = 0.05
# How long after a change the chores of a queue are done.
LOOK_SECONDS = 1.0
# The pause after a failure; it doubles with each further failure.
_PAUSE_SECONDS = 0.5
_PAUSE_SECONDS_MAX = 30.0
_NAME = "forebay maintenance"

_logger = logging.getLogger(__name__)
_Queue = TypeVar("_Queue", bound=Handle)


class BackgroundOptions(Protocol):
    """The options of every queue that the background work reads."""

    @property
    def sync(self) -> str: ...
    @property
    def sync_interval_seconds(self) -> float: ...
    @property
    def background(self) -> bool: ...


class Background(ABC, Generic[_Queue]):
    """The background work of one queue. Any thread may call it.

    Knows when to drain, when to sync, and when to do the other work that a subclass plans.
    """

    def __init__(self, queue: _Queue, options: BackgroundOptions, clock: Clock) -> None:
        """Starts nothing: a subclass calls `_start` when it is complete."""
        # Wake the thread when the queue is garbage collected, however long it would have slept.
        self._queue = weakref.ref(queue, lambda _: self._wake())
        self._clock = clock
        self._due: dict[str, float] = {}
        self._name = f"forebay {queue.path}"
        self._sync_policy = options.sync
        self._sync_interval_seconds = options.sync_interval_seconds
        self._threaded = options.background
        self._worker: _Worker | None = None
        # Held while the thread works for this queue.
        self._working = threading.Lock()
        self._resume_at = -math.inf
        self._pause_seconds = _PAUSE_SECONDS
        self._trouble: str | None = None
        self._seen: object = None

    @property
    def planned(self) -> bool:
        """Whether the chores are planned: a change need not be noticed again."""
        return LOOK in self._due

    @property
    def state(self) -> str:
        """The state of the work, for `info`: it runs, it is off, or why it does not run."""
        worker = self._worker
        if worker is not None and worker.death is not None:
            return f"ended: {worker.death!r}"
        if self._trouble is not None:
            return f"fails: {self._trouble}"
        return "runs" if self._threaded else "off"

    def notice(self) -> None:
        """Plans the work that a change needs; raises if the thread has ended."""
        worker = self._worker
        if worker is not None and worker.death is not None:
            # Otherwise nothing would be synced, drained or trimmed any more, without any sign.
            raise Closed(f"the thread of {self._name} has ended and must be started by reopening")
        self.plan_chores()

    def plan_chores(self) -> None:
        """Plans the work that a change needs: to drain it, to sync it, and the chores after it."""
        if LOOK not in self._due:
            self._plan(LOOK, LOOK_SECONDS)
        self._plan_needed()

    def run_due(self) -> None:
        """Does everything that is due now."""
        queue = self._queue()
        if queue is None or queue._forgotten:
            return
        self.run_urgent()
        now = self._clock.monotonic()
        if self._comes_due(LOOK, now):
            self._look(queue)
            seen = self._activity()
            waits = queue._intake is not None and queue._intake.has_more
            if seen == self._seen and not waits:
                self._rest()
            else:
                self._due[LOOK] = now + LOOK_SECONDS
            self._seen = seen
        self._run_others(queue, now)
        self._plan_needed()

    def run_urgent(self) -> None:
        """Drains and syncs, if that is due."""
        now = self._clock.monotonic()
        if self._comes_due(DRAIN, now):
            self._drain()
        if self._comes_due(SYNC, now):
            self._sync()

    def stop(self) -> None:
        """Ends the work; returns when the thread no longer works for this queue."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave(self)
            if not worker.is_current:
                with self._working:
                    pass

    def watch(self, directory: Directory, *, writes: bool = False) -> bool:
        """Has `_on_news` called when a name appears in a directory, or with `writes` on writes too.

        Returns False if the directory cannot be watched.
        """
        worker = self._worker
        return worker is not None and worker.watch(self, directory, writes)

    def seconds_left(self) -> float:
        """Returns in how many seconds something is due; infinity if nothing is planned."""
        # A list: other threads plan meanwhile.
        soonest = min(list(self._due.values()), default=math.inf)
        return max(soonest, self._resume_at) - self._clock.monotonic()

    def is_over(self) -> bool:
        """Says whether the queue is gone."""
        queue = self._queue()
        return queue is None or queue._forgotten

    def work(self) -> None:
        """Does what is due; called by the thread. A failure is logged, and tried again later."""
        with self._working:
            if self._worker is None:
                return
            try:
                self.run_due()
                self._trouble, self._pause_seconds = None, _PAUSE_SECONDS
            except Closed:
                self._due.clear()
            except Exception as error:
                # A disk error also hits the next change, which raises it where it can be handled.
                # An unexpected error is reported only here.
                self._tell(error)
                self._pause()

    def work_urgently(self) -> None:
        """Drains and syncs, for a thread that is busy with another queue."""
        if not self._working.acquire(blocking=False):
            return
        try:
            if self._worker is not None:
                self.run_urgent()
        except Closed:
            self._due.clear()
        except Exception as error:
            self._tell(error)
            self._pause()
        finally:
            self._working.release()

    def _start(self) -> None:
        if self._threaded:
            self._worker = _process.enter(self)

    def _plan_needed(self) -> None:
        if DRAIN not in self._due and self._needs_drain():
            self._plan(DRAIN, _DRAIN_SECONDS)
        if SYNC not in self._due and self._needs_sync():
            self._plan(SYNC, self._sync_seconds())

    def _plan(self, task: str, seconds: float) -> None:
        """Plans a task in so many seconds, and wakes the thread, which may sleep longer."""
        self._due[task] = self._clock.monotonic() + seconds
        self._wake()

    def _wake(self) -> None:
        if self._worker is not None:
            _process.wake()

    def _comes_due(self, task: str, now: float) -> bool:
        """Says whether a task is due; if so it is no longer planned."""
        at = self._due.get(task)
        if at is None or now < at:
            return False
        self._due.pop(task, None)
        return True

    @abstractmethod
    def _needs_sync(self) -> bool:
        """Says whether something is not durable yet that must be under the policy."""

    @abstractmethod
    def _sync(self) -> None:
        """Makes everything durable that must be under the policy."""

    def _sync_seconds(self) -> float:
        """Returns how long a change may wait for its sync."""
        if self._sync_policy == "interval":
            return self._sync_interval_seconds
        # "always": sync the mark once a second; "os": sync full files at once.
        return MARK_SECONDS if self._sync_policy == "always" else 0.0

    def _needs_drain(self) -> bool:
        """Says whether anything waits in a buffer in front of the files."""
        return False

    def _drain(self) -> None:
        """Writes the buffer to the files."""

    def _look(self, queue: _Queue) -> None:
        """Does the chores: once a second while the queue is used, and once after that.

        If a full disk has used up the reserve, sets it aside again as soon as there is space.
        """
        keep_reserve(queue._directory)
        if queue._intake is not None and queue._intake.has_more:
            queue._intake.retry()

    @abstractmethod
    def _activity(self) -> object:
        """Returns a value that is different after every change of the queue."""

    def _rest(self) -> None:
        """Makes sure that the next change is noticed, because nothing is planned any more."""

    def _run_others(self, queue: _Queue, now: float) -> None:
        """Does the other work that is due."""

    def _on_news(self, writes: bool) -> None:
        """Plans work after news from a watched directory; `writes`: as it was given to `watch`."""

    def _tell(self, error: Exception) -> None:
        """Logs what failed, unless it is what failed the last time."""
        text = f"{type(error).__name__}: {error}"
        if text == self._trouble:
            return
        self._trouble = text
        expected = isinstance(error, OSError | ForebayError)
        _logger.error(
            "%s: background work failed: %s",
            self._name,
            error,
            exc_info=None if expected else error,
        )

    def _pause(self) -> None:
        """Plans the next try, after a longer pause each time; the failed work stays due."""
        self._resume_at = self._clock.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS_MAX)
        self.plan_chores()


def run_urgent_work() -> None:
    """Drains and syncs the queues that are due for it; called by the thread during long work.

    The queue that the thread works for is left out: it calls its own `run_urgent`.
    """
    worker = _process.worker
    if worker is not None and worker.is_current:
        worker.run_urgent()


class _Worker:
    """The thread, and the queues that it works for. Any thread may call it."""

    def __init__(self) -> None:
        self._jobs: set[Background[Any]] = set()
        self.over = False
        self.death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def enter(self, job: Background[Any]) -> None:
        """Adds a queue; the first one starts the thread. The mutex of the module is held."""
        self._jobs.add(job)
        if self._thread.ident is None:
            self._thread.start()
        _process.wake()

    def leave(self, job: Background[Any]) -> None:
        """Removes a queue; if it was the last one, the thread has ended on return."""
        with _process.mutex:
            self._jobs.discard(job)
            _process.unwatch(job)
            ends = not self._jobs and not self.over
            if ends:
                _process.retire(self)
        _process.wake()
        if ends and not self.is_current:
            self._thread.join()

    def watch(self, job: Background[Any], directory: Directory, writes: bool) -> bool:
        """Watches a directory for a queue; returns False if that is not possible."""
        with _process.mutex:
            return not self.over and _process.watch(job, directory, writes)

    def run_urgent(self) -> None:
        """Drains and syncs the queues that are due for it."""
        for job in list(self._jobs):
            if job.seconds_left() <= 0:
                job.work_urgently()

    def _run(self) -> None:
        job: Background[Any] | None = None
        try:
            while not self.over:
                self._sleep()
                for job in list(self._jobs):
                    if job.is_over():
                        self._forget(job)
                    elif job.seconds_left() <= 0:
                        job.work()
                job = None
        except BaseException as error:
            self.death = error
            # Python itself does not report a SystemExit in a thread.
            name = _NAME if job is None else job._name
            _logger.critical("%s: background work has ended: %r", name, error)
            raise
        finally:
            with _process.mutex:
                _process.retire(self)
            # The next thread may have started already: what woke this one may have been for it.
            _process.wake()

    def _sleep(self) -> None:
        """Sleeps until something is due, the doorbell rings or a watched directory changes."""
        seconds = min((job.seconds_left() for job in list(self._jobs)), default=math.inf)
        poll = select.poll()
        poll.register(_process.doorbell.descriptor, select.POLLIN)
        watcher = _process.watcher
        if watcher is not None:
            poll.register(watcher.descriptor, select.POLLIN)
        limit = None if seconds == math.inf else max(0, math.ceil(seconds * 1000))
        for descriptor, _ in poll.poll(limit):
            if descriptor == _process.doorbell.descriptor:
                _process.doorbell.clear()
            elif watcher is not None:
                for number in watcher.read():
                    found = _process.watched.get(number)
                    if found is not None:
                        found[0]._on_news(found[1])

    def _forget(self, job: Background[Any]) -> None:
        with _process.mutex:
            self._jobs.discard(job)
            _process.unwatch(job)
            if not self._jobs:
                _process.retire(self)


class _Process:
    """The one worker of this process, if a queue needs it. Changing it requires `mutex`.

    The watcher stays open after the last queue, like the doorbell: closing it takes milliseconds.
    """

    def __init__(self) -> None:
        self.doorbell = Doorbell()
        self._start()

    def _start(self) -> None:
        self.mutex = threading.Lock()
        self.worker: _Worker | None = None
        self.watcher: Watcher | None = None
        self.watched: dict[int, tuple[Background[Any], bool]] = {}

    def enter(self, job: Background[Any]) -> _Worker:
        """Adds a queue; starts a worker if there is none."""
        with self.mutex:
            worker = self.worker
            if worker is None:
                worker = self.worker = _Worker()
            worker.enter(job)
            return worker

    def retire(self, worker: _Worker) -> None:
        """Tells a thread to end; the next queue starts another one. The mutex is held."""
        worker.over = True
        if self.worker is worker:
            self.worker = None

    def watch(self, job: Background[Any], directory: Directory, writes: bool) -> bool:
        """Watches a directory for a queue; returns False if that is not possible."""
        if self.watcher is None:
            self.watcher = Watcher.create()
        number = None if self.watcher is None else self.watcher.add(directory, writes=writes)
        if number is not None:
            self.watched[number] = job, writes
        # The thread may sleep without a watcher: it must learn of the first one.
        self.wake()
        return number is not None

    def unwatch(self, job: Background[Any]) -> None:
        """Stops watching the directories of a queue."""
        for number in [each for each, (owner, _) in self.watched.items() if owner is job]:
            del self.watched[number]
            if self.watcher is not None:
                self.watcher.remove(number)

    def wake(self) -> None:
        """Wakes the thread, now or at its next sleep."""
        self.doorbell.ring()

    def forget(self) -> None:
        """Starts afresh in the child of a fork, which has no worker thread."""
        self.doorbell.replace()
        if self.watcher is not None:
            # The parent's: what it reports is for the parent.
            self.watcher.close()
        self._start()


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)
