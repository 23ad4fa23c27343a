"""Bugs that are planted, to see that the suites can fail.

A bug is a patch of our own code that a tired programmer might have written, and the hunt that finds
it: a function that raises `Broken` where a promise does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.counting import Count

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Bug = tuple[Plant, Callable[..., Any]]


class Broken(AssertionError):
    """A promise was broken; the message tells which and where."""


def each(bugs: Mapping[str, Bug]) -> pytest.MarkDecorator:
    """Runs a test for each bug."""
    return pytest.mark.parametrize("bug", bugs.values(), ids=list(bugs))


def check_caught(bug: Bug, patch: Patch, record: Count, *place: Path) -> None:
    """Plants a bug and hunts for it; fails if it is not found."""
    plant, hunt = bug
    plant(patch)

    with pytest.raises(Broken):
        hunt(*place)

    record("planted bugs caught", 1)


def check_control(bug: Bug, place: Path) -> None:
    """The control: the same hunt finds nothing, and nothing is set aside."""
    bug[1](place)

    assert not list(place.rglob("quarantine/*"))
