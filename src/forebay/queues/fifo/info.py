"""What `info` tells of a fifo."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoInfo(QueueInfo):
    """The state of a fifo. Entries that are lent out are among the `records`.

    - `begin`, `end`: the number of the oldest entry, and the one that the next entry gets.
    - `durable`: the number after the last entry that survives a power cut.
    - `taken`: how many entries are lent out and not finished with.
    - `dead`: how many entries were put aside.
    - `entry_bytes`: what the entries take, 32 bytes each included.
    - `file_bytes`: the size of a file of the tape.
    - `disk_bytes`: what the files take of the disk; not the owner's.
    - `expired`, `dropped`, `damaged`: how many entries have left so, since it was made.
    - `next_id`, `next_time_ms`: of the entry that comes next; not the owner's.
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
