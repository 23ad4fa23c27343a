"""The matrix by hand.

`python -m tests.harm KIND POLICY STATE FILE HARM [SEED]` tells the whole story of one case.
`python -m tests.harm --table [WORD …]` runs all cells whose id has these words, and prints what
failed, and how many cases fell under each row.
"""

from __future__ import annotations

import collections
import logging
import sys
from pathlib import Path

from tests.harm.cases import run_cell
from tests.harm.cells import Cell, all_cells
from tests.harm.harms import NotHere
from tests.support.memory import scratch


def main() -> int:
    words = sys.argv[1:]
    if not words:
        _say(str(__doc__))
        return 2
    # What the queues log is not what they tell their callers.
    logging.disable()
    with scratch("harm") as root:
        if words[0].startswith("--"):
            return _many(root, words[1:])
        return _one(root, words)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _one(root: Path, words: list[str]) -> int:
    outcome = run_cell(root, Cell(*words[:5]), int(words[5]) if len(words) > 5 else 0)
    _say("\n".join(outcome.story))
    _say("\n".join(f"FAULT {fault}" for fault in outcome.faults) or "all holds")
    return 1 if outcome.faults else 0


def _many(root: Path, words: list[str]) -> int:
    table: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    rows: collections.Counter[str] = collections.Counter()
    empty: collections.Counter[str] = collections.Counter()
    for cell in all_cells():
        if not all(word in cell.id for word in words):
            continue
        try:
            outcome = run_cell(root, cell)
        except NotHere as reason:
            empty[str(reason)] += 1
            continue
        rows[outcome.row.text] += 1
        counts = table[cell.kind, cell.harm]
        counts[0] += 1
        if outcome.faults:
            counts[1] += 1
            first = " ".join(str(outcome.faults[0]).split())[:300]
            _say(f"{cell.id}\t{outcome.sorts}\t{first}")
    for (kind, harm), (cases, failed) in sorted(table.items()):
        _say(f"{kind:10} {harm:14} {cases:5} cases {failed:5} failed")
    for text, number in rows.most_common():
        _say(f"{number:6} cases: {text}")
    for text, number in empty.most_common():
        _say(f"{number:6} cells are empty: {text}")
    cases, failed = (sum(counts[at] for counts in table.values()) for at in (0, 1))
    _say(f"{cases} cases, {failed} failed, {empty.total()} cells are empty")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
