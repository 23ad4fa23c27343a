"""What `info` tells of a deadline queue."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineInfo(QueueInfo):
    """The state of a deadline queue.

    - `pending`, `due`: how many items wait, and how many of them are due.
    - `working`: how many are given out; None from outside while it is in use, where they are
      pending: who holds what is in the memory of the owner.
    - `buried`: how many are put aside.
    - `next_deadline_ms`: when the first pending item is due; not the owner's.
    - `next_id`: the id that the next item gets.
    - `runs`, `logs`, `run_bytes`, `log_bytes`: its files; their bytes are not the owner's.
    - `deadlines`: the pending items by when they are due; not the owner's.
    - `in_memory`: how many changes are in memory; the owner's.
    - `freezes`, `merges`: how many there were since it was opened; the owner's.
    - `damaged`: how much damage was met since then; the owner's.
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
