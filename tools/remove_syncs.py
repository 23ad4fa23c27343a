"""Removes every sync from the source in turn and asks the tests whether they notice.

    python tools/remove_syncs.py [--list] [--quick] [--only TEXT] [--json FILE]

A site is whatever makes something durable: a call of `sync`, of `fsync`, or of a function that does
nothing but sync; a wait for a group commit; `sync=` with a value that is not false; a sync that is
handed to somebody else to call. For each, a copy of the project without it is tested with the tests
that are most likely to notice, the quick ones first, until one fails. That test is believed if it
fails again, and passes in a copy that lacks nothing. A site that no test notices is a missing test,
or a needless sync; the tool ends with 1 and names them.
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src", "forebay")
NAMES = {"sync", "_sync", "fsync", "fdatasync", "sync_now", "sync_head", "_sync_head", "sync_mark"}
NAMES |= {"sync_tree"}
# These sync to learn how long it takes; nothing depends on what they write.
MEASURING = {SOURCE / "cli" / "bench.py", SOURCE / "cli" / "doctor.py"}
# Which kind of queue a file of `queues/` belongs to, by the beginning of its name. The
# others are parts of a log, or of all kinds.
KINDS = {"deadline": "deadline", "event": "events", "fifo": "fifo", "beat": "events"}
SECONDS_MAX = 900
HANG = "a run that did not end"


@dataclass(frozen=True, slots=True)
class Site:
    """What makes something durable: where it stands, to its last character, and what replaces it."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    instead: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which test noticed that a sync was gone; "" if none did."""

    site: Site
    caught_by: str
    seconds: float


