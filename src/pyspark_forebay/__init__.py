"""Makes the format `forebay` known to Spark, which looks for `DefaultSource` in `pyspark_*`."""

from __future__ import annotations

from forebay.spark.source import ForebaySource as DefaultSource

__all__ = ["DefaultSource"]
