"""Runs the tiers of tests and ends with one line: `N passed, N failed, N skipped`.

    --check        format, lint, types, architecture, house style
    --quick        for every edit: tests of less than 0.1 seconds, a minute in total
    (none)         the checks, all but the longest tests, and the codecs again as plain Python
    --full         the same with the longest tests: campaigns that take two hours in total; then
                   the everyday tests of Spark with the oldest PySpark that is supported
    --full NAME    only the campaign of one suite; --minutes sets how long it takes
    --seed S       where campaigns start; without it each continues where its last run ended

Everything else on the command line goes to pytest. A step that fails prints its output; one that
passes prints its name and time, and what its tests counted. A failed step that ran no test counts
as one failure. The suites and their shares of the time are in tools/budgets.py; suites that took
more than their share are listed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import older_spark  # noqa: E402  (only now it is found)
from tools.budgets import BUDGETS, suite_of  # noqa: E402

ALL = "all"
CAMPAIGNS = [name for name, budget in BUDGETS.items() if budget.campaign_minutes]
RULES = ["tests/test_architecture.py", "tests/test_house_style.py"]
PLAIN = ["tests/kernels", "tests/formats"]
SPARK = ["tests/spark", "tests/pipelines"]
WORKERS = 2
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True, slots=True)
class Step:
    """A command with a name; `tests` means that pytest runs and counts."""

    name: str
    command: list[str]
    tests: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What pytest reported, summed over the steps."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    # What tests report that is not a number to add up: "300 of 1,200".
    told: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def main() -> int:
    """Runs the steps of the tier; returns 0 if all of them passed."""
    parser = argparse.ArgumentParser(
        prog="./test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Some of pytest's options start like ours.
        allow_abbrev=False,
    )
    tiers = parser.add_mutually_exclusive_group()
    for tier in ("check", "quick"):
        tiers.add_argument(f"--{tier}", action="store_const", const=tier, dest="tier")
    tiers.add_argument("--full", nargs="?", const=ALL, metavar="NAME", choices=[ALL, *CAMPAIGNS])
    parser.add_argument("--minutes", type=float, help="how long a campaign takes")
    parser.add_argument("--seed", type=int, help="where a campaign starts")
    options, extra = parser.parse_known_args()
    if options.full is None and (options.minutes is not None or options.seed is not None):
        parser.error("--minutes and --seed are for --full")
    if options.full == ALL and options.minutes is not None:
        parser.error("--minutes is for the campaign of one suite: --full NAME")
    os.chdir(ROOT)
    if options.minutes is not None:
        os.environ["FOREBAY_MINUTES"] = str(options.minutes)
    if options.seed is not None:
        os.environ["FOREBAY_SEED"] = str(options.seed)
    total = Counts()
    tier = "full" if options.full else options.tier or "everyday"
    campaign = options.full if options.full != ALL else None
    planned = steps(tier, extra) if campaign is None else campaign_steps(campaign, extra)
    passed = [run(step, total, bool(extra)) for step in planned]
    if tier == "everyday" and not extra:
        name_the_slow(total)
    if total.passed + total.failed + total.skipped == 0:
        print("no tests ran: nothing matches the arguments")
        passed.append(False)
        total.failed += 1
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 0 if all(passed) else 1


def campaign_steps(name: str, extra: list[str]) -> list[Step]:
    """Lists the steps of one suite's campaign: its longest tests."""
    paths = [path for path in BUDGETS[name].paths if Path(path).exists()]
    others = [path for other in BUDGETS if other != name for path in BUDGETS[other].paths]
    inside = [path for path in others if path.startswith(tuple(f"{own}/" for own in paths))]
    chosen = ["-m", "full", *paths, *(f"--ignore={path}" for path in inside), *extra]
    return [pytest(name, chosen, {"FOREBAY_FULL": "1"})]


def name_the_slow(total: Counts) -> None:
    """Lists the suites that took more than their share, divided among the workers."""
    for name, budget in BUDGETS.items():
        took = total.seconds.get(name, 0.0) / WORKERS
        if took > budget.everyday_seconds:
            print(f"note: the suite {name} took {took:.0f} s of {budget.everyday_seconds}")


