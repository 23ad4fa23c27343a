"""Keeps the tables of an output small: joins files, removes old ones, lets old records go.

All of it is done by the library of the format, without Spark, while no ingest runs.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.definition import duration_ms
from forebay.pipelines.ingest.output import LANDED, Output

VACUUM_HOURS = 168.0


@dataclass(frozen=True, slots=True)
class Joined:
    """How many files a table had, and how many it has."""

    table: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """How many files of a table went."""

    table: str
    files: int


def compact(out: str | os.PathLike[str]) -> list[Joined]:
    """Joins the small files of all tables; readers keep the files that they have.

    Raises `InvalidOption` for plain Parquet, and `Locked` while an ingest runs.
    """
    output = Output.at(out)
    output.document()
    with output.locked():
        output.clean()
        return [Joined(name, *table.compact()) for name, table in output.tables().items()]


def vacuum(
    out: str | os.PathLike[str], *, hours: float = VACUUM_HOURS, landed: str | None = None
) -> list[Vacuumed]:
    """Removes files that no reader of the last hours needs.

    With `landed`, such as "30d", the rows of `landed` go first that belong to batches whose records
    are all older. They can then not be rebuilt from `landed`, and `reconcile` takes their number
    from the manifests. Raises `Locked` while an ingest runs.
    """
    if hours < 0:
        raise InvalidOption(f"hours = {hours!r}: must not be below 0")
    age_ms = None if landed is None else duration_ms("landed", landed)
    output = Output.at(out)
    output.document()
    with output.locked():
        output.clean()
        if age_ms is not None:
            _drop_landed(output, int(time.time() * 1000) - age_ms)
        return [Vacuumed(name, table.vacuum(hours)) for name, table in output.tables().items()]


def _drop_landed(output: Output, before_ms: int) -> None:
    document = output.document()
    first = document["landed_from"]
    for manifest in output.manifests():
        last = [share.last_ms for share in manifest.queues.values() if share.counts.landed]
        if any(one is None or one >= before_ms for one in last):
            break
        first = max(first, manifest.batch + 1)
    # Before the rows go: from now on nobody expects them.
    output.write_document({**document, "landed_from": first})
    if first > 0:
        output.tables()[LANDED].drop(first)
