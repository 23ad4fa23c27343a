"""What a log does by itself: drain, sync, adopt and trim, each when it is due.

An idle log does nothing but look into `inbox/` once a second.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.queues.background import Background
from forebay.queues.options import LogOptions
from forebay.queues.writer import LogWriter

if TYPE_CHECKING:
    from forebay.queues.log import Log

_logger = logging.getLogger(__name__)
_ADOPT, _TRIM = "adopt", "trim"
_ADOPT_SECONDS = 1.0


class Maintenance(Background["Log"]):
    """The background work of one log."""

    def __init__(self, log: Log, writer: LogWriter, options: LogOptions, clock: Clock) -> None:
        super().__init__(log, options, clock)
        self._writer = writer
        self._trim_seconds = options.trim_interval_seconds
        self._trim_failed = False
        now = clock.monotonic()
        self._due[_ADOPT] = now + _ADOPT_SECONDS
        if self._trim_seconds is not None:
            self._due[_TRIM] = now + self._trim_seconds
        self._start()

    def _needs_drain(self) -> bool:
        return bool(self._writer.staged)

    def _drain(self) -> None:
        with self._writer.lock:
            self._writer.check()
            self._writer.drain()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._sync_policy == "os":
            return bool(writer.sealed)
        return writer.written > writer.commit.durable or not writer.publisher.synced

    def _sync(self) -> None:
        if self._sync_policy != "always":
            self._writer.sync()
        if not self._writer.publisher.synced:
            self._writer.publisher.sync()

    def _run_others(self, queue: Log, now: float) -> None:
        if self._comes_due_again(_ADOPT, now, _ADOPT_SECONDS):
            queue.adopt()
            queue.keep_reserve()
        if self._comes_due_again(_TRIM, now, self._trim_seconds or 0):
            self._trim(queue)

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
