"""Removes every sync from the source in turn and asks the tests whether they notice.

    python tools/remove_syncs.py [--list] [--only TEXT] [--json FILE]

Each call that makes something durable, in the layers that write, is a site. For each, a copy of the
project without that call is tested with the tests that are most likely to notice, the quick ones
first, until one fails. A site that no test notices is a missing test, or a needless sync; the tool
ends with 1 and names them.
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
LAYERS = ("storage", "queues", "spark", "pipelines")
NAMES = {"sync", "fsync", "fdatasync"}
# Which kind of queue a file of `queues/` belongs to, by the beginning of its name.
KINDS = {"deadline": "deadline", "event": "events", "fifo": "fifo", "beat": "events"}
SECONDS_MAX = 900


@dataclass(frozen=True, slots=True)
class Site:
    """A call that makes something durable: where it stands, to its last character."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which tests noticed that a sync was gone; "" if none did."""

    site: Site
    caught_by: str
    seconds: float


def main() -> int:
    """Tries all sites; returns 0 if every removal was noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="only list the sites")
    parser.add_argument("--only", default="", help="sites whose path:line contains this text")
    parser.add_argument("--json", help="write the verdicts to a file, and skip those in it")
    options = parser.parse_args()
    sites = [site for site in find_sites() if options.only in f"{site.path}:{site.line}"]
    if options.list:
        for site in sites:
            print(f"{site.path}:{site.line}: {site.text}")
        return 0
    verdicts = load(options.json)
    known = {(verdict.site.path, verdict.site.line, verdict.site.text) for verdict in verdicts}
    for site in sites:
        if (site.path, site.line, site.text) in known:
            continue
        verdict = judge(site)
        verdicts.append(verdict)
        noticed = verdict.caught_by or "NOBODY NOTICED"
        print(f"{site.path}:{site.line}: {site.text}: {noticed} ({verdict.seconds:.0f} s)")
        sys.stdout.flush()
        save(options.json, verdicts)
    missed = [verdict for verdict in verdicts if not verdict.caught_by]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} removals were noticed")
    return 1 if missed else 0


def find_sites() -> Iterator[Site]:
    """Finds the calls, file by file."""
    for layer in LAYERS:
        for file in sorted((ROOT / "src" / "forebay" / layer).rglob("*.py")):
            source = file.read_text()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Expr) and _is_sync(node.value):
                    text = ast.get_source_segment(source, node) or ""
                    path = str(file.relative_to(ROOT))
                    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
                    yield Site(path, node.lineno, node.col_offset, *end, text)


def _is_sync(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in NAMES
    )


def judge(site: Site) -> Verdict:
    """Tests a copy of the project in which the call is gone."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-syncs-") as scratch:
        copy = Path(scratch, "project")
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "out", "__pycache__", ".*cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        remove(copy / site.path, site)
        for name, arguments in tests_for(site):
            if not passes(copy, arguments):
                return Verdict(site, name, time.monotonic() - start)
    return Verdict(site, "", time.monotonic() - start)


def remove(file: Path, site: Site) -> None:
    """Puts `pass` in the place of the call."""
    lines = file.read_text().splitlines(keepends=True)
    first, last = site.line - 1, site.end_line - 1
    rest = lines[last].encode()[site.end_column :].decode()
    lines[first : last + 1] = [lines[first].encode()[: site.column].decode() + "pass" + rest]
    file.write_text("".join(lines))


def tests_for(site: Site) -> Iterator[tuple[str, list[str]]]:
    """Lists the tests to ask, with a name for each choice, the quick ones first."""
    layer, stem = Path(site.path).parts[2], Path(site.path).stem
    mirrored = Path("tests", layer, f"test_{stem}.py")
    if (ROOT / mirrored).exists():
        yield "its own tests", [str(mirrored), "-m", "not full"]
    if layer in ("spark", "pipelines"):
        yield f"the tests of {layer}", [f"tests/{layer}", "-m", "not full"]
        return
    kind = next((KINDS[part] for part in KINDS if stem.startswith(part)), "")
    cuts = "tests/crash/test_power_cuts.py"
    if kind or layer == "queues":
        yield "scenarios", [cuts, "-k", f"scenario and {kind or 'log'}"]
    yield "all scenarios", [cuts, "-k", "scenario"]
    yield "random operations", [cuts, "-k", "random"]
    yield "the other crash tests", ["tests/crash", "-m", "not full", f"--ignore={cuts}"]
    yield "the tests of queues", ["tests/queues", "tests/storage", "-m", "not full"]


def passes(copy: Path, arguments: list[str]) -> bool:
    """Says whether tests pass in a copy; a run that takes far too long is noticed too."""
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--no-header", *arguments]
    try:
        result = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


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
