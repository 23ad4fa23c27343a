"""Tables of an ingest as Spark sees them: the files come from the table's own log.

Any Spark can read them this way, without the classes of Delta or Iceberg and, if the tables are in
an object store, without those of Hadoop: the tasks then read with pyarrow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import forebay.spark
from forebay.errors import InvalidOption, NotAQueue
from forebay.spark.paths import absolute
from forebay.tables.protocol import BATCH, DataFile, OpenTable, Place, open_table
from forebay.tables.store import is_remote, open_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DOCUMENT = "pipeline.json"
VERSION = 2
PARTITIONED = "decoded"
_TASKS_MAX = 256


def table(
    spark: forebay.spark.SparkSession, out: str | os.PathLike[str], name: str
) -> forebay.spark.DataFrame:
    """Returns a table of an ingest as it is now, by its name, such as "decoded".

    Costs a look at the log of the table. Raises `NotAQueue` if `out` holds no tables.
    """
    text = os.fspath(out)
    address = text.rstrip("/") if is_remote(text) else absolute(text)
    document = read_document(address)
    if document is None:
        raise NotAQueue(f"{address} holds no tables: it has no {DOCUMENT}")
    if name not in document["tables"]:
        raise InvalidOption(
            f"table {name!r} is unknown; there are: {', '.join(document['tables'])}"
        )
    return table_frame(spark, address, document, name)


def read_document(address: str) -> dict[str, Any] | None:
    """Returns the document of an output; None if there is none; raises for one of 0.1."""
    data = open_store(address).read(DOCUMENT)
    if data is None:
        return None
    document: dict[str, Any] = json.loads(data)
    if document.get("v") != VERSION:
        raise InvalidOption(
            f"{address} holds tables of version {document.get('v')!r}, and this program writes "
            f"{VERSION}: give another out, which begins where `starting` says; the old tables stay "
            "readable as Parquet"
        )
    return document


def table_of(address: str, document: Mapping[str, Any], name: str) -> OpenTable:
    """Returns a table of an output."""
    definition = document["definition"]
    place = Place(
        address,
        name,
        document["id"],
        definition.get("partition_by") if name == PARTITIONED else None,
        definition.get("catalog"),
    )
    return open_table(definition["format"], place)


def columns_in(document: Mapping[str, Any], name: str) -> StructType:
    """Returns the columns of a table, without `batch`."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(document["tables"][name]))


def schema_of(document: Mapping[str, Any], name: str) -> pyarrow.Schema:
    """Returns the columns of a table as Arrow has them, without `batch`."""
    return arrow_schema(columns_in(document, name))


def arrow_schema(columns: StructType) -> pyarrow.Schema:
    """Returns columns as Arrow has them, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(columns, timezone="UTC")


def table_frame(
    spark: SparkSession,
    address: str,
    document: Mapping[str, Any],
    name: str,
    names: Sequence[str] | None = None,
) -> DataFrame:
    """Returns a table, or some of its columns, and `batch`."""
    from pyspark.sql.types import LongType, StructType

    every = columns_in(document, name)
    columns = StructType([one for one in every if names is None or one.name in names])
    columns = columns.add(BATCH, LongType())
    found = table_of(address, document, name)
    if document["definition"]["format"] == "parquet":
        # The directories have the numbers.
        return spark.read.schema(columns).parquet(open_store(address).path(name))
    return frame(spark, address, found.files(), columns)


def frame(
    spark: SparkSession, address: str, files: Sequence[DataFile], columns: StructType
) -> DataFrame:
    """Returns the rows of data files."""
    if not files:
        return spark.createDataFrame([], columns)
    elsewhere = any(name in columns.names for file in files for name in file.values)
    if not is_remote(address) and not elsewhere:
        store = open_store(address)
        return spark.read.schema(columns).parquet(*(store.path(file.name) for file in files))
    numbers = spark.range(0, len(files), 1, min(len(files), _TASKS_MAX))
    return numbers.mapInArrow(_reading(address, tuple(files), arrow_schema(columns)), columns)


def _reading(
    address: str, files: tuple[DataFile, ...], schema: pyarrow.Schema
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    from forebay.tables.files import read_batches

    # A closure over values: it is sent to the workers by value, and the rest by name.
    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_batches(address, files[number], schema)

    return read
