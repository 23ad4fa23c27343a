"""The crash tests can fail: each of these bugs, planted into a queue, is caught.

A bug is a patch of our own code that a tired programmer might have written, and the hunt that finds
it. `test_without_a_bug_the_same_hunts_find_nothing` is the control, a campaign.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.counting import Count
from tests.crash import beats_bugs, deadline_bugs, fifo_bugs, log_bugs
from tests.crash.hunts import quietly
from tests.crash.kinds import CRASH_CAMPAIGNS
from tests.support.campaigns import seeds
from tests.support.planting import Bug, Patch, check_caught, each

KINDS = {
    "log": log_bugs.BUGS,
    "beats": beats_bugs.BUGS,
    "fifo": fifo_bugs.BUGS,
    "deadline": deadline_bugs.BUGS,
}
BUGS: dict[str, Bug] = {
    f"{kind}, {name}": bug for kind in KINDS for name, bug in KINDS[kind].items()
}


# A hunt that finds its bug ends in the middle, with a queue open.
pytestmark = pytest.mark.filterwarnings("ignore:.* was not closed:ResourceWarning")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        yield from quietly(patch)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Lets go of the queue that a hunt had open when it found the bug."""
    yield
    gc.collect()


@pytest.mark.slow
@each(BUGS)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: Patch, record_property: Count) -> None:
    check_caught(bug, monkeypatch, record_property)


@pytest.mark.full
def test_without_a_bug_the_same_hunts_find_nothing(record_property: Count) -> None:
    names = list(BUGS)
    hunts = 0
    for seed in seeds("crash", "controls", tests=CRASH_CAMPAIGNS):
        _, hunt = BUGS[names[seed % len(names)]]
        assert hunt() > 0
        hunts += 1

    record_property("hunts without a bug", hunts)
