"""The matrix by hand.

`python -m tests.harm KIND POLICY STATE FILE HARM [SEED]` tells the whole story of one case.
`python -m tests.harm --table [WORD …]` runs all cells whose id has these words and prints counts.
`python -m tests.harm --known [WORD …]` does the same and rewrites the files of known failures.
"""

from __future__ import annotations

import collections
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.harm.cases import Outcome, run_cell
from tests.harm.cells import Cell, all_cells
from tests.harm.harms import NotHere
from tests.harm.known import known_failures, write_known


def main() -> int:
    words = sys.argv[1:]
    if not words:
        _say(str(__doc__))
        return 2
    # What the queues log is not what they tell their callers.
    logging.disable()
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    root = Path(tempfile.mkdtemp(prefix="forebay-harm-", dir=shared))
    root.chmod(0o711)
    try:
        if words[0].startswith("--"):
            return _many(root, words[1:], rewrite=words[0] == "--known")
        return _one(root, words)
    finally:
        shutil.rmtree(root)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _one(root: Path, words: list[str]) -> int:
    outcome = run_cell(root, Cell(*words[:5]), int(words[5]) if len(words) > 5 else 0)
    _say("\n".join(outcome.story))
    _say("\n".join(f"FAULT {fault}" for fault in outcome.faults) or "all holds")
    return 1 if outcome.faults else 0


def _many(root: Path, words: list[str], *, rewrite: bool) -> int:
    table: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    known = known_failures()
    empty = 0
    seen_kinds = set()
    for cell, outcome in _outcomes(root, words):
        known.pop(cell.id, None)
        seen_kinds.add(cell.kind)
        if outcome is None:
            empty += 1
            continue
        counts = table[cell.kind, cell.harm]
        counts[0] += 1
        if outcome.faults:
            counts[1] += 1
            first = " ".join(str(outcome.faults[0]).split())[:300]
            _say(f"{cell.id}\t{outcome.sorts}\t{first}")
            known[cell.id] = outcome.sorts
    for (kind, harm), (cases, failed) in sorted(table.items()):
        _say(f"{kind:10} {harm:14} {cases:5} cases {failed:5} failed")
    cases, failed = (sum(counts[at] for counts in table.values()) for at in (0, 1))
    _say(f"{cases} cases, {failed} failed, {empty} cells are empty")
    if rewrite:
        order = {cell.id: None for cell in all_cells()}
        write_known({cell: known[cell] for cell in order if cell in known}, seen_kinds)
    return 0


def _outcomes(root: Path, words: list[str]) -> Iterator[tuple[Cell, Outcome | None]]:
    for cell in all_cells():
        if all(word in cell.id for word in words):
            try:
                yield cell, run_cell(root, cell)
            except NotHere:
                yield cell, None


if __name__ == "__main__":
    sys.exit(main())
