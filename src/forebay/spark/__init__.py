"""Forebay's queues for Spark: a source, a sink, and a session to use them in.

Importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from forebay.spark.cluster import package_zip
from forebay.spark.session import session

__all__ = ["package_zip", "session"]
