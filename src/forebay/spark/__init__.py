"""Forebay's queues for Spark: a source, a sink, and a session to use them in.

Importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.spark.cluster import package_zip, send
from forebay.spark.counting import count
from forebay.spark.open_tables import table
from forebay.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

__all__ = ["count", "package_zip", "send", "session", "table"]


def __getattr__(name: str) -> object:
    """Imports the class of Spark that annotations name when somebody evaluates them."""
    if name not in ("DataFrame", "SparkSession"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark import sql

    return getattr(sql, name)
