"""Reads queues as of one moment: `spark.read.format("forebay")`, the table `records`."""

from __future__ import annotations

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
from forebay.spark.planning import Range, ReadRequest, Unreadable, pack, with_queue_id


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
        return pack(self._ranges(), self._options.partition_bytes)

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
        if kind.by_offset:
            if self._options.view != "merged":
                raise InvalidOption(f"view = {self._options.view!r}: {reader.path} has no other")
            start, end = self._limits.narrow(start, end)
        parts = kind.plan(reader, start, end, self._wanted)
        yield from with_queue_id(parts, self._wanted, kind.queue_id(reader))


class PushdownReader(RecordsReader):
    """Also skips what Spark's filters exclude; Spark applies the filters again to every row."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Applies bounds on offset, timestamp and queue; returns all filters for Spark to check."""
        for one in filters:
            self._limits.note(one)
        self._wanted = replace(
            self._wanted,
            start_ms=_higher(self._wanted.start_ms, self._limits.start_ms),
            end_ms=_lower(self._wanted.end_ms, self._limits.end_ms),
        )
        return filters


class Limits:
    """Bounds from filters on offsets, times and queues: never too narrow, perhaps too wide."""

    def __init__(self) -> None:
        self.start = 0
        self.end: int | None = None
        self.start_ms: int | None = None
        self.end_ms: int | None = None
        self._queues: set[str] | None = None

    def note(self, one: Filter) -> None:
        """Narrows the bounds by one filter, if that is possible."""
        match one:
            case EqualTo(attribute=("queue",), value=str(path)):
                self._only({path})
            case In(attribute=("queue",), value=values):
                self._only(set(values))
            case EqualTo(attribute=("offset",), value=int(offset)):
                self._from(offset)
                self._to(offset + 1)
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
                self.start_ms = _higher(self.start_ms, int(time.timestamp() * 1000))
            case (
                LessThan(attribute=("timestamp",), value=datetime() as time)
                | LessThanOrEqual(attribute=("timestamp",), value=datetime() as time)
            ):
                self.end_ms = _lower(self.end_ms, int(time.timestamp() * 1000) + 1)

    def allow(self, queue: str) -> bool:
        """Returns whether the filters allow records of a queue."""
        return self._queues is None or queue in self._queues

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        """Returns the part of a range that the filters allow."""
        return max(start, self.start), end if self.end is None else min(end, self.end)

    def _only(self, queues: set[str]) -> None:
        self._queues = queues if self._queues is None else self._queues & queues

    def _from(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def _to(self, offset: int) -> None:
        self.end = _lower(self.end, offset)


def _higher(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