def steps(tier: str, extra: list[str]) -> list[Step]:
    """Lists the steps of a tier."""
    if tier == "quick":
        left_out = [path for it in BUDGETS.values() if not it.quick for path in it.paths]
        chosen = ["-m", "not slow and not full", *(f"--ignore={path}" for path in left_out), *extra]
        return [pytest("tests", chosen, {"FOREBAY_QUICK": "1"})]
    checks = [
        Step("format", ["ruff", "format", "--check", "--quiet", "."]),
        Step("lint", ["ruff", "check", "--quiet", "."]),
        Step("types", ["mypy"]),
    ]
    if tier == "check":
        return [*checks, pytest("rules", [*RULES, *extra], workers=0)]
    chosen = [] if tier == "full" else ["-m", "not full"]
    environment = {"FOREBAY_FULL": "1"} if tier == "full" else {}
    planned = [*checks, pytest("tests", [*chosen, *extra], environment)]
    plain = narrowed(extra, PLAIN)
    if plain is not None:
        examples = {} if tier == "full" else {"FOREBAY_QUICK": "1"}
        environment = {**environment, **examples, "FOREBAY_PURE": "1"}
        planned.append(pytest("tests, plain Python", [*chosen, *plain], environment))
    spark = narrowed(extra, SPARK)
    if tier == "full" and spark is not None:
        planned += older_spark_steps(spark)
    return planned


def older_spark_steps(arguments: list[str]) -> list[Step]:
    """Lists the steps that run the everyday tests of Spark with the older PySpark."""
    version = older_spark.VERSION
    install = Step(f"PySpark {version}", [sys.executable, "-m", "tools.older_spark"])
    environment = {"PYTHONPATH": str(older_spark.PLACE), "FOREBAY_SPARK": version}
    run = pytest(f"tests, PySpark {version}", ["-m", "not full", *arguments], environment)
    return [install, run]


def narrowed(extra: list[str], folders: list[str]) -> list[str] | None:
    """Narrows the arguments to the tests of some folders; None if none are selected."""
    paths = [text for text in extra if Path(text.partition("::")[0]).exists()]
    rest = [text for text in extra if text not in paths]
    if paths:
        chosen = [text for text in paths if text.startswith(tuple(folders))]
    else:
        chosen = [text for text in folders if Path(text).exists()]
    return [*chosen, *rest] if chosen else None


def pytest(
    name: str,
    arguments: list[str],
    environment: dict[str, str] | None = None,
    workers: int = WORKERS,
) -> Step:
    """Makes a step that runs pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *arguments]
    return Step(name, command, tests=True, environment=environment or {})


def run(step: Step, total: Counts, selected: bool) -> bool:
    """Runs a step, adds its counts to the total and returns whether it passed.

    `selected` means that the user narrowed the tests, so that a step may be left with none.
    """
    print(f"{step.name:<20} ", end="", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [*step.command, f"--junitxml={report}"] if step.tests else step.command
        result = subprocess.run(
            command,
            env={**inherited(), **step.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        counts = read_counts(report)
    empty = step.tests and selected and result.returncode == NO_TESTS_COLLECTED
    passed = result.returncode == 0 or empty
    verdict = "none" if empty else "ok" if passed else "FAILED"
    print(f"{verdict:<6} {time.monotonic() - start:6.1f} s", flush=True)
    for name, number in counts.counted.items():
        print(f"  {number:>12,} {name}", flush=True)
    for name, text in counts.told.items():
        print(f"  {text:>12} {name}", flush=True)
    if not passed:
        print(result.stdout, flush=True)
        counts.failed = max(counts.failed, 1)
    total.passed += counts.passed
    total.failed += counts.failed
    total.skipped += counts.skipped
    for name, seconds in counts.seconds.items():
        total.seconds[name] = total.seconds.get(name, 0.0) + seconds
    return passed


def inherited() -> dict[str, str]:
    """Returns the environment of the steps. Hundreds of processes start: all use compiled files."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def read_counts(report: Path) -> Counts:
    """Reads the counts from pytest's report; none if it wrote none."""
    if not report.exists():
        return Counts()
    counts = Counts()
    for suite in ElementTree.parse(report).iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        counts.passed += int(suite.get("tests", 0)) - failed - skipped
        counts.failed += failed
        counts.skipped += skipped
        for counted in suite.iter("property"):
            name, text = counted.get("name", ""), counted.get("value", "")
            if text.isdecimal():
                counts.counted[name] = counts.counted.get(name, 0) + int(text)
            else:
                counts.told[name] = text
        for case in suite.iter("testcase"):
            name = case.get("classname", "")
            if not name.startswith("tests."):
                # Not a test: a file that could not be imported, or a worker that died.
                continue
            suite_name = suite_of(name.replace(".", "/") + ".py")
            seconds = float(case.get("time", 0))
            counts.seconds[suite_name] = counts.seconds.get(suite_name, 0.0) + seconds
    return counts


if __name__ == "__main__":
    sys.exit(main())
