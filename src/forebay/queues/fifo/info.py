"""What `info` returns for a fifo."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoInfo(QueueInfo):
    """The state of a fifo. Lent entries are counted in `records`.

    - `begin`, `end`: the number of the oldest entry, and the number that the next entry gets.
    - `durable`: the number after the last entry that survives a power cut.
    - `taken`: how many entries are lent and not yet finished.
    - `dead`: how many entries were put aside.
    - `entry_bytes`: the size of the entries, including 32 bytes each.
    - `file_bytes`: the size of a file of the tape.
    - `disk_bytes`: the disk space that the files use; not in the owner's view.
    - `expired`, `dropped`, `damaged`: how many entries left for that reason since its creation.
    - `next_id`, `next_time_ms`: those of the next entry; not in the owner's view.
    - `incarnation`: how often it was opened.
    """

    begin: int
    end: int
    durable: int
    taken: int
    dead: int
    entry_bytes: int
    file_bytes: int
    disk_bytes: int | None = None
    expired: int
    dropped: int
    damaged: int
    next_id: int | None = None
    next_time_ms: int | None = None
    incarnation: int | None
