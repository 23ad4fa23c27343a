"""Removes every sync from the source in turn and checks whether the tests notice.

    python tools/remove_syncs.py [--list] [--quick] [--only TEXT] [--json FILE]

A site is anything that makes something durable: a call of `sync`, of `fsync`, or of a function that
only syncs; a wait for a group commit; `sync=` with a value that is not false; a sync that is passed
to another function to call. First the tests run once, in a copy of the project in which each site
records the tests that reach it. Then, for each site, a copy without it is tested with those tests,
since only they can notice, those of the same subject, the likely and the short ones first, until
one fails. That test is believed if it fails again, and passes in an unchanged copy. A site that no
test notices is a missing test, or a needless sync; the tool exits with 1 and names them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src", "forebay")
NAMES = {"sync", "_sync", "fsync", "fdatasync", "sync_now", "sync_head", "_sync_head", "sync_mark"}
NAMES |= {"sync_tree"}
# These sync to measure how long it takes; nothing depends on what they write.
MEASURING = {SOURCE / "cli" / "doctor.py"}
# With `--quick`, and without. Tests of planted bugs are about other defects.
QUICK_TESTS = ["tests/crash/test_power_cuts.py", "tests/queues", "tests/storage", "tests/aio"]
QUICK_TESTS += ["tests/pipelines/test_output.py"]
QUICK_TESTS += ["tests/spark/test_parts.py", "tests/cli/test_fifo.py", "tests/cli/test_deadline.py"]
QUICK_TESTS += ["tests/conformance/test_durable_marks.py", "-k", "not random_operations"]
ALL_TESTS = ["tests", "--ignore=tests/crash/test_planted_bugs.py"]
# The total time that the tests of one run took before; longer tests run alone.
RUN_SECONDS = 30
# The total time that all tests of a site took before, with `--quick`.
QUICK_SECONDS = 40
# Words in the names of tests or their folders that run first.
LIKELY = ("crash", "power", "cut", "durable", "sync")
HANG_SECONDS = 900
HANG = "a run that did not end"
# Imported by the copy with the notes, and a plugin of its pytest: pairs of site and test, and the
# duration of each test.
NOTES = """
import os, json, time
_seen = set()

def come_by(site):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (site, test) not in _seen:
        _seen.add((site, test))
        _note(os.environ["FOREBAY_NOTES"] + "/visits-%d" % os.getpid(), [site, test])

def pytest_runtest_logreport(report):
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        _note(os.environ["FOREBAY_NOTES"] + "/times", [report.nodeid, report.duration])

def _note(path, row):
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A place that makes something durable: where it starts and ends, and its replacement."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.text}"


