"""Reads queues as of one moment: `spark.read.format("forebay")`, the table `records`."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from forebay.errors import InvalidOption
from forebay.spark import kinds
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, ReadRequest, Unreadable, pack, with_archive, with_queue_id

# Where Spark makes a reader in order to give it filters.
_OF_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"
# A file is opened for each span; offsets that are closer than this are read in one.
_SPANS_MAX = 64
_SPAN_ROWS = 1024
_logger = logging.getLogger(__name__)


def spark_pushes_filters() -> bool:
    """Returns whether the session of this query pushes filters down, and this query has some.

    A reader that accepts filters is an error of Spark's in a session that pushes none. The session
    cannot be asked here, but it decides in which module Spark makes the reader.
    """
    return _OF_FILTERS in sys.modules


class RecordsReader(DataSourceReader):
    """Plans once, in the driver's planning process; reads in the tasks."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._wanted = ReadRequest(
            schema,
            options.mode,
            options.fail_on_data_loss,
            options.start_ms,
            options.end_ms,
            options.key_file,
        )
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks."""
        return pack(self._ranges(), self._options.partition_bytes, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields the record batches of one task."""
        yield from kinds.read(self._wanted, partition.value or ())

    def _ranges(self) -> Iterator[Range]:
        bad: list[Unreadable] = []
        tolerant = self._wanted.tolerant
        for kind, reader in kinds.open_queues(self._options, bad.append if tolerant else None):
            if self._limits.allow(reader.path):
                yield from kinds.planned(self._plan(kind, reader), reader.path, tolerant=tolerant)
        yield from bad

    def _plan(self, kind: kinds.Kind, reader: Any) -> Iterator[Range]:
        start, end = kind.bounds(reader, self._options)
        spans = [(start, end)]
        if kind.by_offset:
            if self._options.view != "merged":
                raise InvalidOption(f"view = {self._options.view!r}: {reader.path} has no other")
            spans = self._limits.spans(start, end)
        self._note(end - start)
        for first, last in spans:
            parts = kind.plan(reader, first, last, self._wanted)
            parts = with_archive(parts, reader)
            yield from with_queue_id(parts, self._wanted, kind.queue_id(reader))

    def _note(self, offsets: int) -> None:
        """Counts the offsets that a read without filters plans in a queue."""


class PushdownReader(RecordsReader):
    """Also skips what Spark's filters exclude; Spark applies the filters again to every row."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self._offsets = 0

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks, and logs what the filters skip."""
        self._offsets = 0
        tasks = super().partitions()
        # Spark sets no level in its workers; what it does with the lines is a setting of its own.
        _logger.setLevel(logging.INFO)
        _logger.info(
            "filters leave %s of %s offsets, in %s tasks",
            sum(part.end - part.start for task in tasks for part in task.value or ()),
            self._offsets,
            len(tasks),
        )
        return tasks

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Applies bounds on offset, timestamp and queue; returns all filters for Spark to check."""
        for one in filters:
            self._limits.note(one)
        self._wanted = replace(
            self._wanted,
            start_ms=_higher(self._wanted.start_ms, self._limits.start_ms),
            end_ms=_lower(self._wanted.end_ms, self._limits.end_ms),
            times_are_filters=self._options.start_ms is None and self._options.end_ms is None,
        )
        return filters

    def _note(self, offsets: int) -> None:
        self._offsets += max(0, offsets)


class Limits:
    """Bounds from filters on offsets, times and queues: never too narrow, perhaps too wide."""

    def __init__(self) -> None:
        self.start = 0
        self.end: int | None = None
        self.start_ms: int | None = None
        self.end_ms: int | None = None
        self._queues: set[str] | None = None
        self._offsets: set[int] | None = None

    def note(self, one: Filter) -> None:
        """Narrows the bounds by one filter, if that is possible."""
        match one:
            case EqualTo(attribute=("queue",), value=str(path)):
                self._only({path})
            case In(attribute=("queue",), value=values):
                self._only(set(values))
            case EqualTo(attribute=("offset",), value=int(offset)):
                self._one_of({offset})
            case In(attribute=("offset",), value=values):
                self._one_of({offset for offset in values if offset is not None})
            case EqualTo(attribute=("timestamp",), value=datetime() as time):
                self._at({time})
            case In(attribute=("timestamp",), value=values):
                self._at({time for time in values if time is not None})
            case GreaterThan(attribute=("offset",), value=int(offset)):
                self._from(offset + 1)
            case GreaterThanOrEqual(attribute=("offset",), value=int(offset)):
                self._from(offset)
            case LessThan(attribute=("offset",), value=int(offset)):
                self._to(offset)
            case LessThanOrEqual(attribute=("offset",), value=int(offset)):
                self._to(offset + 1)
            case (
                GreaterThan(attribute=("timestamp",), value=datetime() as time)
                | GreaterThanOrEqual(attribute=("timestamp",), value=datetime() as time)
            ):
                self._since(time)
            case (
                LessThan(attribute=("timestamp",), value=datetime() as time)
                | LessThanOrEqual(attribute=("timestamp",), value=datetime() as time)
            ):
                self._until(time)

    def allow(self, queue: str) -> bool:
        """Returns whether the filters allow records of a queue."""
        return self._queues is None or queue in self._queues

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the parts of a range that the filters allow, in their order."""
        start, end = max(start, self.start), end if self.end is None else min(end, self.end)
        if self._offsets is None:
            return [(start, end)]
        found: list[tuple[int, int]] = []
        for offset in sorted(offset for offset in self._offsets if start <= offset < end):
            if found and offset - found[-1][1] < _SPAN_ROWS:
                found[-1] = (found[-1][0], offset + 1)
            else:
                found.append((offset, offset + 1))
        return found if len(found) <= _SPANS_MAX else [(found[0][0], found[-1][1])]

    def _only(self, queues: set[str]) -> None:
        self._queues = queues if self._queues is None else self._queues & queues

    def _one_of(self, offsets: set[int]) -> None:
        self._offsets = offsets if self._offsets is None else self._offsets & offsets

    def _at(self, times: set[datetime]) -> None:
        if times:
            self._since(min(times))
            self._until(max(times))

    def _since(self, time: datetime) -> None:
        self.start_ms = _higher(self.start_ms, math.floor(time.timestamp() * 1000))

    def _until(self, time: datetime) -> None:
        self.end_ms = _lower(self.end_ms, math.floor(time.timestamp() * 1000) + 1)

    def _from(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def _to(self, offset: int) -> None:
        self.end = _lower(self.end, offset)


def _higher(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
