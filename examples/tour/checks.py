"""What the tour proves from the tables, by `reconcile` and by comparison with the events.

The producers' events are known in advance, so the tables are compared with what must be in them,
value by value, without relying on the counts of the pipeline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from examples.tour.events import (
    DAMAGED_OFFSET,
    DAMAGED_QUEUE,
    DECODED,
    EVENT_QUEUE,
    QUEUES,
    Plan,
    event,
    fate,
    frame_position,
    number_of,
)
from examples.tour.jobs import BURIED, Jobs, fate_of, job
from examples.tour.jobs import number_of as job_number
from examples.tour.processes import answer_of

# Where the events and the snapshot of the jobs go.
TABLES, SNAPSHOT = OUTS = "tables", "snapshot"
JOB_COLUMNS = ["value", "type", "requeue_time"]
# The exit code of `reconcile` if sums do not add up.
_RECONCILE_FAILED = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the tour, whether it holds, and the facts that show it."""

    name: str
    text: str
    holds: bool
    facts: dict[str, object]


@dataclass(frozen=True, slots=True)
class QueueSums:
    """What `reconcile` found for one queue."""

    queue: str
    range: int
    counts: dict[str, int]
    problems: tuple[str, ...]


@dataclass(slots=True)
class Comparison:
    """What a table holds, compared with what it should hold."""

    right: int = 0
    wrong: int = 0
    twice: int = 0
    missing: int = 0

    @property
    def exact(self) -> bool:
        """Returns whether everything is there once, and correct."""
        return not (self.wrong or self.twice or self.missing)

    def __str__(self) -> str:
        return f"missing: {self.missing}, twice: {self.twice}, wrong: {self.wrong}"


@dataclass(slots=True)
class Proof:
    """Everything that was found in the tables of a tour."""

    sums: list[QueueSums]
    landed: Comparison
    decoded: Comparison
    jobs: Comparison
    damage: list[dict[str, Any]]


def prove(directory: str, plan: Plan) -> Proof:
    """Runs `forebay pipeline reconcile`, and compares the tables with the events."""
    return Proof(
        reconcile(directory),
        compare_landed(_rows(directory, "landed", ["queue", "offset", "value"]), plan),
        compare_decoded(_rows(directory, "decoded", ["queue", "id"]), plan),
        compare_jobs(_rows(directory, "landed", JOB_COLUMNS, SNAPSHOT), plan.jobs),
        [
            {**row, "queue": os.path.basename(row["queue"])}
            for row in _rows(directory, "damage", None)
        ],
    )


def reconcile(directory: str) -> list[QueueSums]:
    """Returns the sums that `forebay pipeline reconcile` finds, in a separate process."""
    answer = answer_of(
        ["pipeline", "reconcile", *(os.path.join(directory, out) for out in OUTS), "--json"],
        os.path.join(directory, "reconcile.log"),
        (0, _RECONCILE_FAILED),
    )
    rows = [json.loads(line) for line in answer.splitlines()]
    return [
        QueueSums(
            os.path.basename(row["queue"]),
            row["range"],
            row["counts"],
            tuple(row["problems"]),
        )
        for row in rows
        if "queue" in row
    ]


def compare_landed(rows: Iterable[Mapping[str, Any]], plan: Plan) -> Comparison:
    """Compares each value with the event that should have been written there."""
    found = Comparison()
    seen = {queue: bytearray(plan.per_queue) for queue in QUEUES}
    for row in rows:
        queue = os.path.basename(row["queue"])
        offset = number_of(row["value"]) if queue == EVENT_QUEUE else row["offset"]
        if queue not in seen or not 0 <= offset < plan.per_queue:
            found.wrong += 1
        elif seen[queue][offset]:
            found.twice += 1
        else:
            seen[queue][offset] = 1
            right = row["value"] == event(queue, offset) and not plan.is_damaged(queue, offset)
            found.right += right
            found.wrong += not right
    expected = sum(plan.expected(queue)["landed"] for queue in QUEUES)
    found.missing = max(0, expected - sum(map(sum, seen.values())))
    return found


