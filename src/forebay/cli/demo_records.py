"""The records of the demo, and the checks that its claims rest on.

A record's bytes are a function of the seed and of its offset, so that whoever reads it back can
tell whether it is the right one, in the right place.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.damage import Damage
from forebay.queues.log.scanner import RecordBatch

RECORD_BYTES = 278
_OFFSET_BYTES = 8
_NOISE_BYTES = 1 << 16
# Odd and large: neighbours get parts of the noise that lie far from one another.
_STRIDE = 40_503


class Records:
    """Makes the record of any offset, fast."""

    def __init__(self, seed: int) -> None:
        self._noise = random.Random(seed).randbytes(_NOISE_BYTES + RECORD_BYTES)

    def make(self, first: int, count: int) -> list[bytes]:
        """Returns the records of `count` offsets from `first` on."""
        noise, length = self._noise, RECORD_BYTES - _OFFSET_BYTES
        return [
            offset.to_bytes(_OFFSET_BYTES, "big")
            + noise[(start := offset * _STRIDE % _NOISE_BYTES) : start + length]
            for offset in range(first, first + count)
        ]


@dataclass(slots=True)
class Comparison:
    """What a reading gave, beside what should be there."""

    right: int = 0
    wrong: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether every record is there, is right, and nothing is damaged."""
        return not (self.wrong or self.missing or self.damage)


def compare(
    items: Iterable[RecordBatch | Damage], records: Records, first: int, end: int
) -> Comparison:
    """Compares each record from `first` to `end` with what it must be.

    A record that does not come, comes twice or comes in another place is missing or wrong.
    """
    found = Comparison()
    expected = first
    for item in items:
        if isinstance(item, Damage):
            found.damage.append(item)
            continue
        found.missing.extend(range(expected, min(item.offset, end)))
        if item.offset < expected:
            found.wrong.extend(range(item.offset, item.offset + len(item.values)))
            continue
        _compare_batch(item, records, found)
        expected = item.offset + len(item.values)
    found.missing.extend(range(expected, end))
    return found


def _compare_batch(batch: RecordBatch, records: Records, found: Comparison) -> None:
    should_be = records.make(batch.offset, len(batch.values))
    if batch.values == should_be:
        found.right += len(should_be)
        return
    for number, (value, right) in enumerate(zip(batch.values, should_be, strict=True)):
        if value == right:
            found.right += 1
        else:
            found.wrong.append(batch.offset + number)


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the demo says, whether it holds, and the facts that show it."""

    name: str
    text: str
    holds: bool
    facts: dict[str, object]


def claim_recovered(acknowledged: int, end: int, found: Comparison) -> Claim:
    """Every acknowledged record is there after the kill, and nothing that is there is wrong."""
    missing = [offset for offset in found.missing if offset < acknowledged]
    missing_count = max(0, acknowledged - end) + len(missing)
    text = (
        f"{acknowledged:,} records were acknowledged, {end:,} are there; "
        f"missing: {missing_count}, wrong: {len(found.wrong)}"
    )
    facts: dict[str, object] = {
        "acknowledged": acknowledged,
        "recovered": end,
        "missing": missing_count,
        "wrong": len(found.wrong),
    }
    holds = end >= acknowledged and found.exact and found.right == end
    return Claim("nothing acknowledged is lost", text, holds, facts)


def claim_complete(records: int, found: Comparison) -> Claim:
    """All records are there and right."""
    text = f"{found.right:,} of {records:,} records read back and compared, byte by byte"
    facts: dict[str, object] = {"records": records, "right": found.right}
    return Claim("every record is right", text, found.exact and found.right == records, facts)


def claim_salvaged(records: int, victim: int, refused: bool, found: Comparison) -> Claim:
    """A plain reading refuses the damage; a salvaging one loses exactly the record that was hit."""
    text = (
        f"a plain reading {'stops there' if refused else 'DID NOT NOTICE'}; salvage loses "
        f"{len(found.missing)} record and reads {found.right:,} others right"
    )
    holds = (
        refused
        and found.missing == [victim]
        and not found.wrong
        and found.right == records - 1
        and [(item.offset, item.count) for item in found.damage] == [(victim, 1)]
    )
    facts: dict[str, object] = {
        "victim": victim,
        "refused": refused,
        "lost": found.missing,
        "right": found.right,
    }
    return Claim("a flipped bit costs one record", text, holds, facts)


def claim_trimmed(
    removed: list[str],
    expected: list[str],
    places: dict[str, bool],
    stayed: str,
    holder: str,
    rest: Comparison,
) -> Claim:
    """Trimming removes what all are past, nothing else, and every consumer reads on rightly."""
    text = (
        f"{len(removed)} segments went; {stayed} stays, because {holder!r} stands in it; "
        f"{sum(places.values())} of {len(places)} consumers read on rightly"
    )
    holds = bool(removed) and removed == expected and all(places.values()) and rest.exact
    facts: dict[str, object] = {"removed": removed, "stayed": stayed, "consumers": places}
    return Claim("trimming takes only what all have read", text, holds, facts)
