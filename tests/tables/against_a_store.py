"""Commits batches to an output in an object store, in a process of its own, and reads them back.

python -m tests.tables.against_a_store FORMAT ADDRESS [CATALOG]

What pyarrow opens for S3 stays open until the process ends, so no test does this itself. Writes
what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow

from forebay.pipelines.ingest.output import (
    DECODED,
    DROPPED,
    INTENT,
    LANDED,
    Output,
)
from forebay.tables.files import read_batches
from tests.pipelines.rigs import document, intent, write

COLUMNS = pyarrow.schema([("offset", pyarrow.int64()), ("batch", pyarrow.int64())])


def rows(output: Output, name: str) -> list[list[int]]:
    """Returns offset and batch of all rows."""
    found = [
        [row["offset"], row["batch"]]
        for file in output.tables()[name].files()
        for batch in read_batches(output.path, file, COLUMNS)
        for row in batch.to_pylist()
    ]
    return sorted(found)


def run(format: str, address: str, catalog: str | None) -> dict[str, Any]:
    """Commits, dies between two tables, goes on, joins the files; returns what is there."""
    output = Output.at(address)
    output.make(document(format, catalog=catalog))
    for batch in range(3):
        output.publish(intent(batch, write(output, batch, [batch])))
    # A run that died after its first table, and one that died before it wrote the intent.
    files = write(output, 3, [3])
    tables = output.tables()
    tables[DECODED].append(3, files[DECODED])
    output.store.write(INTENT, intent(3, files).encode())
    half = [rows(output, DECODED), rows(output, LANDED)]
    output.finish()
    whole = [rows(output, name) for name in (DECODED, DROPPED, LANDED)]
    found: dict[str, Any] = {"half": half, "whole": whole, "joined": tables[DECODED].compact()}
    if catalog is None:
        # The other server takes it badly when pyarrow removes an object.
        write(output, 4, [4])
        output.clean()
        found["left"] = tables[DECODED].vacuum(0)
    names = output.store.names(LANDED)
    found["directories"] = [name for name in names if name.startswith("batch=4")]
    return {**found, "after": rows(output, DECODED), "batches": output.batches()}


if __name__ == "__main__":
    format, address, *rest = sys.argv[1:]
    sys.stdout.write(json.dumps(run(format, address, rest[0] if rest else None)))
