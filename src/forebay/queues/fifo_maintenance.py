"""What a fifo does by itself: drain, sync and take in what is in `inbox/`, each when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.clock import SteadyClock
from forebay.queues.background import Background
from forebay.queues.fifo_reading import Reading
from forebay.queues.fifo_writer import FifoWriter
from forebay.queues.options import FifoOptions
from forebay.storage.atomic import keep_reserve

if TYPE_CHECKING:
    from forebay.queues.fifo import Fifo

_LOOK = "look"
_LOOK_SECONDS = 1.0


class FifoMaintenance(Background["Fifo"]):
    """The background work of one fifo."""

    def __init__(
        self,
        fifo: Fifo,
        writer: FifoWriter,
        reading: Reading,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        super().__init__(fifo, options, clock)
        self._writer = writer
        self._reading = reading
        self._head_synced = reading.popper.sequence
        self._due[_LOOK] = clock.monotonic() + _LOOK_SECONDS
        self._start()

    def _needs_drain(self) -> bool:
        return bool(self._writer.waiting) and not self._writer.always

    def _drain(self) -> None:
        with self._writer.lock:
            self._writer.check()
            self._writer.drain()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._sync_policy == "os":
            return len(writer.tape.unsynced) > 1
        popped = (
            self._sync_policy == "interval" and self._reading.popper.sequence != self._head_synced
        )
        return popped or writer.number > writer.durable.number or not writer.publisher.synced

    def _sync(self) -> None:
        if not self._writer.always:
            # The entries before the head: it may not say that something left that was never there.
            self._writer.sync()
            if self._sync_policy == "interval":
                sequence = self._reading.popper.sequence
                self._reading.sync_head()
                self._head_synced = sequence
        if not self._writer.publisher.synced:
            self._writer.publisher.sync()

    def _run_others(self, queue: Fifo, now: float) -> None:
        if self._comes_due_again(_LOOK, now, _LOOK_SECONDS):
            queue.adopt()
            self._reading.tell()
            self._reading.save_losses()
            keep_reserve(queue._directory)