def main() -> int:
    """Tries all sites; returns 0 if every removal was noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="only list the sites")
    parser.add_argument("--quick", action="store_true", help="run only the quick tests")
    parser.add_argument("--only", default="", help="sites whose path:line contains this text")
    parser.add_argument("--json", help="keep the results in a file, and continue from it")
    options = parser.parse_args()
    sites = [site for site in find_sites() if options.only in f"{site.path}:{site.line}"]
    if options.list:
        print(*sites, sep="\n")
        return 0
    found = load(options.json)
    with tempfile.TemporaryDirectory(prefix="forebay-syncs-") as scratch:
        copies = Copies(Path(scratch))
        tests = QUICK_TESTS if options.quick else ALL_TESTS
        if found.get("tests") != tests:
            found |= {"tests": tests, "visits": copies.visits(list(find_sites()), tests)}
            save(options.json, found)
        for site in sites:
            if found["caught"].get(str(site)):
                continue
            start = time.monotonic()
            visits = found["visits"].get(str(site), {})
            runs = _runs(site, visits, QUICK_SECONDS if options.quick else 1e9)
            caught_by = judge(site, copies, runs)
            found["caught"][str(site)] = caught_by
            save(options.json, found)
            print(f"{site}: {caught_by or 'NOBODY NOTICED'} ({time.monotonic() - start:.0f} s)")
            sys.stdout.flush()
    missed = [site for site in sites if not found["caught"][str(site)]]
    print(f"{len(sites) - len(missed)} of {len(sites)} removals were noticed")
    for site in missed:
        print(f"not noticed, {len(found['visits'].get(str(site), {}))} tests reach it: {site}")
    return 1 if missed else 0


def find_sites() -> Iterator[Site]:
    """Finds the sites, file by file, from top to bottom."""
    for file in sorted((ROOT / SOURCE).rglob("*.py")):
        path = file.relative_to(ROOT)
        if path in MEASURING:
            continue
        source = file.read_text()
        found = [
            Site(
                str(path),
                node.lineno,
                node.col_offset,
                node.end_lineno or node.lineno,
                node.end_col_offset or 0,
                ast.get_source_segment(source, shown) or "",
                instead,
            )
            for node, shown, instead in _replacements(ast.parse(source))
        ]
        yield from sorted(found, key=lambda site: (site.line, site.column))


def _replacements(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yields what to replace, a wider expression to show, and the replacement."""
    for node in ast.walk(tree):
        # Only statements: a call with a result does more than sync, and contains sites itself.
        if isinstance(node, ast.Expr) and _syncs(node.value):
            yield node.value, node.value, "None"
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "sync" and _decides(keyword.value):
                yield keyword.value, node, "False"
        for argument in node.args:
            if isinstance(argument, ast.Attribute) and argument.attr == "sync":
                yield argument, node, "(lambda: None)"


def _syncs(call: ast.expr) -> bool:
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Name):
        return function.id in NAMES
    if not isinstance(function, ast.Attribute):
        return False
    waits = function.attr == "wait" and ast.unparse(function.value).endswith("commit")
    return waits or function.attr in NAMES


def _decides(value: ast.expr) -> bool:
    """Returns whether a `sync=` is a decision: not a policy by name, and not one passed on."""
    if isinstance(value, ast.Constant):
        return value.value is True
    return ast.unparse(value) != "sync"


class Copies:
    """Two copies of the project: one unchanged, and one with changes."""

    def __init__(self, scratch: Path) -> None:
        self.whole, self.changed = scratch / "whole", scratch / "changed"
        self._notes = scratch / "notes"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "out", "__pycache__", ".*cache")
        for copy in (self.whole, self.changed):
            shutil.copytree(ROOT, copy, ignore=ignored)
        # Tests that pass in the unchanged copy; tests that fail there, or do so sometimes.
        self.sound: set[str] = set()
        self.unsound: set[str] = set()

    def visits(self, sites: list[Site], tests: list[str]) -> dict[str, dict[str, float]]:
        """Runs tests; returns for each site those that reach it, with the seconds that each takes.

        Tests that fail in the unchanged copy are left out.
        """
        self._notes.mkdir()
        (self.changed / "src" / "sync_notes.py").write_text(NOTES)
        for site in sites:
            self.replace(site, f'(__import__("sync_notes").come_by({str(site)!r}), %s)[1]')
        more = {"FOREBAY_NOTES": str(self._notes)}
        result = run_tests(self.changed, ["-n2", "-p", "sync_notes", *tests], **more)
        if result is not None:
            print(*result.stdout.splitlines()[-1:])
        failed = set(_failed(self.changed))
        seconds = dict(_rows(self._notes / "times"))
        visits: dict[str, dict[str, float]] = {str(site): {} for site in sites}
        for file in self._notes.glob("visits-*"):
            for place, test in _rows(file):
                if test in seconds and test not in failed:
                    visits[place][test] = seconds[test]
        for path in {site.path for site in sites}:
            self.restore(path)
        return visits

    def replace(self, site: Site, pattern: str) -> None:
        """Replaces a sync; `%s` in the pattern stands for the sync.

        Replace the sites of a line from last to first.
        """
        file = self.changed / site.path
        lines = file.read_text().splitlines(keepends=True)
        first, last = site.line - 1, site.end_line - 1
        # In bytes, as `ast` counts.
        whole = "".join(lines[first : last + 1]).encode()
        stop = len(whole) - len(lines[last].encode()) + site.end_column
        text = whole[site.column : stop].decode()
        new = pattern.replace("%s", " ".join(text.split("\n")))
        # As many lines as before, so that the other sites stay where they are.
        padding = "\n" * (last - first)
        changed = whole[: site.column].decode() + new + whole[stop:].decode() + padding
        lines[first : last + 1] = changed.splitlines(keepends=True)
        file.write_text("".join(lines))

    def restore(self, path: str) -> None:
        """Makes a file the same in both copies again."""
        shutil.copyfile(self.whole / path, self.changed / path)


