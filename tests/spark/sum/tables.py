"""Reads a table of an output by every reader that the documents name.

This is the one place that knows how tables lie on the disk.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.dataset

import forebay.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
Reader = Callable[["SparkSession", Path, str], Any]


def read_table(reader: str, spark: SparkSession, out: Path, table: str) -> Rows:
    """Returns the rows of a table, in the order of batch, queue and offset."""
    readers = {name: read for those in READERS.values() for name, read in those.items()}
    found: Rows = readers[reader](spark, out, table).to_pylist()
    rows = [{name: _plain(value) for name, value in row.items()} for row in found]
    for row in rows:
        # Polars takes the name of a directory for text if it is told nothing.
        row["batch"] = int(row["batch"])
    return sorted(rows, key=lambda row: (row["batch"], row["queue"], row["offset"] or 0, str(row)))


def _by_forebay(spark: SparkSession, out: Path, table: str) -> Any:
    return forebay.spark.table(spark, out, table).toArrow()


def _by_spark(spark: SparkSession, out: Path, table: str) -> Any:
    return spark.read.parquet(f"{out}/{table}").toArrow()


def _by_pyarrow(spark: SparkSession, out: Path, table: str) -> Any:
    return pyarrow.dataset.dataset(out / table, partitioning="hive").to_table()


def _by_pandas(spark: SparkSession, out: Path, table: str) -> Any:
    import pandas

    frame = pandas.read_parquet(out / table, dtype_backend="pyarrow")
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


def _by_duckdb(spark: SparkSession, out: Path, table: str) -> Any:
    query = f"SELECT * FROM read_parquet('{out}/{table}/**/*.parquet', hive_partitioning = true)"
    return _in_duckdb(query)


def _in_duckdb(query: str, **views: Any) -> Any:
    import duckdb

    with duckdb.connect() as connection:
        for name, view in views.items():
            connection.register(name, view)
        return connection.sql(query).to_arrow_table()


def _by_polars(spark: SparkSession, out: Path, table: str) -> Any:
    import polars

    return polars.read_parquet(out / table, hive_partitioning=True).to_arrow()


def _delta(out: Path, table: str) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(out / table)


def _by_deltalake(spark: SparkSession, out: Path, table: str) -> Any:
    return _delta(out, table).to_pyarrow_table()


def _delta_by_duckdb(spark: SparkSession, out: Path, table: str) -> Any:
    # Its own extension would have to be downloaded.
    return _in_duckdb("SELECT * FROM rows", rows=_delta(out, table).to_pyarrow_dataset())


def _delta_by_polars(spark: SparkSession, out: Path, table: str) -> Any:
    import polars

    return polars.scan_delta(str(out / table)).collect().to_arrow()


def _iceberg(out: Path, table: str) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("forebay", type="sql", uri=f"sqlite:///{out}/catalog.db")
    return catalog.load_table(f"forebay.{table}")


def _by_pyiceberg(spark: SparkSession, out: Path, table: str) -> Any:
    return _iceberg(out, table).scan().to_arrow()


def _iceberg_by_duckdb(spark: SparkSession, out: Path, table: str) -> Any:
    return _in_duckdb("SELECT * FROM rows", rows=_iceberg(out, table).scan().to_arrow())


def _iceberg_by_polars(spark: SparkSession, out: Path, table: str) -> Any:
    import polars

    return polars.scan_iceberg(_iceberg(out, table)).collect().to_arrow()


READERS: dict[str, dict[str, Reader]] = {
    "parquet": {
        "forebay": _by_forebay,
        "Spark": _by_spark,
        "pyarrow": _by_pyarrow,
        "pandas": _by_pandas,
        "Polars": _by_polars,
    },
    "delta": {
        "forebay": _by_forebay,
        "deltalake": _by_deltalake,
        "Polars on Delta": _delta_by_polars,
    },
    "iceberg": {
        "forebay": _by_forebay,
        "PyIceberg": _by_pyiceberg,
        "Polars on Iceberg": _iceberg_by_polars,
    },
}
if importlib.util.find_spec("duckdb") is not None:
    READERS["parquet"]["DuckDB"] = _by_duckdb
    READERS["delta"]["DuckDB on Delta"] = _delta_by_duckdb
    READERS["iceberg"]["DuckDB on Iceberg"] = _iceberg_by_duckdb


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
