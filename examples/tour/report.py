"""The report of a tour: the story, the samples and the proof, as one page."""

from __future__ import annotations

import os
import platform
import string
from collections.abc import Sequence
from datetime import UTC, datetime

from examples.tour.checks import Claim, Proof
from examples.tour.events import QUEUES, Plan
from examples.tour.history import Sample, rates
from examples.tour.jobs import JOBS
from examples.tour.page import Cell, Finding, Line, Page, Plot, Table
from examples.tour.story import KILLED_PRODUCER, Facts, Story
from forebay import __version__

_WINDOW_SECONDS = 5.0
_ROWS_MAX = 40


def make(story: Story, proof: Proof, claims: Sequence[Claim], seconds: float) -> Page:
    """Builds the page."""
    plan, facts, samples = story.plan, story.facts, story.watch.samples
    lettered = [
        (letter, mark.seconds, mark.text)
        for letter, mark in zip(string.ascii_uppercase, story.watch.marks, strict=False)
    ]
    lost = proof.landed.missing + max(0, facts.acknowledged - facts.found)
    lost += proof.jobs.missing
    decoded = sum(one.counts["decoded"] for one in proof.sums)
    return Page(
        title="Forebay: from events to proven tables",
        lead=(
            f"{len(QUEUES)} producers wrote {plan.total:,} events, to one queue each, while an "
            "ingest on Spark loaded them into tables, and a worker performed "
            f"{plan.jobs.steps:,} steps on a deadline queue. One producer, the worker and the "
            "ingest were killed with SIGKILL and started again, and one byte was changed on the "
            "disk. "
            f"Made by forebay {__version__} at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
        ),
        numbers=[
            (plan.total, "events appended"),
            (decoded, "rows decoded"),
            (lost, "events lost in the kills"),
            (proof.landed.twice + proof.decoded.twice, "events twice"),
            (seconds, "seconds in total"),
        ],
        findings=[Finding(claim.holds, claim.name, claim.text) for claim in claims],
        marks=lettered,
        plots=_plots(samples),
        tables=[
            Table(
                "The moments that the plots mark",
                ("", "second", "what happened"),
                [(letter, at, text) for letter, at, text in lettered],
            ),
            _sums(proof),
            _crashes(facts, proof),
            _damage(proof),
            _trimmed(plan, facts),
            _course(samples),
            _machine(),
        ],
        settings=story.settings,
    )


def _plots(samples: Sequence[Sample]) -> list[Plot]:
    seconds = [one.seconds for one in samples]
    rate = rates(samples, _WINDOW_SECONDS)
    return [
        Plot(
            "Throughput",
            f"records per second, over the last {_WINDOW_SECONDS:.0f} s",
            seconds,
            [
                Line("appended by the producers", "in", [one for one, _ in rate]),
                Line("landed by the ingest", "out", [one for _, one in rate]),
            ],
        ),
        Plot(
            "Lag",
            "records that are in the queues and not yet in the tables",
            seconds,
            [Line("behind", "lag", [one.lag for one in samples])],
        ),
        Plot(
            "In and out",
            "records so far; at the end the lines meet",
            seconds,
            [
                Line("appended", "in", [sum(one.appended) for one in samples]),
                Line("landed", "out", [sum(one.landed) for one in samples]),
            ],
        ),
    ]


def _sums(proof: Proof) -> Table:
    names = ("landed", "damaged", "trimmed")
    parts = ("decoded", "rejected", "deduplicated", "filtered")
    rows: list[list[Cell]] = [
        [one.queue, one.range, *(one.counts[name] for name in (*names, *parts))]
        for one in proof.sums
    ]
    totals: list[Cell] = ["all"]
    totals += [sum(int(row[place] or 0) for row in rows) for place in range(1, 9)]
    return Table(
        "Counts in are counts out",
        ("queue", "range", "= landed", "+ damaged", "+ trimmed", *_added(parts)),
        [*rows, totals],
        "For each queue: range = landed + damaged + trimmed, and landed = decoded + rejected + "
        "deduplicated + filtered. Counted by forebay pipeline reconcile in the tables themselves; "
        "no offset is in a table twice. Rejected events are cut off in the middle of their JSON, "
        "or have a hall that is not a number; deduplicated ones repeat an id; filtered ones are "
        f"heartbeats that the SQL leaves out. The row {JOBS} is a snapshot of the deadline queue: "
        "its range is the items in it, which excludes released jobs.",
    )


