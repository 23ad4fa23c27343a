"""Suites over a list of cases: a seeded sample every day, all of them in the long tier.

A campaign goes through its cases in an order that the seed decides, and remembers below
`out/campaigns` how far it came: the next run goes on there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.counting import Count
from tests.support.campaigns import FOLDER, seconds_of
from tests.support.children import run_each

_Case = TypeVar("_Case")
SEED = int(os.environ.get("FOREBAY_SEED") or 0)
# How many tests share the time of the campaign.
FULL_TESTS = 9
_SHOWN_MAX = 12
# What `Ledger.check` says of values: no known failure may hide it.
_OF_VALUES = re.compile(r"told: |are lost|came twice|were never put|came again|out of order")


@dataclass(frozen=True, slots=True)
class Known:
    """A failure that is known: what it looks like, and why it still stands.

    It never stands for a value that is lost, altered or comes again.
    """

    pattern: str
    reason: str

    def matches(self, text: str) -> bool:
        if _OF_VALUES.search(text):
            return False
        return re.search(self.pattern, text, re.DOTALL) is not None


def full_seconds() -> float:
    """How long one test of the long tier may take."""
    return seconds_of("threads", FULL_TESTS)


class Outcomes:
    """What a campaign found: failures by what they look like, the known ones apart."""

    def __init__(self, known: Iterable[Known] = ()) -> None:
        self._known = list(known)
        self.cases = 0
        self.known: Counter[str] = Counter()
        self.failures: dict[str, list[str]] = {}

    def add(self, case: object, problem: str | None) -> None:
        self.cases += 1
        if problem is None:
            return
        text = f"{case}: {problem}"
        for known in self._known:
            if known.matches(text):
                self.known[known.reason] += 1
                return
        # A traceback by what it ends with.
        brief = problem.strip().splitlines()[-1] if "Traceback" in problem else problem
        self.failures.setdefault(re.sub(r"\d+", "N", brief)[:200], []).append(text)

    @property
    def problems(self) -> str:
        """An example of each failure; empty if there is none."""
        shown = sorted(self.failures.items(), key=lambda item: -len(item[1]))[:_SHOWN_MAX]
        return "\n".join(f"{len(texts)} × {texts[0]}" for _, texts in shown)

    def report(self, name: str, record: Count, total: int | None = None) -> None:
        record(name, f"{self.cases:,}" + ("" if total is None else f" of {total:,}"))
        for reason, count in self.known.items():
            record(f"{name}, known: {reason}", count)


def check_sample(
    cases: Sequence[_Case],
    run: Callable[[_Case], object],
    count: int,
    *,
    title: str = "",
    record: Count | None = None,
    known: Iterable[Known] = (),
) -> None:
    """Runs some of the cases, chosen by the seed; fails if one of them did."""
    outcomes = Outcomes(known)
    chosen = Random(SEED).sample(cases, min(count, len(cases)))
    for case, problem in run_each(chosen, run):
        outcomes.add(case, problem)
    if record is not None:
        outcomes.report(title, record, len(cases))
    assert outcomes.problems == "", outcomes.problems


def check_all(
    name: str,
    cases: Sequence[_Case],
    run: Callable[[_Case], object],
    *,
    title: str,
    record: Count,
    known: Iterable[Known] = (),
) -> None:
    """Goes on with a campaign for its time; fails if a case did, and tells how far it has come."""
    order = list(cases)
    Random(SEED).shuffle(order)
    kept = FOLDER / f"threads-{name}-{SEED}.json"
    done = _read_done(kept, len(order))
    until = time.monotonic() + full_seconds()
    outcomes = Outcomes(known)
    for case, problem in run_each(order[done:], run, until=until):
        outcomes.add(case, problem)
    done += outcomes.cases
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"cases": len(order), "done": done}))
    outcomes.report(title, record)
    record(f"{title} so far", f"{done:,} of {len(cases):,}")
    assert outcomes.problems == "", outcomes.problems


def _read_done(kept: Path, cases: int) -> int:
    """How far the last run came; 0 if it had other cases, or came to the end."""
    if not kept.exists():
        return 0
    state = json.loads(kept.read_text())
    return int(state["done"]) if state["cases"] == cases and state["done"] < cases else 0
