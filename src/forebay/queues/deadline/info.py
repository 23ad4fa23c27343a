"""What `info` returns for a deadline queue."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineInfo(QueueInfo):
    """The state of a deadline queue.

    - `pending`, `due`: how many items wait, and how many of them are due.
    - `working`: how many are leased; None from outside while the queue is in use, where they count
      as pending: the leases are in the memory of the owner.
    - `buried`: how many are put aside.
    - `next_deadline_ms`: when the first pending item is due; not in the owner's view.
    - `next_id`: the id that the next item gets.
    - `runs`, `logs`, `run_bytes`, `log_bytes`: its files; their sizes are not in the owner's view.
    - `deadlines`: the pending items by when they are due; not in the owner's view.
    - `in_memory`: how many changes are in memory; only in the owner's view.
    - `freezes`, `merges`: how many there were since the open; only in the owner's view.
    - `damaged`: how much damage was found since then; only in the owner's view.
    """

    pending: int
    due: int
    working: int | None
    buried: int
    next_deadline_ms: int | None = None
    next_id: int | None
    runs: int
    logs: int
    run_bytes: int | None = None
    log_bytes: int | None = None
    deadlines: dict[str, int] | None = None
    in_memory: int | None = None
    freezes: int | None = None
    merges: int | None = None
    damaged: int | None = None
