"""Judges one look at a harmed queue: the sum, and the cost."""

from __future__ import annotations

import os
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.formats.entry import parse_file_name
from tests.harm.recipes import Seen, Truth
from tests.harm.rows import NOTHING, Row

# A bad batch of a deadline queue's log costs as many items, at most.
BATCH_ITEMS_MAX = 16


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not hold: a word for the class of it, and the story."""

    sort: str
    story: str

    def __str__(self) -> str:
        return f"{self.sort}: {self.story}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a harm may cost: the row, the numbers that may be missing, and how many of them.

    `untold` are those of which nobody can tell that they were there.
    """

    row: Row
    may_miss: frozenset[int]
    count_max: int
    file: str
    file_bytes: int
    alive: bool = False
    untold: frozenset[int] = frozenset()

    def names(self, damage: Damage) -> bool:
        """Says whether a damage tells of the harmed file: one of a tape may begin before it."""
        if self.file in damage.path or self.file in damage.reason:
            return True
        if self.file == "staging" and damage.path.endswith((".tape", ".wal")):
            # What was staged has its place there.
            return True
        first = parse_file_name(os.path.basename(damage.path))
        hit = parse_file_name(self.file)
        if first is None or hit is None:
            return False
        return first <= hit <= first + (damage.position + damage.length - 1) // self.file_bytes


def judge_look(seen: Seen, expected: list[int], truth: Truth, bounds: Bounds) -> list[Fault]:
    """Returns what is wrong with a look that was to give the expected numbers."""
    faults = judge_values(seen, bounds)
    if not bounds.row.told:
        return faults
    faults += _judge_given(seen, expected, truth, bounds)
    missing = [number for number in expected if number not in set(seen.given)]
    faults += _judge_cost(seen, missing, bounds)
    if "sum" in seen.what:
        return faults
    faults += judge_told(seen.what, missing, seen.told, seen.overtaken, bounds)
    return faults


def judge_values(seen: Seen, bounds: Bounds) -> list[Fault]:
    """Returns what was given out and was never put; of another queue where that can be told."""
    told = bounds.row.told
    wrong = [text for text in seen.wrong if told or "never" in text or "altered:" in text]
    return [Fault("altered", f"{seen.what}: {text}") for text in wrong]


def _judge_given(seen: Seen, expected: list[int], truth: Truth, bounds: Bounds) -> list[Fault]:
    faults = []
    allowed = set(expected) | (set(truth.gone) | set(truth.there) if bounds.row.again else set())
    phantoms = [number for number in seen.given if number not in allowed]
    if phantoms:
        faults.append(Fault("came again", f"{seen.what}: {phantoms} had left"))
    if len(set(seen.given)) < len(seen.given) and not (bounds.alive and bounds.row.again):
        twice = sorted({number for number in seen.given if seen.given.count(number) > 1})
        faults.append(Fault("twice", f"{seen.what}: {twice}"))
    places = {number: place for place, number in enumerate(expected)}
    moved = set(truth.moved) if bounds.row.again else set()
    order = [places[n] for n in seen.given if n in places and n not in moved]
    # What a living owner has given out may come again from a reopened queue.
    if order != sorted(order) and not (bounds.alive and bounds.row.again):
        faults.append(Fault("order", f"{seen.what}: {seen.given}"))
    return faults


def _judge_cost(seen: Seen, missing: list[int], bounds: Bounds) -> list[Fault]:
    beyond = sorted(set(missing) - bounds.may_miss)
    if beyond:
        text = f"{seen.what}: {beyond} are missing and have no bytes in what was hit"
        return [Fault("cost", text)]
    if len(missing) > bounds.count_max:
        text = f"{seen.what}: {len(missing)} are missing, at most {bounds.count_max} may be"
        return [Fault("cost", text)]
    return []


def judge_told(
    what: str, missing: list[int], told: list[Damage], overtaken: int, bounds: Bounds
) -> list[Fault]:
    """Checks that what is missing was told, in number or as unknown, and nothing else."""
    losses = [damage for damage in told if not damage.torn or damage.count]
    known = sum(damage.count or 0 for damage in losses) + overtaken
    # A number that is unknown excuses only what is missing from the file that was harmed.
    unknown = any(damage.count is None and bounds.names(damage) for damage in losses)
    faults = []
    if missing and not losses and not overtaken:
        if not _may_be_untold(missing, bounds.untold):
            faults.append(Fault("silent", f"{what}: {missing} are missing and nobody is told"))
    elif missing and not unknown and known != len(missing):
        sort = "unknown as 0" if known == 0 else "sum"
        faults.append(Fault(sort, f"{what}: {len(missing)} are missing, told {known}: {losses}"))
    elif missing and known > len(missing):
        faults.append(Fault("sum", f"{what}: {len(missing)} are missing, told {known}: {losses}"))
    elif not missing and (known or (unknown and bounds.row == NOTHING)):
        faults.append(Fault("alarm", f"{what}: nothing is missing, told {losses}, {overtaken}"))
    if missing and losses and not any(map(bounds.names, losses)):
        faults.append(Fault("not named", f"{what}: {bounds.file} is not in {losses}"))
    if len(set(told)) < len(told):
        faults.append(Fault("told twice", f"{what}: {told}"))
    return faults


def _may_be_untold(missing: list[int], untold: frozenset[int]) -> bool:
    """Says whether only the newest are missing; looks that only count have no numbers."""
    if not any(missing):
        return len(missing) <= len(untold)
    return set(missing) <= untold and max(untold) in missing