def compare_decoded(rows: Iterable[Mapping[str, Any]], plan: Plan) -> Comparison:
    """Compares the ids with those that must be there, each once."""
    found = Comparison()
    missing = {
        f"{queue}-{offset}"
        for queue in QUEUES
        for offset in range(plan.per_queue)
        if fate(offset) == DECODED and not plan.is_damaged(queue, offset)
    }
    seen: set[str] = set()
    for row in rows:
        if row["id"] in missing:
            missing.remove(row["id"])
            seen.add(row["id"])
            found.right += 1
        elif row["id"] in seen:
            found.twice += 1
        else:
            found.wrong += 1
    found.missing = len(missing)
    return found


def compare_jobs(rows: Iterable[Mapping[str, Any]], jobs: Jobs) -> Comparison:
    """Compares the rows of a snapshot with the jobs that must be in it, and their fates."""
    found = Comparison()
    missing = jobs.left()
    seen: set[int] = set()
    for row in rows:
        number = job_number(row["value"])
        fate = fate_of(requeued=row["requeue_time"] is not None, buried=row["type"] == BURIED)
        if number in seen:
            found.twice += 1
        elif row["value"] == job(number) and missing.get(number) == fate:
            seen.add(number)
            found.right += 1
        else:
            found.wrong += 1
    found.missing = len(missing) - len(seen)
    return found


def claim_reconciled(sums: list[QueueSums], plan: Plan) -> Claim:
    """Claims that the sums add up and match the producers' events."""
    problems = [f"{one.queue}: {problem}" for one in sums for problem in one.problems]
    as_planned = sum(one.counts == plan.expected(one.queue) for one in sums)
    count = len(QUEUES) + 1
    text = f"each sum adds up, and {as_planned} of {count} match the events"
    if problems:
        text = f"{len(problems)} sums do not add up; {problems[0]}"
    holds = not problems and as_planned == len(sums) == count
    facts: dict[str, object] = {
        "queues": {one.queue: {"range": one.range, **one.counts} for one in sums},
        "problems": problems,
    }
    return Claim("counts in are counts out", text, holds, facts)


def claim_damage(damage: list[dict[str, Any]]) -> Claim:
    """Claims that the changed byte costs only its event, and that `damage` names the place."""
    places = [(row["queue"], row["offset"], row["count"], row["position"]) for row in damage]
    position = frame_position(DAMAGED_QUEUE, DAMAGED_OFFSET)
    holds = places == [(DAMAGED_QUEUE, DAMAGED_OFFSET, 1, position)]
    text = f"the changed byte is in damage: {len(damage)} row"
    if len(damage) == 1:
        (row,) = damage
        text += f", {row['queue']} {row['segment']}, byte {row['position']:,}: {row['reason']}"
    facts: dict[str, object] = {"places": [list(place) for place in places]}
    return Claim("a changed byte costs one event and is named", text, holds, facts)


def claim_landed(found: Comparison) -> Claim:
    """Claims that every event is in `landed` once, byte for byte."""
    text = f"{found.right:,} landed values compared with the events, byte by byte; {found}"
    return Claim("every event has landed, once", text, found.exact, asdict(found))


def claim_jobs(found: Comparison) -> Claim:
    """Claims that the snapshot has exactly the jobs that were not released, as they were left."""
    text = (
        f"deltalake reads {found.right:,} jobs in the Delta table of the snapshot, each as it was "
        "left, none that was released; "
    )
    return Claim(
        "the deadline queue is as it was left", text + str(found), found.exact, asdict(found)
    )


def claim_decoded(found: Comparison) -> Claim:
    """Claims that every id that must be in `decoded` is there once."""
    text = f"{found.right:,} ids in decoded; {found}"
    return Claim("every id is decoded, once", text, found.exact, asdict(found))


def _rows(
    directory: str, table: str, columns: list[str] | None, out: str = TABLES
) -> Iterator[dict[str, Any]]:
    """Reads a table without Spark: the Delta tables of the jobs by `deltalake`."""
    import pyarrow.dataset
    from deltalake import DeltaTable

    path = os.path.join(directory, out, table)
    if out == SNAPSHOT:
        dataset = DeltaTable(path).to_pyarrow_dataset()
    else:
        dataset = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive")
    for batch in dataset.to_batches(columns=columns):
        names = batch.schema.names
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))
