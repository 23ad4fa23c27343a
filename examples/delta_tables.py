"""Queues as Delta tables: decoded, each record once, and proven complete.

When to use it:
    Others query the events in Polars, DuckDB or Spark, and must be able to trust the tables.
    What cannot be decoded is in a table of its own, with the reason, and does not stop the rest.
    Run it from a timer: each run goes on where the last one ended, however that was.

Run it: python examples/delta_tables.py "/spool/*/events" /lake/doors
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import deltalake

from forebay.pipelines import ingest, reconcile

if TYPE_CHECKING:
    from forebay.spark import SparkSession


def load(path: str, out: str, spark: SparkSession | None = None) -> None:
    """Loads what is new, proves that nothing is missing, and prints what the table has."""
    ingest(source=path, out=out, schema="door STRING, open BOOLEAN", format="delta", spark=spark)
    print("every record accounted for:", reconcile(out, spark=spark).proven)
    doors = deltalake.DeltaTable(f"{out}/decoded").to_pyarrow_table(columns=["door", "open"])
    print(doors.num_rows, "rows")


def main(path: str, out: str) -> None:
    """Runs it once."""
    load(path, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
