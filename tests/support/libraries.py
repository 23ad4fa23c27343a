"""The libraries of the open tables keep threads for as long as the process lives.

They are started before the first test that could start them, and would be blamed for them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("PYICEBERG_MAX_WORKERS", "1")
# Polars has a planner of its own for Iceberg, and warns where it is not installed.
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")


def start_threads() -> None:
    """Starts the threads of deltalake, of Polars and of PyIceberg."""
    import polars
    import pyarrow
    from deltalake import DeltaTable, write_deltalake
    from pyiceberg.utils.concurrent import ExecutorFactory

    with tempfile.TemporaryDirectory() as path:
        write_deltalake(Path(path, "table"), pyarrow.table({"x": [1]}))
        DeltaTable(Path(path, "table")).to_pyarrow_table()
        polars.scan_delta(str(Path(path, "table"))).collect()
        polars.read_parquet(Path(path, "table", "*.parquet"))
    ExecutorFactory.get_or_create().submit(int).result()
