"""The facts that `info` returns about a Beats queue."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsInfo(QueueInfo):
    """The state of a Beats queue. Its `records` are the events in the files.

    - `version`: the version of the segments that it writes, or of the newest one.
    - `unread`: how many events are not acknowledged.
    - `position`: where the first of them is: its `segment`, `position` and `index`.
    - `outstanding`: how many events are delivered and not yet acknowledged or given back; only from
      the owner.
    - `dropped`: how many events were dropped because of `max_bytes` since it was opened; only from
      the owner.
    """

    version: str | None
    unread: int
    position: dict[str, int]
    outstanding: int | None = None
    dropped: int | None = None
