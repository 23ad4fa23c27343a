"""The format `forebay`: Spark's entry point for reads, streams and writes.

`pyspark_forebay` exposes it, so that Spark finds it automatically where the package is installed.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from forebay.errors import InvalidOption
from forebay.spark import kinds, paths, schemas
from forebay.spark.batch import PushdownReader, RecordsReader, spark_pushes_filters
from forebay.spark.options import SourceOptions
from forebay.spark.sink.writer import ForebayStreamWriter, ForebayWriter
from forebay.spark.stream import QueueStreamReader
from forebay.spark.tables import DamageReader, SmallTableReader


class ForebaySource(DataSource):
    """Queues of any kind as Spark tables."""

    @classmethod
    def name(cls) -> str:
        """Returns the name to pass to `format`."""
        return "forebay"

    def schema(self) -> StructType:
        """Returns the columns of the requested table."""
        options = self._source_options()
        found = kinds.kinds_of(options.paths)
        return schemas.spark_schema(schemas.arrow_schema(options.table, options.columns, found))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns a reader of the queues as they are now."""
        options = self._source_options()
        columns = schemas.check_schema(options.table, schema)
        if options.table == "damage":
            return DamageReader(options, columns)
        if options.table != "records":
            return SmallTableReader(options, columns)
        pushes = options.pushdown and spark_pushes_filters()
        return (PushdownReader if pushes else RecordsReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns a reader that continues as records arrive."""
        options = self._source_options()
        if options.table != "records":
            raise InvalidOption(f"table = {options.table!r}: a stream reads records only")
        for name, given in (("endingOffsets", options.end), ("endingTimestamp", options.end_ms)):
            if given is not None:
                raise InvalidOption(f"{name}: a stream has no end; read a range with spark.read")
        return QueueStreamReader(options, schemas.check_schema(options.table, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns a writer of one batch of records."""
        return ForebayWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Returns a writer of successive batches."""
        return ForebayStreamWriter(self.options, schema, overwrite)

    def _source_options(self) -> SourceOptions:
        options = SourceOptions.parse(self.options)
        given = (path for one in options.paths for path in paths.alternatives(one))
        return replace(options, paths=tuple(map(paths.absolute, given)))