def main() -> int:
    """Tries all sites; returns 0 if every removal was noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="only list the sites")
    parser.add_argument("--quick", action="store_true", help="ask only the tests nearest to a site")
    parser.add_argument("--only", default="", help="sites whose path:line contains this text")
    parser.add_argument("--json", help="write the verdicts to a file; skip what was noticed in it")
    options = parser.parse_args()
    sites = [site for site in find_sites() if options.only in f"{site.path}:{site.line}"]
    if options.list:
        for site in sites:
            print(f"{site.path}:{site.line}: {site.text}")
        return 0
    noticed = {verdict.site: verdict for verdict in load(options.json) if verdict.caught_by}
    verdicts = dict(noticed)
    with tempfile.TemporaryDirectory(prefix="forebay-syncs-") as scratch:
        copies = Copies(Path(scratch))
        for site in sites:
            if site in noticed:
                continue
            verdict = verdicts[site] = judge(site, copies, quick=options.quick)
            caught_by = verdict.caught_by or "NOBODY NOTICED"
            print(f"{site.path}:{site.line}: {site.text}: {caught_by} ({verdict.seconds:.0f} s)")
            sys.stdout.flush()
            save(options.json, list(verdicts.values()))
    missed = [site for site in sites if not verdicts[site].caught_by]
    print(f"{len(sites) - len(missed)} of {len(sites)} removals were noticed")
    for site in missed:
        print(f"not noticed: {site.path}:{site.line}: {site.text}")
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
    """Yields what is to be replaced, a wider expression to show, and by what."""
    for node in ast.walk(tree):
        # Only statements: what returns something does more than sync, and holds sites itself.
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
    """Says whether a `sync=` is a decision: no policy by name, and none that is passed on."""
    if isinstance(value, ast.Constant):
        return value.value is True
    return ast.unparse(value) != "sync"


class Copies:
    """Two copies of the project: one that lacks nothing, and one to take a sync out of."""

    def __init__(self, scratch: Path) -> None:
        self.whole, self.cut = scratch / "whole", scratch / "cut"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "out", "__pycache__", ".*cache")
        for copy in (self.whole, self.cut):
            shutil.copytree(ROOT, copy, ignore=ignored)
        # Tests that fail in the copy that lacks nothing, or not each time.
        self.unsound: list[str] = []

    def remove(self, site: Site) -> None:
        """Puts into the one copy what replaces a sync."""
        lines = (self.whole / site.path).read_text().splitlines(keepends=True)
        first, last = site.line - 1, site.end_line - 1
        before = lines[first].encode()[: site.column].decode()
        after = lines[last].encode()[site.end_column :].decode()
        lines[first : last + 1] = [before + site.instead + after]
        (self.cut / site.path).write_text("".join(lines))

    def restore(self, site: Site) -> None:
        """Makes both copies the same again."""
        shutil.copyfile(self.whole / site.path, self.cut / site.path)


def judge(site: Site, copies: Copies, *, quick: bool) -> Verdict:
    """Tests a copy of the project in which the sync is gone."""
    start = time.monotonic()
    copies.remove(site)
    try:
        found = (find_catcher(copies, arguments) for arguments in tests_for(site, quick=quick))
        caught_by = next(filter(None, found), "")
    finally:
        copies.restore(site)
    return Verdict(site, caught_by, time.monotonic() - start)


def find_catcher(copies: Copies, arguments: list[str]) -> str:
    """Returns the first test that notices what the one copy lacks; "" if none does."""
    while True:
        left_out = [f"--deselect={test}" for test in copies.unsound]
        test = first_failure(copies.cut, [*arguments, *left_out])
        if test in ("", HANG):
            return test
        if first_failure(copies.cut, [test]) and not first_failure(copies.whole, [test]):
            return test
        # It fails now and then, or without our doing.
        print(f"left out from now on: {test}")
        copies.unsound.append(test)


def tests_for(site: Site, *, quick: bool) -> Iterator[list[str]]:
    """Lists the tests to ask, the nearest ones first."""
    layer, stem = Path(site.path).parts[2], Path(site.path).stem
    kind = next((KINDS[part] for part in KINDS if stem.startswith(part)), "")
    cuts = "tests/crash/test_power_cuts.py"
    near = sorted((ROOT / "tests" / layer).glob(f"test_{stem}*.py"))
    own = [[*(str(file.relative_to(ROOT)) for file in near), "-m", "not full"]] if near else []
    if layer not in ("storage", "queues"):
        yield from own
        if not quick:
            yield [f"tests/{layer}", "-m", "not full"]
        return
    if layer == "queues":
        yield [cuts, "-k", f"scenario and {kind or 'log'}-"]
    yield from own
    yield ["tests/queues/test_adoption_cuts.py", "tests/queues/test_recovery_cuts.py"]
    if layer == "storage" or not kind:
        yield [cuts, "-k", "scenario and not log-" if layer == "queues" else "scenario"]
    if not quick:
        yield [cuts, "-k", "random"]
        yield ["tests/crash", "-m", "not full", f"--ignore={cuts}"]
        yield ["tests/queues", "tests/storage", "tests/threads", "-m", "not full"]


def first_failure(copy: Path, arguments: list[str]) -> str:
    """Runs tests in a copy until one fails; returns its name, "" if all pass."""
    cache = copy / ".pytest_cache"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header"]
    # A single test needs no workers.
    command += arguments if len(arguments) == 1 and "::" in arguments[0] else ["-n2", *arguments]
    try:
        result = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return HANG
    if result.returncode == 0:
        return ""
    failed = cache / "v" / "cache" / "lastfailed"
    tests = json.loads(failed.read_text()) if failed.exists() else []
    # A file alone could not be imported: no test has noticed anything.
    for test in tests:
        if "::" in test:
            return str(test)
    raise RuntimeError(f"pytest {arguments} ended with {result.returncode}:\n{result.stdout}")


def load(path: str | None) -> list[Verdict]:
    """Reads the verdicts of an earlier run."""
    if path is None or not Path(path).exists():
        return []
    rows = json.loads(Path(path).read_text())
    return [Verdict(Site(**row.pop("site")), **row) for row in rows]


def save(path: str | None, verdicts: list[Verdict]) -> None:
    """Writes the verdicts, so that a run can be gone on with."""
    if path is not None:
        Path(path).write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))


if __name__ == "__main__":
    sys.exit(main())