def _added(names: Sequence[str]) -> list[str]:
    return [f"landed = {names[0]}", *(f"+ {name}" for name in names[1:])]


def _crashes(facts: Facts, proof: Proof) -> Table:
    ingest = facts.ingest
    assert ingest is not None
    lost = max(0, facts.acknowledged - facts.found)
    lost_steps = max(0, facts.jobs_acknowledged - facts.jobs_found)
    columns = ("killed", "seconds until back", "seconds until caught up", "lost", "twice")
    # An event that the producer wrote twice takes the place of another one: it counts as wrong.
    repeated = proof.landed.wrong
    rows: list[list[Cell]] = [
        [f"producer of {KILLED_PRODUCER}", facts.producer_away_seconds, None, lost, repeated],
        [f"worker at {JOBS}", facts.worker_away_seconds, None, lost_steps, proof.jobs.twice],
        ["ingest", ingest.until_back, ingest.until_caught_up, proof.landed.missing]
        + [proof.landed.twice],
    ]
    return Table(
        "What the crashes cost",
        columns,
        rows,
        f"The producer had acknowledged {facts.acknowledged:,} events when it was killed, and "
        f"found {facts.found:,} in its log when it came back. The worker had acknowledged "
        f"{facts.jobs_acknowledged:,} steps and found {facts.jobs_found:,} done. The ingest had "
        "published "
        f"{facts.batches_before} batches and was writing the next one, which was then written "
        f"again from the beginning. It was {ingest.lag_before:,} records behind when it was "
        f"killed, and at most {ingest.lag_most:,} behind until it had caught up, which means that "
        "it was no further behind than at the kill. Most of the time until it was back is Spark's "
        "startup.",
    )


def _damage(proof: Proof) -> Table:
    return Table(
        "The table damage",
        ("queue", "segment", "byte", "length", "first offset", "events lost", "reason"),
        [
            [row["queue"], row["segment"], row["position"], row["length"], row["offset"]]
            + [row["count"], row["reason"]]
            for row in proof.damage
        ],
        "One byte of one event was changed on the disk before the ingest read it. It costs that "
        "event, not its neighbours, and the damaged event is never delivered as a good one.",
    )


def _trimmed(plan: Plan, facts: Facts) -> Table:
    return Table(
        "What is left in the logs",
        ("queue", "events appended", "events trimmed after the ingest"),
        [[queue, plan.per_queue, begin] for queue, begin in facts.begins.items()],
        "A log drops whole segments that the ingest has read, and no others: the cursor "
        "of the ingest holds them.",
    )


def _course(samples: Sequence[Sample]) -> Table:
    step = -(-len(samples) // _ROWS_MAX)
    rate = rates(samples, _WINDOW_SECONDS)
    chosen = list(zip(samples, rate, strict=True))[::-step][::-1]
    return Table(
        "The plots as numbers",
        ("second", "appended per second", "landed per second", "appended", "landed", "lag"),
        [
            [one.seconds, round(appended), round(landed)]
            + [sum(one.appended), sum(one.landed), one.lag]
            for one, (appended, landed) in chosen
        ],
    )


def _machine() -> Table:
    import pyspark

    from forebay.spark.java import find_java

    return Table(
        "Where it ran",
        ("", "version"),
        [
            ["Forebay", __version__],
            ["Spark", pyspark.__version__],
            ["Java", find_java().version],
            ["Python", platform.python_version()],
            ["system", f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"],
        ],
    )
