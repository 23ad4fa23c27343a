"""The campaigns of `./test --full`: each suite that has minutes has tests of its own for them."""

from __future__ import annotations

import re

from tests.sources import python_files
from tools.budgets import suite_of
from tools.test import CAMPAIGNS, campaign_steps

FULL = re.compile(r"^@pytest\.mark\.full$", re.MULTILINE)


def test_every_suite_that_has_a_campaign_has_tests_for_it() -> None:
    marked = [source.path for source in python_files() if FULL.search(source.text)]

    assert {suite_of(path) for path in marked} == set(CAMPAIGNS)


def test_the_campaign_of_the_rest_runs_no_other_one() -> None:
    (step,) = campaign_steps("rest", [])

    assert "tests" in step.command
    assert {"--ignore=tests/harm", "--ignore=tests/spark"} <= set(step.command)
