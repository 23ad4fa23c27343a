"""The facts that `info` returns about a log."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.queues.shared.reports import QueueInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInfo(QueueInfo):
    """The state of a log.

    - `begin`, `end`: the offset of the oldest record, and the one that the next record gets.
    - `durable`: the offset after the last record that survives a power cut.
    - `version`: the version of the newest segment.
    - `last_time_ms`: the time of the newest record.
    - `consumers`, `cursors`: by name, the next `offset` and the `lag`.
    - `consumers_damage`: why the places of consumers are lost; None if they are not.
    - `incarnation`: counts the times that offsets may have been lost and assigned again.
    - `adopted`: by writer, the last batch of `inbox/` that was adopted; only from the owner.
    - `dropped`: how many records were dropped because of `max_bytes` since it was opened; only from
      the owner.
    """

    begin: int
    end: int
    durable: int
    version: int | None
    last_time_ms: int | None
    consumers: dict[str, dict[str, int]]
    consumers_damage: str | None
    cursors: dict[str, dict[str, int]]
    incarnation: int | None
    adopted: dict[str, int] | None = None
    dropped: int | None = None

    @property
    def positions(self) -> dict[str, int]:
        """The next offset of each consumer."""
        return {name: place["offset"] for name, place in self.consumers.items()}
