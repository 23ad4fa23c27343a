"""What an event queue does by itself: it syncs what is not durable, when that is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.clock import Clock
from forebay.queues.background import MARK_SECONDS, Background
from forebay.queues.event_writer import EventWriter
from forebay.queues.options import EventOptions

if TYPE_CHECKING:
    from forebay.queues.event import EventQueue


class EventMaintenance(Background["EventQueue"]):
    """The background work of one event queue."""

    def __init__(
        self, queue: EventQueue, writer: EventWriter, options: EventOptions, clock: Clock
    ) -> None:
        super().__init__(queue, options, clock)
        self._writer = writer
        self._start()

    def _needs_sync(self) -> bool:
        writer = self._writer
        unsynced = self._sync_policy == "interval" and writer.written > writer.commit.durable
        return unsynced or not writer.marks.synced

    def _sync(self) -> None:
        if self._sync_policy == "interval":
            self._writer.sync()
        if not self._writer.marks.synced:
            self._writer.marks.sync()

    def _sync_seconds(self) -> float:
        # Under "os" there is nothing to sync but the mark.
        return super()._sync_seconds() or MARK_SECONDS
