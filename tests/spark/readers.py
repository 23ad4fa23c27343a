"""Runs the readers of the source as Spark does, without Spark: they are plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from forebay.spark.source import ForebaySource
from forebay.spark.stream import QueueStreamReader


def batch_reader(path: str | Path, **options: str) -> Any:
    source = ForebaySource({"path": str(path), **options})
    return source.reader(source.schema())


def stream_reader(path: str | Path, **options: str) -> QueueStreamReader:
    source = ForebaySource({"path": str(path), **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, QueueStreamReader)
    return reader


def rows_of(reader: Any, partitions: list[Any] | None = None) -> list[dict[str, Any]]:
    """Reads every task, each by a copy of the reader, as another process would."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions() if partitions is None else partitions:
        copy, task = sent((reader, partition))
        for batch in copy.read(task):
            rows += batch.to_pylist()
    return rows


def sent(thing: Any) -> Any:
    """Returns what a task gets of an object that Spark sends to it."""
    return cloudpickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


def read(path: str | Path, **options: str) -> list[dict[str, Any]]:
    return rows_of(batch_reader(path, **options))


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def offset_in(offsets: dict[str, Any], path: str | Path) -> int:
    offset: int = offsets["queues"][str(path)]["offset"]
    return offset
