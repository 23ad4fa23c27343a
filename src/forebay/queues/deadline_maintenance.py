"""What a deadline queue does by itself: sync, freeze and merge, each when it is due.

One thread a queue, ended by `close`. It sleeps until something is due.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from forebay.clock import SteadyClock
from forebay.errors import Closed, ForebayError
from forebay.queues.deadline_journal import Journal
from forebay.queues.deadline_recovery import IDS_AT_ONCE
from forebay.queues.deadline_upkeep import Upkeep
from forebay.queues.deadline_verbs import Verbs
from forebay.queues.options import DeadlineOptions
from forebay.storage.atomic import keep_reserve

if TYPE_CHECKING:
    from forebay.queues.deadline import DeadlineQueue

_logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
# So long may a change be in the staging buffer only.
_DRAIN_SECONDS = 0.05
# A merge pass after a freeze does so many merges at most, so that a sync is not kept waiting.
_MERGES_AT_ONCE = 4


class DeadlineMaintenance:
    """The background work of one queue."""

    def __init__(
        self,
        queue: DeadlineQueue,
        journal: Journal,
        upkeep: Upkeep,
        verbs: Verbs,
        options: DeadlineOptions,
        clock: SteadyClock,
    ) -> None:
        self._queue = weakref.ref(queue)
        self._directory = queue._directory
        self._journal = journal
        self._upkeep = upkeep
        self._verbs = verbs
        self._desk = queue._desk
        self._options = options
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._drain_at: float | None = None
        self._sync_at: float | None = None
        self._look_at = clock.monotonic() + _LOOK_SECONDS
        self._thread: threading.Thread | None = None
        if options.background:
            name = f"forebay {queue.path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def notice(self) -> None:
        """Takes note that something was written: it will have to be synced or frozen."""
        sooner = self._upkeep.wants_freeze
        if self._drain_at is None and self._journal.is_staging:
            self._drain_at = self._clock.monotonic() + _DRAIN_SECONDS
            sooner = True
        if self._sync_at is None and self._needs_sync():
            self._sync_at = self._clock.monotonic() + self._options.sync_interval_ms / 1000
            sooner = True
        if sooner and self._thread is not None:
            self._wake.set()

    def run_due(self) -> None:
        """Does everything that is due now."""
        now = self._clock.monotonic()
        if self._drain_at is not None and now >= self._drain_at:
            self._drain_at = None
            with self._journal.lock:
                self._journal.drain()
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            self._journal.sync()
        if self._upkeep.wants_freeze:
            self._upkeep.freeze()
            for _ in range(_MERGES_AT_ONCE):
                if not self._upkeep.merge():
                    break
            self._upkeep.save()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            keep_reserve(self._directory)
            self._reserve_ids()
        self.notice()

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _reserve_ids(self) -> None:
        """Reserves ids before they run out, so that no enqueue has to wait for it."""
        with self._journal.lock:
            self._journal.check()
            next_id = self._desk.next_id
        self._verbs.reserve_from(next_id, IDS_AT_ONCE // 2)

    def _needs_sync(self) -> bool:
        return self._options.sync == "interval" and self._journal.written > self._journal.durable

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = [self._drain_at, self._sync_at, self._look_at]
            soonest = min(at for at in due if at is not None)
            self._wake.wait(max(0.0, soonest - self._clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set() or self._queue() is None:
                return
            try:
                self.run_due()
            except Closed:
                return
            except (OSError, ForebayError) as error:
                # The next change meets the same trouble and raises it where it can be handled.
                _logger.error(
                    "%s: background work failed: %s", threading.current_thread().name, error
                )
                self._wake.wait(1.0)
