"""The value that formats and storage share: what a scan of bytes yields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a file that does not verify.

    `torn` marks an unfinished end, which a crash leaves and which costs nothing that was
    acknowledged. `offset` is the first missing message and `count` how many are missing; None if
    the format does not show it.
    """

    path: str
    position: int
    length: int
    reason: str
    torn: bool = False
    offset: int | None = None
    count: int | None = None
