"""How the tour talks: lines for people, or claims as JSON; and it remembers what it claimed."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.cli.demo_records import Claim
from forebay.cli.demo_teller import Teller
from forebay.cli.output import write_json
from forebay.cli.tour_checks import QueueSums

# The two sums of a queue, as they stand on the screen.
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


class TourTeller(Teller):
    """Tells the tour."""

    def __init__(self, as_json: bool) -> None:
        super().__init__(as_json)
        self.told: list[Claim] = []

    def claim(self, claim: Claim) -> None:
        """Tells what was checked, and whether it holds."""
        self.told.append(claim)
        super().claim(claim)

    def sums(self, sums: Sequence[QueueSums]) -> None:
        """Tells the sums of each queue."""
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
        """Tells how it ended, and where the report is."""
        if self.as_json:
            summary = {"claims": self.claims, "failed": self.failed, "seconds": round(seconds, 2)}
            write_json({**summary, "report": report})
            return
        if self.failed:
            print(f"{self.failed} of {self.claims} claims FAILED; {seconds:.1f} s")
        else:
            print(f"all {self.claims} claims hold; {seconds:.1f} s")
        if report is not None:
            print(f"the report, with plots: {report}")
