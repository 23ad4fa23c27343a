"""How long each suite may take: the one table of `./test`.

A suite is a folder of tests, or a part of one. `everyday_seconds` is its share of the ten minutes
of `./test` on two quiet cores: the sum of its tests' times divided by the number of workers. A new
suite takes its share from the others. `campaign_minutes` is how long its campaign runs in `./test
--full`, unless `--minutes` says otherwise; 0 means that it has none. With the everyday tests and
those of the older PySpark, all of `./test --full` takes at most two hours. `quick` means that
`./test --quick` runs its tests that are not slow.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERYDAY_SECONDS_MAX = 600
CAMPAIGN_MINUTES_MAX = 87


@dataclass(frozen=True, slots=True)
class Budget:
    """The shares of a suite: where its tests are and how long they may take."""

    paths: tuple[str, ...]
    everyday_seconds: int
    campaign_minutes: int
    quick: bool = True


# The first matching row applies to a test.
BUDGETS = {
    "harm": Budget(("tests/harm",), 60, 10, quick=False),
    "threads": Budget(("tests/threads",), 50, 12, quick=False),
    "filesystems": Budget(("tests/filesystems",), 20, 4, quick=False),
    "models": Budget(
        (
            "tests/queues/test_model.py",
            "tests/queues/test_fifo_model.py",
            "tests/queues/test_deadline_model.py",
        ),
        10,
        8,
        quick=False,
    ),
    "crash": Budget(("tests/crash",), 55, 20, quick=False),
    "spark": Budget(("tests/spark", "tests/pipelines", "tests/tables"), 165, 16),
    "sharing": Budget(("tests/sharing",), 55, 3, quick=False),
    "forward": Budget(("tests/forward", "tests/cli/test_forward.py"), 30, 4, quick=False),
    "codecs": Budget(("tests/formats", "tests/kernels", "tests/golden"), 40, 4),
    "queues": Budget(("tests/queues", "tests/storage", "tests/conformance", "tests/aio"), 50, 0),
    "archive": Budget(("tests/archive",), 25, 3, quick=False),
    "rest": Budget(("tests",), 40, 3),
}
assert sum(budget.everyday_seconds for budget in BUDGETS.values()) <= EVERYDAY_SECONDS_MAX
assert sum(budget.campaign_minutes for budget in BUDGETS.values()) <= CAMPAIGN_MINUTES_MAX


def suite_of(path: str) -> str:
    """Returns the name of the suite that a test file belongs to."""
    for name, budget in BUDGETS.items():
        if any(path == part or path.startswith(part + "/") for part in budget.paths):
            return name
    raise ValueError(f"{path} is not a test")
