"""What the tests of the pipelines share: queues of events, and looks at tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forebay.spark
from forebay import Log
from forebay.pipelines import Reconciliation, ingest, reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, name STRING"
Place = tuple[str, int]


def event(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "name": f"event {number}", **more}).encode()


def append(path: Path, values: list[bytes], **options: Any) -> Path:
    """Appends records in small segments, durably, and closes the queue."""
    with Log(path, **{"segment_bytes": 1_000, "trim_interval_seconds": None, **options}) as log:
        log.append_many(values)
    return path


def run(spark: SparkSession, source: Any, out: Path, **options: Any) -> Any:
    """Ingests JSON events, as most of the tests do."""
    return ingest(**{"source": source, "out": out, "schema": SCHEMA, "spark": spark, **options})


def places(spark: SparkSession, out: Path, table: str) -> list[Place]:
    """Returns (queue, offset) of every row of a table, sorted, the queues by their names."""
    rows = forebay.spark.table(spark, out, table).select("queue", "offset").collect()
    return sorted((Path(queue).name, offset) for queue, offset in rows)


def numbered(queue: str, offsets: Iterable[int]) -> list[Place]:
    return [(queue, offset) for offset in offsets]


def proof_of(spark: SparkSession, out: Path) -> Reconciliation:
    """Reconciles, and shows what is wrong if something is."""
    found = reconcile(out, spark=spark)
    assert found.proven, [proof.problems for proof in found.queues]
    return found
