"""What the tests of the tables share: rows of a batch, and a table of each format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow

from forebay.tables.files import TableWriter, read_batches
from forebay.tables.protocol import DataFile, OpenTable, Place, open_table

FORMATS = ("parquet", "delta", "iceberg")
SCHEMA = pyarrow.schema(
    [("offset", pyarrow.int64()), ("day", pyarrow.date32()), ("name", pyarrow.string())]
)


class Rig:
    """One table in a directory, and what is written to it."""

    def __init__(self, format: str, path: Path, **place: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.place = Place(str(path), "decoded", "id", **place)
        self.format = format
        self.attempts = 0

    @property
    def table(self) -> OpenTable:
        """The table, opened again."""
        return open_table(self.format, self.place)

    def write(
        self, batch: int, offsets: Sequence[int], schema: pyarrow.Schema = SCHEMA, **columns: Any
    ) -> list[DataFile]:
        """Writes the files of a batch, as a task does; nothing is committed."""
        self.attempts += 1
        directory = f"batch={batch}-0-{self.attempts}"
        given = {"offset": list(offsets), **columns}
        rows = {
            field.name: pyarrow.array(given.get(field.name, [None] * len(offsets)), field.type)
            for field in schema
        }
        writer = TableWriter(self.table.target(directory, schema, batch))
        writer.write(pyarrow.record_batch(rows, schema=schema))
        return writer.close()

    def rows(self, *names: str, kind: pyarrow.DataType | None = None) -> list[Any]:
        """Returns the rows as the list of files has them."""
        chosen = names or ("offset",)
        schema = pyarrow.schema(
            [pyarrow.field(name, kind or SCHEMA.field(name).type) for name in chosen]
        )
        found = []
        for file in self.table.files():
            for rows in read_batches(self.place.address, file, schema):
                found += [tuple(row.values()) for row in rows.to_pylist()]
        return sorted(found, key=str) if names else sorted(one for (one,) in found)
