"""What an event queue does by itself: it syncs what is not durable, when that is due.

One thread a queue, ended by `close`. It sleeps while nothing is due.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.queues.event_writer import EventWriter
from forebay.queues.options import EventOptions

if TYPE_CHECKING:
    from forebay.queues.event import EventQueue

_logger = logging.getLogger(__name__)
# How long the mark itself may lag behind, where events are synced at once.
_MARK_SECONDS = 1.0


class EventMaintenance:
    """The background work of one event queue."""

    def __init__(
        self, queue: EventQueue, writer: EventWriter, options: EventOptions, clock: Clock
    ) -> None:
        self._queue = weakref.ref(queue)
        self._writer = writer
        self._options = options
        self._clock = clock
        self._sync_at: float | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if options.background:
            name = f"forebay {queue.path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def notice(self) -> None:
        """Takes note that something was written: it will have to be synced."""
        if self._sync_at is not None or not self._needs_sync():
            return
        interval = self._options.sync == "interval"
        seconds = self._options.sync_interval_ms / 1000 if interval else _MARK_SECONDS
        self._sync_at = self._clock.monotonic() + seconds
        self._wake.set()

    def run_due(self) -> None:
        """Does what is due now."""
        if self._sync_at is None or self._clock.monotonic() < self._sync_at:
            return
        self._sync_at = None
        if self._options.sync == "interval":
            self._writer.sync()
        if not self._writer.publisher.synced:
            self._writer.publisher.sync()

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _needs_sync(self) -> bool:
        if not self._writer.publisher.synced:
            return True
        return (
            self._options.sync == "interval" and self._writer.written > self._writer.commit.durable
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = self._sync_at
            self._wake.wait(None if due is None else max(0.0, due - self._clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set() or self._queue() is None:
                return
            try:
                self.run_due()
            except Closed:
                return
            except (OSError, ForebayError) as error:
                # The next put meets the same trouble and raises it where it can be handled.
                name = threading.current_thread().name
                _logger.error("%s: background work failed: %s", name, error)
