"""The tasks that write the tables of a batch, and their reports.

A task writes its rows to Parquet files with pyarrow and counts them on the way, so that nothing has
to be read again to be counted. Spark runs a task again if it fails, and may run two at once: every
attempt writes files of its own, and only the reports that reach the driver count.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute

from forebay.pipelines.ingest.output import DAMAGE, DECODED, SIDE
from forebay.tables.files import TableWriter
from forebay.tables.protocol import DataFile, Target
from forebay.tables.store import open_store

REPORT_DDL = "report STRING"
# One queue: path, name of the count, rows, first and last time in µs, and a number of the records.
QueueCount = tuple[str, str, int, int | None, int | None, int]
# Queue, offset and number of records of a damage.
Loss = tuple[str, int | None, int | None]

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Report:
    """What one task wrote."""

    files: dict[str, list[DataFile]]
    counts: list[QueueCount]
    # The damage that costs records.
    lost: list[Loss]

    def encode(self) -> str:
        """Returns a text for a row of Spark."""
        files = {table: [one.document() for one in those] for table, those in self.files.items()}
        return json.dumps({"files": files, "counts": self.counts, "lost": self.lost})

    @classmethod
    def decode(cls, text: str) -> Report:
        """Reads the result of `encode`."""
        plain = json.loads(text)
        files = {
            table: [DataFile(**one) for one in those] for table, those in plain["files"].items()
        }
        counts = [(queue, name, *numbers) for queue, name, *numbers in plain["counts"]]
        return cls(files, counts, [(queue, *numbers) for queue, *numbers in plain["lost"]])


def writer(
    targets: Mapping[str, Target], name: str | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the function of a task, for `mapInArrow`."""

    # A closure over values: it is sent to the workers by value, and the rest by name.
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        yield write_rows(batches, targets, name)

    return write


def write_rows(
    batches: Iterator[pyarrow.RecordBatch], targets: Mapping[str, Target], name: str | None
) -> pyarrow.RecordBatch:
    """Writes the rows of a task; returns its report as a row."""
    writers = {table: TableWriter(target) for table, target in targets.items()}
    counter = _Counter()
    try:
        for batch in batches:
            for table, rows in _sides(batch, list(writers)):
                writers[table].write(rows)
                counter.count(rows, table, name or table)
        files = {table: one.close() for table, one in writers.items()}
    finally:
        # Nothing is left to abandon after `close`.
        for one in writers.values():
            one.abandon()
    report = Report(
        {table: those for table, those in files.items() if those}, counter.counts(), counter.lost
    )
    return pyarrow.record_batch({"report": pyarrow.array([report.encode()], pyarrow.string())})


def remove_others(target: Target, files: Sequence[DataFile]) -> None:
    """Removes all files of a target but these."""
    store = open_store(target.address)
    known = {file.name for file in files}

    def look(directory: str) -> None:
        for name in store.names(directory):
            path = f"{directory}/{name}"
            if any(one.startswith(f"{path}/") for one in known):
                look(path)
            elif path not in known:
                store.remove(path)

    if files:
        look(target.directory)
    else:
        store.remove(target.directory)


def _sides(
    batch: pyarrow.RecordBatch, tables: Sequence[str]
) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    if SIDE not in batch.schema.names:
        yield tables[0], batch
        return
    sides = batch.column(SIDE)
    for table in tables:
        rows = batch.filter(pyarrow.compute.equal(sides, table))
        if rows.num_rows:
            yield table, rows


class _Counter:
    """Counts rows by queue, and the records that damage cost."""

    def __init__(self) -> None:
        self.lost: list[Loss] = []
        self._found: dict[tuple[str, str], tuple[int, int | None, int | None, int]] = {}

    def count(self, rows: pyarrow.RecordBatch, table: str, name: str) -> None:
        """Adds rows of a table under a name."""
        if table == DAMAGE:
            # An unfinished end costs nothing.
            places = rows.select(["queue", "offset", "count", "torn"]).to_pylist()
            self.lost += [
                (one["queue"], one["offset"], one["count"]) for one in places if not one["torn"]
            ]
            return
        if "queue" not in rows.schema.names:
            return
        queues = rows.column("queue")
        for queue in queues.unique().to_pylist():
            part = rows.filter(pyarrow.compute.equal(queues, queue))
            first, last = _times_us(part, missing=0 if table == DECODED else None)
            old = self._found.get((queue, name), (0, None, None, 0))
            self._found[queue, name] = (
                old[0] + part.num_rows,
                min((one for one in (old[1], first) if one is not None), default=None),
                max((one for one in (old[2], last) if one is not None), default=None),
                old[3] ^ _number(queue, part.column("offset")),
            )

    def counts(self) -> list[QueueCount]:
        """Returns the counts."""
        return [(queue, name, *found) for (queue, name), found in self._found.items()]


def _times_us(rows: pyarrow.RecordBatch, missing: int | None) -> tuple[int | None, int | None]:
    """Returns the first and the last time; the SQL may have left it out, or changed its type."""
    times = rows.column("timestamp") if "timestamp" in rows.schema.names else None
    if times is None or not pyarrow.types.is_timestamp(times.type) or times.type.tz is None:
        return missing, missing
    numbers = times.cast(pyarrow.int64())
    if missing is not None:
        numbers = numbers.fill_null(missing)
    found = pyarrow.compute.min_max(numbers).as_py()
    return found["min"], found["max"]


def _number(queue: str, offsets: pyarrow.Array) -> int:
    """Returns one number that identifies a set of records; two equal ones cancel out."""
    import numpy

    word = numpy.uint64
    start = word(zlib.crc32(queue.encode()) * _MIX[0] + _MIX[2] & _WORD)
    # The finaliser of splitmix64: places next to one another get unlike numbers.
    mixed = offsets.fill_null(-1).to_numpy(zero_copy_only=False).astype(word) + start
    mixed = (mixed ^ (mixed >> word(30))) * word(_MIX[1])
    mixed = (mixed ^ (mixed >> word(27))) * word(_MIX[2])
    mixed ^= mixed >> word(31)
    return int(numpy.bitwise_xor.reduce(mixed))
