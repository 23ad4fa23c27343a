"""The tables of an output, with their columns as DDL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LANDED = "landed"
DECODED = "decoded"
REJECTED = "rejected"
DAMAGE = "damage"
DROPPED = "dropped"
TABLES = (LANDED, DECODED, REJECTED, DAMAGE, DROPPED)

# Why a record is in `dropped`.
DUPLICATE = "duplicate"
FILTERED = "filtered"

LANDED_DDL = (
    "queue STRING, kind STRING, offset BIGINT, timestamp TIMESTAMP, value BINARY, "
    "segment STRING, position BIGINT, queue_id STRING"
)
# What a snapshot of a deadline queue has beside it.
ITEM_COLUMNS = {
    "deadline": "TIMESTAMP",
    "type": "STRING",
    "requeue_time": "TIMESTAMP",
    "dequeue_count": "BIGINT",
}
DAMAGE_DDL = (
    "queue STRING, kind STRING, segment STRING, position BIGINT, length BIGINT, reason STRING, "
    "torn BOOLEAN, offset BIGINT, count BIGINT"
)
DROPPED_DDL = "queue STRING, offset BIGINT, timestamp TIMESTAMP, why STRING"


def ddls(*, snapshots: bool) -> dict[str, str]:
    """Returns the columns of all tables but `decoded`, of streams or of snapshots."""
    added = "".join(f", {name} {kind}" for name, kind in ITEM_COLUMNS.items() if snapshots)
    landed = LANDED_DDL + added
    return {
        LANDED: landed,
        REJECTED: f"{landed}, reason STRING",
        DAMAGE: DAMAGE_DDL,
        DROPPED: DROPPED_DDL,
    }


def columns_of(text: str) -> StructType:
    """Returns columns in Spark's types, from DDL or from Spark's JSON."""
    from pyspark.sql.types import StructType

    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found
