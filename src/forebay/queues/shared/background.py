"""What a queue does by itself: one thread a queue, which sleeps until something is due.

Ended by `close`; a queue that is forgotten ends it too, and nothing else does: what fails is logged
once and tried again, ever less often, and `state` tells of it. Without the thread, `maintain` of
the queue does the same from time to time. The queues say what there is to do, and when.
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.queues.shared.handle import Handle
from forebay.storage.commit import Alarm

DRAIN, SYNC = "drain", "sync"
# How long the mark of what is durable may lag behind, where each change is synced at once.
MARK_SECONDS = 1.0
_DRAIN_SECONDS = 0.05
# After a failure, doubled with each that follows.
_PAUSE_SECONDS = 0.5
_PAUSE_SECONDS_MAX = 30.0

_logger = logging.getLogger(__name__)
_Queue = TypeVar("_Queue", bound=Handle)


class BackgroundOptions(Protocol):
    """What the options of every queue have."""

    @property
    def sync(self) -> str: ...
    @property
    def sync_interval_ms(self) -> int: ...
    @property
    def background(self) -> bool: ...


class Background(ABC, Generic[_Queue]):
    """The background work of one queue. Any thread may call it.

    Knows when to drain, when to sync, and when to do what a subclass plans besides.
    """

    def __init__(self, queue: _Queue, options: BackgroundOptions, clock: Clock) -> None:
        """Starts nothing: a subclass calls `_start` when it is complete."""
        wake = Alarm()
        self._wake = wake
        # The thread of a queue that is forgotten wakes, however long it would sleep, and ends.
        self._queue = weakref.ref(queue, lambda _: wake.set())
        self._clock = clock
        self._due: dict[str, float] = {}
        self._stopping = False
        self._stop = Alarm()
        self._name = f"forebay {queue.path}"
        self._sync_policy = options.sync
        self._sync_interval_seconds = options.sync_interval_ms / 1000
        self._threaded = options.background
        self._thread: threading.Thread | None = None
        self._pause_seconds = _PAUSE_SECONDS
        self._trouble: str | None = None
        self._death: BaseException | None = None

    @property
    def state(self) -> str:
        """How the thread fares, for `info`: it runs, there is none, or what keeps it from work."""
        if self._death is not None:
            return f"ended: {self._death!r}"
        if self._trouble is not None:
            return f"fails: {self._trouble}"
        return "runs" if self._threaded else "off"

    def notice(self) -> None:
        """Takes note that something changed: it will have to be drained and synced."""
        if self._death is not None:
            # Nothing would be synced, drained or trimmed any more, and nobody would know.
            raise Closed(f"the thread of {self._name} has ended and must be started by reopening")
        if DRAIN not in self._due and self._needs_drain():
            self._plan(DRAIN, _DRAIN_SECONDS)
        if SYNC not in self._due and self._needs_sync():
            self._plan(SYNC, self._sync_seconds())

    def run_due(self) -> None:
        """Does everything that is due now."""
        queue = self._queue()
        if queue is None or queue._forgotten:
            return
        self._run_urgent()
        self._run_others(queue, self._clock.monotonic())
        self.notice()

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stopping = True
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run_urgent(self) -> None:
        """Drains and syncs, if that is due: work that takes long calls it in between."""
        now = self._clock.monotonic()
        if self._comes_due(DRAIN, now):
            self._drain()
        if self._comes_due(SYNC, now):
            self._sync()

    def _start(self) -> None:
        if self._threaded:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _plan(self, task: str, seconds: float) -> None:
        """Has something done in so many seconds, and wakes the thread, which may sleep longer."""
        self._due[task] = self._clock.monotonic() + seconds
        self._wake.set()

    def _comes_due(self, task: str, now: float) -> bool:
        """Says whether something is due; if so it is no longer planned."""
        at = self._due.get(task)
        if at is None or now < at:
            return False
        self._due.pop(task, None)
        return True

    def _comes_due_again(self, task: str, now: float, seconds: float) -> bool:
        """Says whether something is due that is due again in so many seconds."""
        if not self._comes_due(task, now):
            return False
        self._due[task] = now + seconds
        return True

    @abstractmethod
    def _needs_sync(self) -> bool:
        """Says whether something is not durable yet that the policy wants to be."""

    @abstractmethod
    def _sync(self) -> None:
        """Makes it durable."""

    def _sync_seconds(self) -> float:
        """Returns how long a change may wait for its sync."""
        if self._sync_policy == "interval":
            return self._sync_interval_seconds
        # "always": the mark once a second; "os": full files at once.
        return MARK_SECONDS if self._sync_policy == "always" else 0.0

    def _needs_drain(self) -> bool:
        """Says whether there is something in a buffer in front of the files."""
        return False

    def _drain(self) -> None:
        """Writes it to the files."""

    def _run_others(self, queue: _Queue, now: float) -> None:
        """Does what else is due."""

    def _run(self) -> None:
        try:
            while self._sleep():
                try:
                    self.run_due()
                    self._trouble, self._pause_seconds = None, _PAUSE_SECONDS
                except Closed:
                    return
                except Exception as error:
                    # An error of the disk meets the next change as well, which raises it where it
                    # can be handled. Of one that nobody has foreseen this is the only word.
                    self._tell(error)
                    self._pause()
        except BaseException as error:
            self._death = error
            # Of a SystemExit in a thread Python itself says nothing.
            _logger.critical("%s: background work has ended: %r", self._name, error)
            raise

    def _sleep(self) -> bool:
        """Sleeps until something is due; False if the thread has to end."""
        # A list: other threads plan meanwhile.
        soonest = min(list(self._due.values()), default=None)
        self._wake.wait(None if soonest is None else max(0.0, soonest - self._clock.monotonic()))
        self._wake.clear()
        queue = self._queue()
        return not self._stopping and queue is not None and not queue._forgotten

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
        """Waits before the next try, each time longer, unless the queue is closed meanwhile."""
        self._stop.wait(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS_MAX)
        # What was due and failed is still to be done.
        self.notice()
