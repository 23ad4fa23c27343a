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
    "segment STRING, position BIGINT"
)
REJECTED_DDL = f"{LANDED_DDL}, reason STRING"
DAMAGE_DDL = (
    "queue STRING, kind STRING, segment STRING, position BIGINT, length BIGINT, reason STRING, "
    "torn BOOLEAN, offset BIGINT, count BIGINT"
)
DROPPED_DDL = "queue STRING, offset BIGINT, timestamp TIMESTAMP, why STRING"
DDLS = {
    LANDED: LANDED_DDL,
    REJECTED: REJECTED_DDL,
    DAMAGE: DAMAGE_DDL,
    DROPPED: DROPPED_DDL,
}


def columns_of(text: str) -> StructType:
    """Gives columns in Spark's types, from DDL or from Spark's JSON."""
    from pyspark.sql.types import StructType

    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found
