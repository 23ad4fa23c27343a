"""What a queue does by itself: drain, sync, adopt and trim, each when it is due.

One thread a queue, started at first need, ended by `close`. It sleeps until something is due and
does nothing on an idle queue but look into `inbox/` once a second.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.queues.options import LogOptions
from forebay.queues.writer import LogWriter

if TYPE_CHECKING:
    from forebay.queues.log import Log

_logger = logging.getLogger(__name__)
_DRAIN_SECONDS = 0.05
_ADOPT_SECONDS = 1.0


class Maintenance:
    """The background work of one log."""

    def __init__(self, log: Log, writer: LogWriter, options: LogOptions, clock: Clock) -> None:
        self._log = weakref.ref(log)
        self._writer = writer
        self._clock = clock
        self._options = options
        self._wake = threading.Event()
        self._stopping = threading.Event()
        now = clock.monotonic()
        self._drain_at: float | None = None
        self._sync_at: float | None = None
        self._adopt_at = now + _ADOPT_SECONDS
        trim = options.trim_interval_seconds
        self._trim_at = None if trim is None else now + trim
        self._thread: threading.Thread | None = None
        self._trim_failed = False
        if options.background:
            name = f"forebay {log.path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def notice(self) -> None:
        """Takes note that something was written: it will have to be drained and synced."""
        now = self._clock.monotonic()
        sooner = False
        if self._drain_at is None and self._writer.staged:
            self._drain_at = now + _DRAIN_SECONDS
            sooner = True
        if self._sync_at is None and self._needs_sync():
            self._sync_at = now + self._sync_seconds()
            sooner = True
        if sooner and self._thread is not None:
            self._wake.set()

    def run_due(self) -> None:
        """Does everything that is due now."""
        log = self._log()
        if log is None:
            return
        now = self._clock.monotonic()
        if self._drain_at is not None and now >= self._drain_at:
            self._drain_at = None
            with self._writer.lock:
                self._writer.check()
                self._writer.drain()
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            if self._options.sync != "always":
                self._writer.sync()
            if not self._writer.publisher.synced:
                self._writer.publisher.sync()
        if now >= self._adopt_at:
            self._adopt_at = now + _ADOPT_SECONDS
            log.adopt()
            log.keep_reserve()
        if self._trim_at is not None and now >= self._trim_at:
            self._trim_at = now + (self._options.trim_interval_seconds or 0)
            self._trim(log)
        self.notice()

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _trim(self, log: Log) -> None:
        try:
            log.trim()
            self._trim_failed = False
        except ForebayError as error:
            if isinstance(error, Closed):
                raise
            if not self._trim_failed:
                _logger.warning("%s: nothing is trimmed: %s", log.path, error)
            self._trim_failed = True

    def _needs_sync(self) -> bool:
        if self._options.sync == "os":
            return bool(self._writer.sealed)
        return (
            self._writer.written > self._writer.commit.durable or not self._writer.publisher.synced
        )

    def _sync_seconds(self) -> float:
        if self._options.sync == "interval":
            return self._options.sync_interval_ms / 1000
        # "always": the mark once a second; "os": full segments at once.
        return 1.0 if self._options.sync == "always" else 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = [self._drain_at, self._sync_at, self._adopt_at, self._trim_at]
            soonest = min(at for at in due if at is not None)
            self._wake.wait(max(0.0, soonest - self._clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set() or self._log() is None:
                return
            try:
                self.run_due()
            except Closed:
                return
            except (OSError, ForebayError) as error:
                # The next append meets the same trouble and raises it where it can be handled.
                _logger.error(
                    "%s: background work failed: %s", threading.current_thread().name, error
                )
                self._wake.wait(1.0)
