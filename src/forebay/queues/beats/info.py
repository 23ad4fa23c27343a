"""What `info` tells of a Beats queue."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsInfo(QueueInfo):
    """The state of a Beats queue. Its `records` are the events in the files.

    - `version`: of the segments that it writes, or of the newest one.
    - `unread`: how many events are not done with.
    - `position`: of the first of them: its `segment`, `position` and `index`.
    - `outstanding`: how many events are handed out and not done with; the owner's.
    - `dropped`: how many events were dropped for `max_bytes` since it was opened; the owner's.
    """

    version: str | None
    unread: int
    position: dict[str, int]
    outstanding: int | None = None
    dropped: int | None = None
