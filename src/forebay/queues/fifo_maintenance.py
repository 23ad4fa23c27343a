"""What a fifo does by itself: drain, sync and take in what is in `inbox/`, each when it is due.

One thread a queue, ended by `close`. It sleeps until something is due.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from forebay.clock import SteadyClock
from forebay.errors import Closed, ForebayError
from forebay.queues.fifo_reading import Reading
from forebay.queues.fifo_writer import FifoWriter
from forebay.queues.options import FifoOptions
from forebay.storage.atomic import keep_reserve

if TYPE_CHECKING:
    from forebay.queues.fifo import Fifo

_logger = logging.getLogger(__name__)
_DRAIN_SECONDS = 0.05
_LOOK_SECONDS = 1.0


class FifoMaintenance:
    """The background work of one fifo."""

    def __init__(
        self,
        fifo: Fifo,
        writer: FifoWriter,
        reading: Reading,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        self._fifo = weakref.ref(fifo)
        self._writer = writer
        self._reading = reading
        self._options = options
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._drain_at: float | None = None
        self._sync_at: float | None = None
        self._look_at = clock.monotonic() + _LOOK_SECONDS
        self._head_synced = reading.popper.sequence
        self._thread: threading.Thread | None = None
        if options.background:
            name = f"forebay {fifo.path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def notice(self) -> None:
        """Takes note that something changed: it will have to be drained and synced."""
        now = self._clock.monotonic()
        sooner = False
        if self._drain_at is None and self._writer.waiting and not self._writer.always:
            self._drain_at = now + _DRAIN_SECONDS
            sooner = True
        if self._sync_at is None and self._needs_sync():
            self._sync_at = now + self._sync_seconds()
            sooner = True
        if sooner and self._thread is not None:
            self._wake.set()

    def run_due(self) -> None:
        """Does everything that is due now."""
        now = self._clock.monotonic()
        if self._drain_at is not None and now >= self._drain_at:
            self._drain_at = None
            with self._writer.lock:
                self._writer.check()
                self._writer.drain()
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            self._sync()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            fifo = self._fifo()
            if fifo is not None:
                fifo.adopt()
                keep_reserve(fifo._directory)
        self.notice()

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _sync(self) -> None:
        if not self._writer.always:
            # The entries before the head: it may not say that something left that was never there.
            self._writer.sync()
            if self._options.sync == "interval":
                sequence = self._reading.popper.sequence
                self._reading.sync_head()
                self._head_synced = sequence
        if not self._writer.publisher.synced:
            self._writer.publisher.sync()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._options.sync == "os":
            return len(writer.tape.unsynced) > 1
        popped = (
            self._options.sync == "interval" and self._reading.popper.sequence != self._head_synced
        )
        return popped or writer.number > writer.durable.number or not writer.publisher.synced

    def _sync_seconds(self) -> float:
        if self._options.sync == "interval":
            return self._options.sync_interval_ms / 1000
        # "always": the mark once a second; "os": full files at once.
        return 1.0 if self._options.sync == "always" else 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = [self._drain_at, self._sync_at, self._look_at]
            soonest = min(at for at in due if at is not None)
            self._wake.wait(max(0.0, soonest - self._clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set() or self._fifo() is None:
                return
            try:
                self.run_due()
            except Closed:
                return
            except (OSError, ForebayError) as error:
                # The next push meets the same trouble and raises it where it can be handled.
                _logger.error(
                    "%s: background work failed: %s", threading.current_thread().name, error
                )
                self._wake.wait(1.0)
