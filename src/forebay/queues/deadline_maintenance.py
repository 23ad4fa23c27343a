"""What a deadline queue does by itself: drain, sync, freeze and merge, each when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.clock import SteadyClock
from forebay.queues.background import Background
from forebay.queues.deadline_adoption import adopt
from forebay.queues.deadline_journal import Journal
from forebay.queues.deadline_recovery import IDS_AT_ONCE
from forebay.queues.deadline_upkeep import Upkeep
from forebay.queues.deadline_verbs import Verbs
from forebay.queues.options import DeadlineOptions
from forebay.storage.atomic import keep_reserve

if TYPE_CHECKING:
    from forebay.queues.deadline import DeadlineQueue

_LOOK = "look"
_LOOK_SECONDS = 1.0


class DeadlineMaintenance(Background["DeadlineQueue"]):
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
        super().__init__(queue, options, clock)
        self._journal = journal
        self._upkeep = upkeep
        self._verbs = verbs
        self._desk = queue._desk
        self._due[_LOOK] = clock.monotonic() + _LOOK_SECONDS
        self._start()

    def notice(self) -> None:
        """Takes note that something was written: it will have to be drained, synced or frozen."""
        super().notice()
        if self._upkeep.wants_freeze:
            self._wake.set()

    def _needs_drain(self) -> bool:
        return self._journal.is_staging

    def _drain(self) -> None:
        with self._journal.lock:
            self._journal.drain()

    def _needs_sync(self) -> bool:
        return self._sync_policy == "interval" and self._journal.written > self._journal.durable

    def _sync(self) -> None:
        self._journal.sync()

    def _run_others(self, queue: DeadlineQueue, now: float) -> None:
        # Another thread that merges freezes too.
        if not self._upkeep.is_merging:
            if self._upkeep.wants_freeze:
                self._upkeep.freeze()
            if self._upkeep.wants_merge:
                self._upkeep.merge(between=self._run_urgent)
        if self._comes_due_again(_LOOK, now, _LOOK_SECONDS):
            keep_reserve(queue._directory)
            self._journal.sync_mark()
            queue._save_losses()
            self._verbs.forget_revived()
            self._reserve_ids()
            adopt(queue)

    def _reserve_ids(self) -> None:
        """Reserves ids before they run out, so that no enqueue has to wait for it."""
        with self._journal.lock:
            self._journal.check()
            next_id = self._desk.next_id
        self._verbs.reserve_from(next_id, IDS_AT_ONCE // 2)
