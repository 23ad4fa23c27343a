"""Data files: tasks write them, and report what a commit needs to know of each.

A file has a random name, so that no two attempts of a task write the same one. Only reported files
are committed. Times are microseconds in UTC, with statistics.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from forebay.tables.protocol import BATCH, DataFile, Target
from forebay.tables.store import open_store

# What a task keeps in memory before it writes a row group, over all its open files.
_BUFFER_BYTES = 64 << 20
_OPEN_FILES_MAX = 100
# How tables in directories call the value null; empty text has no directory of its own either.
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"


BATCH_FIELD = pyarrow.field(BATCH, pyarrow.int64())


class TableWriter:
    """Writes the rows of one task to the files of one table."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: dict[str | None, _File] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pyarrow.RecordBatch) -> None:
        """Writes rows with the columns of the schema, in any order."""
        if not rows.num_rows:
            return
        target = self._target
        columns = [rows.column(one.name).cast(one.type) for one in target.schema]
        table = pyarrow.Table.from_arrays(columns, schema=target.schema)
        if target.partition_by is None:
            self._file(None).write(table)
            return
        texts = table.column(target.partition_by).cast(pyarrow.string())
        for value in texts.unique().to_pylist():
            chosen = (
                pyarrow.compute.is_null(texts)
                if value is None
                else pyarrow.compute.equal(texts, value)
            )
            self._file(value).write(table.filter(chosen))

    def close(self) -> list[DataFile]:
        """Ends all files and returns them."""
        while self._open:
            self._end(next(iter(self._open)))
        return self._done

    def abandon(self) -> None:
        """Removes the files that are not finished."""
        for file in self._open.values():
            file.abandon()

    def _file(self, value: str | None) -> _File:
        if value not in self._open:
            if len(self._open) == _OPEN_FILES_MAX:
                self._end(next(iter(self._open)))
            self._open[value] = _File(self._target, value)
            for file in self._open.values():
                file.limit_bytes = _BUFFER_BYTES // len(self._open)
        return self._open[value]

    def _end(self, value: str | None) -> None:
        self._done.append(self._open.pop(value).close())


class _File:
    """One file while it is written."""

    def __init__(self, target: Target, value: str | None) -> None:
        self.limit_bytes = _BUFFER_BYTES
        self._target = target
        self._values = {} if target.partition_by is None else {target.partition_by: value}
        directory = target.directory
        if target.partition_by is not None and target.named_directories:
            directory += (
                f"/{target.partition_by}={quote(value, safe='') if value else NULL_DIRECTORY}"
            )
        self._name = f"{directory}/{uuid.uuid4().hex}.parquet"
        self._stack = contextlib.ExitStack()
        self._sink = self._stack.enter_context(open_store(target.address).create(self._name))
        self._writer = pyarrow.parquet.ParquetWriter(self._sink, target.file_schema)
        self._waiting: list[pyarrow.Table] = []
        self._waiting_bytes = 0
        self._rows = 0

    def write(self, rows: pyarrow.Table) -> None:
        """Adds rows; writes a row group if enough are waiting."""
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self.limit_bytes:
            self._flush()

    def close(self) -> DataFile:
        """Ends the file, durably, and describes it."""
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._stack.close()
        metadata = self._writer.writer.metadata
        return DataFile(self._name, size, self._rows, self._values, stats_of(metadata))

    def abandon(self) -> None:
        """Removes what is written."""
        error = OSError("the task failed")
        with contextlib.suppress(OSError):
            self._stack.__exit__(OSError, error, None)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pyarrow.concat_tables(self._waiting)
        if self._target.batch is not None:
            numbers = pyarrow.repeat(
                pyarrow.scalar(self._target.batch, BATCH_FIELD.type), len(rows)
            )
            rows = rows.append_column(BATCH_FIELD, numbers)
        self._writer.write_table(rows.select(self._target.file_schema.names))
        self._waiting, self._waiting_bytes = [], 0


def stats_of(metadata: pyarrow.parquet.FileMetaData) -> str:
    """Returns the statistics of a file in the form of Delta: columns that are not nested."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        groups = [metadata.row_group(n).column(index) for n in range(metadata.num_row_groups)]
        found = [one.statistics for one in groups]
        if "." in name or not all(one is not None and one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        known = [one for one in found if one.has_min_max]
        if known and all(one.has_min_max or one.null_count == one.num_values for one in found):
            low, high = min(one.min for one in known), max(one.max for one in known)
            if isinstance(low, int | date | datetime) and not isinstance(low, bool):
                lows[name], highs[name] = _plain(low), _plain(high)
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
    )


def _plain(value: int | date) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def read_batches(
    address: str, file: DataFile, schema: pyarrow.Schema
) -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows of a file with the given columns; a column that it lacks is null.

    The values of partition columns that are not in the file come from its description.
    """
    with pyarrow.parquet.ParquetFile(open_store(address).open(file.name)) as opened:
        there = set(opened.schema_arrow.names)
        wanted = [name for name in schema.names if name in there]
        for rows in opened.iter_batches(columns=wanted):
            columns = []
            for one in schema:
                if one.name in there:
                    columns.append(rows.column(one.name).cast(one.type))
                else:
                    value = pyarrow.scalar(file.values.get(one.name), pyarrow.string())
                    columns.append(pyarrow.repeat(value.cast(one.type), rows.num_rows))
            yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)
