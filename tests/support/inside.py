"""The inside of queues, files and readers: what tests see or change that no public verb does.

The one place of the tests that knows these private names; `tests/test_house_style.py` says so. A
test looks inside only to stop a queue at a moment that it could not hit otherwise, or to see
something that its promises rest on and no verb tells.
"""

from __future__ import annotations

import os
from typing import Any

from forebay.storage.commit import GroupCommit
from tests.support.waiting import wait_until


def drop(queue: Any) -> None:
    """Drops a handle as the death of its process does: nothing is synced, marked or warned of."""
    queue._closed = True


def leave_files(output: Any) -> None:
    """Closes the descriptors of an output of files, as the death of its process does."""
    for part in (output._slots, output._directory, output._file):
        part.close()


def writer_of(queue: Any) -> Any:
    """Returns the writer of a log, a fifo or a Beats queue: its lock, group commit and marks."""
    return queue._writer


def intake_of(queue: Any) -> Any:
    """Returns what takes in the files of clients."""
    return queue._intake


def journal_of(queue: Any) -> Any:
    """Returns the journal of a deadline queue: its lock and the log that it writes."""
    return queue._journal


def lock_of(queue: Any) -> Any:
    """Returns the lock of a queue of any kind."""
    return queue.changes._lock


def upkeep_of(queue: Any) -> Any:
    """Returns what freezes and merges for a deadline queue."""
    return queue._upkeep


def state_of(queue: Any) -> Any:
    """Returns the memory and the runs of a deadline queue, also of a handle that has ended."""
    return queue._state


def seconds_to_due(queue: Any) -> float:
    """Returns in how many seconds a deadline queue wakes who waits for an item."""
    with queue._journal.lock:
        queue._schedule.leases.expire(queue._clock.now_ms())
        seconds: float = queue._seconds_to_due()
        return seconds


def offset_of(log: Any, start: Any) -> int:
    """Returns the offset that a start of a consumer means to a log."""
    offset: int = log._resolve(start)
    return offset


def hand_over(queue: Any) -> None:
    """Begins a freeze: what comes now goes to the next log, before the runs are written."""
    queue._upkeep._hand_over()


def has_failed_to_write(queue: Any) -> bool:
    """Says whether a Beats queue tries a write again."""
    return queue._writer._retries.error is not None


def waiters_of(changes: Any, line: str) -> int:
    """Returns how many wait in a line for changes."""
    return len(changes._lines.get(line, ()))


def sync_together(commit: GroupCommit, count: int) -> None:
    """Holds each sync until `count` threads wait for it, however late one of them comes."""
    sync = commit._sync

    def sync_all() -> int:
        if not wait_until(lambda: waiting_for(commit) == count - 1):
            raise OSError(f"{waiting_for(commit) + 1} threads wait for one sync, not {count}")
        return sync()

    commit._sync = sync_all


def waiting_for(commit: GroupCommit) -> int:
    """Returns how many threads wait for the one that leads."""
    return len(commit._waiting)


def path_of(file: Any) -> str:
    """Returns where an open file is, of a disk or of a forgetful machine."""
    if hasattr(file, "_descriptor"):
        return os.readlink(f"/proc/self/fd/{descriptor_of(file)}")
    return str(file._path)


def descriptor_of(opened: Any) -> int:
    """Returns the descriptor of a file or directory of a disk."""
    descriptor: int = opened._descriptor
    return descriptor


def look_again(reader: Any) -> None:
    """Lets the time pass after which the reader of a stream looks for queues again."""
    reader._queues().look_again()


def poll_again(reader: Any) -> None:
    """Lets the time pass after which it looks how far its queues are; a look may take long."""
    reader._queues()._took = float("-inf")


def move_to(consumer: Any, offset: int) -> None:
    """Moves a consumer to an offset that may be trimmed, as a saved place may be."""
    consumer._begin(offset)
