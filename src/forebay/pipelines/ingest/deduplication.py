"""Finds records that repeat an earlier one: those with the same key, at most `within` apart.

A record is a duplicate if an earlier record with the same key was kept and its timestamp is at most
`within` away: in an earlier batch, or in the same one with a lower (queue, offset). A record with a
null in its key is never a duplicate; a record without a timestamp counts as one of 1970.

The kept keys are not part of Spark's state: each batch has a file of its keys, which its manifest
names, and a batch reads the files of earlier batches within reach. So a batch that is done again
finds the same keys and drops the same records. Spark sorts the keys, on disk if necessary; only one
key with its times is in memory at a time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from forebay.pipelines.ingest.definition import Deduplicate
from forebay.pipelines.ingest.output import DROPPED_DDL, DUPLICATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


KEYS_DDL = "key BINARY, time_us BIGINT"
_KEY_HEX_DIGITS = 32


def keys_of(decoded: DataFrame, same: Deduplicate) -> DataFrame:
    """Returns `key` and `time_us` of the rows of `decoded` that have a key, with their place."""
    from pyspark.sql import functions as F

    present = decoded.dropna(subset=list(same.key))
    exact = [_exact(F.col(f"`{name}`"), decoded.schema[name].dataType, name) for name in same.key]
    text = F.to_json(F.struct(*exact), {"ignoreNullFields": "false"})
    # 128 bits of SHA-256: different keys will not collide, and a key has a fixed size.
    key = F.unhex(F.substring(F.sha2(text, 256), 1, _KEY_HEX_DIGITS))
    time_us = F.coalesce(F.unix_micros("timestamp"), F.lit(0))
    return present.select(key.alias("key"), time_us.alias("time_us"), "queue", "offset")


def _exact(column: Column, kind: DataType, name: str) -> Column:
    """Returns a column in a form that JSON keeps to the last digit, in any time zone.

    JSON times have milliseconds and the zone of the session. Other types stay as they are, so that
    keys stored earlier stay valid.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if isinstance(kind, T.TimestampType):
        column = F.unix_micros(column)
    elif isinstance(kind, T.TimestampNTZType):
        column = column.cast("string")
    elif isinstance(kind, T.ArrayType):
        column = F.transform(column, lambda item: _exact(item, kind.elementType, "item"))
    elif isinstance(kind, T.StructType):
        inner = [_exact(column.getField(one.name), one.dataType, one.name) for one in kind]
        column = F.when(column.isNotNull(), F.struct(*inner))
    return column.alias(name)


def duplicates(decoded: DataFrame, same: Deduplicate, earlier: DataFrame | None) -> DataFrame:
    """Returns the rows of `decoded` that repeat an earlier one, as rows of `dropped`."""
    from pyspark.sql import functions as F

    rows = keys_of(decoded, same).withColumn("new", F.lit(True))
    if earlier is not None:
        nowhere = (
            F.lit(None).cast("string").alias("queue"),
            F.lit(None).cast("bigint").alias("offset"),
        )
        rows = rows.unionByName(earlier.select("*", *nowhere, F.lit(False).alias("new")))
    ordered = rows.repartition("key").sortWithinPartitions("key", "new", "queue", "offset")
    return ordered.mapInArrow(_finder(same.within_ms * 1000), DROPPED_DDL)


def _finder(within_us: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    # A closure over one number: it is sent to the workers by value, and the rest by name.
    def find(batches: Iterator[Any]) -> Iterator[Any]:
        return find_duplicates(batches, within_us)

    return find


def find_duplicates(batches: Iterator[Any], within_us: int) -> Iterator[Any]:
    """Yields the duplicates among rows sorted by key, with those of earlier batches first."""
    import pyarrow

    timestamp = pyarrow.timestamp("us", tz="UTC")
    last: bytes | None = None
    kept: list[int] = []
    for batch in batches:
        keys, times = batch.column("key").to_pylist(), batch.column("time_us").to_pylist()
        new = batch.column("new").to_pylist()
        found = []
        for row, (key, time) in enumerate(zip(keys, times, strict=True)):
            if key != last:
                last, kept = key, [time]
            elif new[row] and _is_near(kept, time, within_us):
                found.append(row)
            else:
                insort(kept, time)
        rows = batch.take(pyarrow.array(found, pyarrow.int64()))
        yield pyarrow.record_batch(
            {
                "queue": rows.column("queue"),
                "offset": rows.column("offset"),
                "timestamp": rows.column("time_us").cast(timestamp),
                "why": pyarrow.repeat(pyarrow.scalar(DUPLICATE), len(found)),
            }
        )


def _is_near(times: list[int], time: int, within_us: int) -> bool:
    """Returns whether one of the sorted times is within reach."""
    place = bisect_left(times, time - within_us)
    return place < len(times) and times[place] <= time + within_us
