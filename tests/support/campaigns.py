"""Campaigns: long runs of `./test --full` that take time, not counts, and go on where they were.

A campaign tries one seed after another until its minutes are over. `./test --full NAME` runs one,
`--minutes` and `--seed` say how long and where it begins. Without a seed it begins where the last
one ended, which a small file below `out/campaigns` tells.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.sources import ROOT
from tools.budgets import BUDGETS

FULL = os.environ.get("FOREBAY_FULL") == "1"
FOLDER = ROOT / "out" / "campaigns"
# `./test` runs this many tests at once, so that each of a campaign's tests has this much more time.
WORKERS = 2


def seconds_of(suite: str, tests: int) -> float:
    """Returns how long one test of a campaign may run, if the campaign is of so many tests."""
    given = os.environ.get("FOREBAY_MINUTES")
    minutes = float(given) if given else BUDGETS[suite].campaign_minutes
    return minutes * 60 * min(WORKERS, tests) / tests


def seeds(suite: str, name: str, *, tests: int = 1) -> Iterator[int]:
    """Yields seeds until the time of this test is over; at least one.

    `name` tells this test from the others of the campaign.
    """
    end = time.monotonic() + seconds_of(suite, tests)
    state = FOLDER / f"{suite}-{name}.json"
    seed = first_seed(state)
    while True:
        yield seed
        seed += 1
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps({"next": seed}))
        if time.monotonic() > end:
            return


def first_seed(state: Path) -> int:
    """Returns the seed to begin with: the one that is asked for, or the one after the last."""
    given = os.environ.get("FOREBAY_SEED")
    if given:
        return int(given)
    try:
        return int(json.loads(state.read_text())["next"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0
