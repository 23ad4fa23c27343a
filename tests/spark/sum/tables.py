"""Reads a table of an output by every reader that the documents name.

This is the one place that knows how tables lie on the disk: their layout will change.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def read_table(reader: str, spark: SparkSession, out: Path, table: str) -> Rows:
    """Returns the rows of a table, in the order of batch, queue and offset."""
    rows = READERS[reader](spark, f"{out}/{table}")
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    for row in plain:
        # DuckDB takes the name of the directory for text.
        row["batch"] = int(row["batch"])
    return sorted(plain, key=lambda row: (row["batch"], row["queue"], row["offset"] or 0, str(row)))


def _by_spark(spark: SparkSession, path: str) -> Rows:
    table: pyarrow.Table = spark.read.parquet(path).toArrow()
    return _rows(table)


def _by_pyarrow(spark: SparkSession, path: str) -> Rows:
    return _rows(pyarrow.dataset.dataset(path, partitioning="hive").to_table())


def _by_pandas(spark: SparkSession, path: str) -> Rows:
    import pandas

    frame = pandas.read_parquet(path, dtype_backend="pyarrow")
    return _rows(pyarrow.Table.from_pandas(frame, preserve_index=False))


def _by_duckdb(spark: SparkSession, path: str) -> Rows:
    import duckdb

    with duckdb.connect() as connection:
        query = f"SELECT * FROM read_parquet('{path}/*/*.parquet', hive_partitioning = true)"
        table: pyarrow.Table = connection.sql(query).to_arrow_table()
    return _rows(table)


def _rows(table: pyarrow.Table) -> Rows:
    rows: Rows = table.to_pylist()
    return rows


READERS: dict[str, Callable[[SparkSession, str], Rows]] = {
    "Spark": _by_spark,
    "pyarrow": _by_pyarrow,
    "pandas": _by_pandas,
}
if importlib.util.find_spec("duckdb") is not None:
    READERS["DuckDB"] = _by_duckdb


def _plain(value: Any) -> Any:
    """Returns a value as all readers would give it: times in UTC, maps as pairs."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date | bytes | str | int | float):
        return value
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
