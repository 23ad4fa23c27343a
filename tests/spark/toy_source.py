"""The format `forebay` where toys are a kind: Spark's workers import it from here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forebay.spark import schemas
from forebay.spark.batch import RecordsReader
from forebay.spark.source import ForebaySource
from tests.kinds.toy import toys


class ToyRecordsReader(RecordsReader):
    """Plans and reads where toys are a kind."""

    def partitions(self) -> list[InputPartition]:
        with toys():
            return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with toys():
            yield from super().read(partition)


class ToySource(ForebaySource):
    """The format of this reader."""

    @classmethod
    def name(cls) -> str:
        return "toys"

    def schema(self) -> StructType:
        with toys():
            return super().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._source_options()
        with toys():
            return ToyRecordsReader(options, schemas.check_schema(options.table, schema))
