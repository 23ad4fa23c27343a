"""What the tour prints: lines and claims as text, or claims as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from examples.tour.checks import Claim, QueueSums

# The two sums of a queue, as they are printed.
_COLUMNS = (
    ("range", "="),
    ("landed", "+"),
    ("damaged", "+"),
    ("trimmed", "|"),
    ("landed", "="),
    ("decoded", "+"),
    ("rejected", "+"),
    ("deduplicated", "+"),
    ("filtered", ""),
)
_ERASE_LINE = "\r\x1b[K"


class Terminal:
    """Prints what happens, and keeps the claims for the report."""

    def __init__(self, as_json: bool) -> None:
        self.claims: list[Claim] = []
        self._as_json = as_json
        self._shows_progress = sys.stderr.isatty() and not as_json

    @property
    def failed(self) -> int:
        """Returns how many claims do not hold."""
        return sum(not claim.holds for claim in self.claims)

    def line(self, text: str) -> None:
        """Prints what happens."""
        if not self._as_json:
            self.progress("")
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Replaces the progress line on stderr, if that is a terminal."""
        if self._shows_progress:
            print(f"{_ERASE_LINE}{text}", end="", file=sys.stderr, flush=True)

    def claim(self, claim: Claim) -> None:
        """Prints what was checked, and whether it holds."""
        self.claims.append(claim)
        self.line(f"   {'ok    ' if claim.holds else 'FAILED'} {claim.text}")
        if self._as_json:
            _print_json({"claim": claim.name, "holds": claim.holds, **claim.facts})

    def sums(self, sums: Sequence[QueueSums]) -> None:
        """Prints the sums of each queue."""
        rows = [["", *(name for name, _ in _COLUMNS)]]
        for one in sums:
            values = {"range": one.range, **one.counts}
            rows.append([one.queue, *(f"{values[name]:,}" for name, _ in _COLUMNS)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for queue, *cells in rows:
            parts = [
                f"{cell:>{width}} {sign}"
                for cell, width, (_, sign) in zip(cells, widths[1:], _COLUMNS, strict=True)
            ]
            self.line(f"   {queue:<{widths[0]}}  {' '.join(parts)}".rstrip())

    def verdict(self, seconds: float, report: str | None) -> None:
        """Prints the result, and where the report is."""
        count, failed = len(self.claims), self.failed
        if self._as_json:
            summary = {"claims": count, "failed": failed, "seconds": round(seconds, 2)}
            _print_json({**summary, "report": report})
        held = f"{failed} of {count} claims FAILED" if failed else f"all {count} claims hold"
        self.line(f"{held}; {seconds:.1f} s")
        if report is not None:
            self.line(f"the report, with plots: {report}")


def _print_json(document: dict[str, object]) -> None:
    print(json.dumps(document, separators=(",", ":")), flush=True)
