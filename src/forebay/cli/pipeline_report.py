"""What `forebay pipeline` prints: progress, totals and the proof."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from forebay.cli.output import Bar, plural, say, talk, write_json, write_table

if TYPE_CHECKING:
    from forebay.pipelines import IngestResult, Progress, Reconciliation

_COUNTS = ("landed", "decoded", "rejected", "deduplicated", "filtered", "damaged", "trimmed")
# Matches an error of Forebay in the Python traceback that is part of Java's message.
_OURS = re.compile(r"^(?:forebay\.errors\.)\w+: (.+)$", re.MULTILINE)


class Meter:
    """Reports every batch: with a bar on a terminal, as lines elsewhere, as objects with --json."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._bar = Bar("ingest", hidden=as_json)

    def update(self, progress: Progress) -> None:
        """Reports one batch."""
        counts = progress.counts
        if self._as_json:
            seconds = round(progress.seconds, 3)
            write_json({"batch": progress.batch, "seconds": seconds, "counts": asdict(counts)})
            sys.stdout.flush()
        elif sys.stderr.isatty():
            rate = progress.total.landed / max(progress.seconds, 0.001)
            note = f"batch {progress.batch}, {progress.total.landed:,} landed, {rate:,.0f}/s"
            self._bar.update(progress.total.landed, note)
        else:
            told = [
                f"{getattr(counts, name):,} {name}" for name in _COUNTS if getattr(counts, name)
            ]
            talk(f"batch {progress.batch}: {', '.join(told)}")

    def __enter__(self) -> Meter:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, traceback)


def write_result(result: IngestResult, *, as_json: bool) -> None:
    """Prints what a run did."""
    if as_json:
        write_json(
            {
                "out": result.out,
                "batches": list(result.batches),
                "seconds": round(result.seconds, 3),
                "queues": {queue: asdict(counts) for queue, counts in result.queues.items()},
            }
        )
        return
    if result.queues:
        rows = [
            [queue, *(getattr(counts, name) for name in _COUNTS)]
            for queue, counts in result.queues.items()
        ]
        write_table(["queue", *_COUNTS], rows)
    batches = f"{len(result.batches):,} batch{'' if len(result.batches) == 1 else 'es'}"
    records = plural(result.counts.landed, "record")
    talk(f"{records} in {batches}, {result.seconds:.1f} s")


def write_proof(found: Reconciliation, *, as_json: bool) -> None:
    """Prints the totals of each queue, and what does not add up."""
    if as_json:
        for proof in found.queues:
            place = {"queue": proof.queue, "id": proof.id, "start": proof.start, "end": proof.end}
            rest = {
                "range": proof.range,
                "counts": asdict(proof.counts),
                "problems": list(proof.problems),
            }
            write_json({**place, **rest})
        summary = {"proven": found.proven, "batches": found.batches, "older": found.older}
        sums = {"counts": asdict(found.counts), "problems": list(found.problems)}
        write_json({"summary": {**summary, **sums}})
        return
    rows = []
    for proof in found.queues:
        counts = [getattr(proof.counts, name) for name in _COUNTS]
        verdict = "proven" if not proof.problems else "WRONG"
        rows.append([proof.queue, f"{proof.start}..{proof.end}", proof.range, *counts, verdict])
    write_table(["queue", "offsets", "range", *_COUNTS, "verdict"], rows)
    for problem in found.problems:
        say(f"{found.out}: {problem}")
    for proof in found.queues:
        for problem in proof.problems:
            say(f"{proof.queue}: {problem}")
    if found.older:
        talk(f"{found.older} of {found.batches} batches have an older definition")
    if found.proven:
        talk("range = landed + damaged + trimmed")
        talk("landed = decoded + rejected + deduplicated + filtered; no offset twice")


def cause_of(message: str) -> str:
    """Returns the line that matters from Spark's message about a failed query."""
    ours = _OURS.findall(message)
    if ours:
        return str(ours[-1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed without a message"
