"""Counts the records of queues from the headers and names of their files, without reading them."""

from __future__ import annotations

from collections.abc import Iterable

import forebay.spark
from forebay.errors import InvalidOption


def count(paths: str | Iterable[str], *, spark: forebay.spark.SparkSession | None = None) -> int:
    """Returns how many records the queues at paths and globs hold, according to their files.

    It verifies nothing: records that are damaged or missing are counted as well, and a queue that
    cannot be read is left out. It costs a header for each file. Raises `InvalidOption` if a file
    does not tell how many records it has: count the rows of `spark.read` instead.
    """
    from forebay.spark.session import session

    given = [paths] if isinstance(paths, str) else list(paths)
    frame = (spark or session()).read.format("forebay").option("table", "segments").load(given)
    untold = "min(CASE WHEN count IS NULL THEN concat(queue, '/', segment) END)"
    (row,) = frame.selectExpr("sum(count)", untold).collect()
    if row[1] is not None:
        raise InvalidOption(
            f"count: {row[1]} does not tell how many records it has; count with spark.read"
        )
    return int(row[0] or 0)