def judge(site: Site, copies: Copies, runs: Iterable[list[str]]) -> str:
    """Tests a copy of the project without the sync; returns the test that noticed, or ""."""
    copies.replace(site, site.instead)
    try:
        for tests in runs:
            test = _who_notices(copies, tests)
            if test:
                return test
    finally:
        copies.restore(site.path)
    return ""


def _who_notices(copies: Copies, tests: list[str]) -> str:
    while True:
        test = first_failure(copies.changed, [each for each in tests if each not in copies.unsound])
        if test in ("", HANG) or _is_believed(test, copies):
            return test


def _is_believed(test: str, copies: Copies) -> bool:
    """Returns whether a test fails again, and passes in the unchanged copy."""
    if test not in copies.sound and not first_failure(copies.whole, [test]):
        copies.sound.add(test)
    if test in copies.sound and first_failure(copies.changed, [test]):
        return True
    print(f"left out from now on, because it is flaky or fails anyway: {test}")
    copies.sound.discard(test)
    copies.unsound.add(test)
    return False


def _runs(site: Site, visits: dict[str, float], seconds_max: float) -> Iterator[list[str]]:
    """Yields the tests that reach a site, some at a time: likely ones first, then short ones.

    Those in the file of the same subject come before all: they are about it.
    """
    own = f"/test_{Path(site.path).stem}.py::"
    tests: list[str] = []
    total = all_seconds = 0.0
    likely_first = sorted(visits, key=lambda test: (not _is_likely(test), visits[test]))
    for test in sorted(likely_first, key=lambda test: own not in test):
        all_seconds += visits[test]
        if all_seconds > seconds_max:
            break
        if tests and total + visits[test] > RUN_SECONDS:
            yield tests
            tests, total = [], 0.0
        tests.append(test)
        total += visits[test]
    if tests:
        yield tests


def _is_likely(test: str) -> bool:
    return any(word in test for word in LIKELY)


def first_failure(copy: Path, tests: list[str]) -> str:
    """Runs tests in a copy until one fails; returns its name, "" if all pass."""
    if not tests:
        return ""
    result = run_tests(copy, ["-x", *tests])
    if result is None:
        return HANG
    if result.returncode == 0:
        return ""
    # A file that pytest could not even import has noticed nothing.
    for test in _failed(copy):
        if "::" in test:
            return test
    raise RuntimeError(f"pytest ended with {result.returncode}:\n{result.stdout}{result.stderr}")


def run_tests(
    copy: Path, arguments: list[str], **more: str
) -> subprocess.CompletedProcess[str] | None:
    """Runs the everyday tests in a copy, which imports its own source; None if it hangs."""
    shutil.rmtree(copy / ".pytest_cache", ignore_errors=True)
    path = f"{copy / 'src'}{os.pathsep}{copy}"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-m", "not full", *arguments]
    try:
        return subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path, **more},
            capture_output=True,
            timeout=None if more else HANG_SECONDS,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return None


def _failed(copy: Path) -> list[str]:
    file = copy / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text())) if file.exists() else []


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    for line in file.read_text().splitlines():
        first, second = json.loads(line)
        yield first, second


def load(path: str | None) -> dict[str, Any]:
    """Reads the results of an earlier run."""
    if path is None or not Path(path).exists():
        return {"caught": {}}
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def save(path: str | None, found: dict[str, Any]) -> None:
    """Writes the results, so that a run can be continued."""
    if path is not None:
        Path(path).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
