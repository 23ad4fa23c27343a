"""Lets Spark find the format `forebay` by itself: it looks for `DefaultSource` in `pyspark_*`."""

from __future__ import annotations

from forebay.spark.source import ForebaySource as DefaultSource

__all__ = ["DefaultSource"]
