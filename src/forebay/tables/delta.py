"""Delta Lake: a commit adds the files of a batch and sets the version of our transaction to it.

A replay with the same version would be accepted: `holds` has to be asked first. The number of the
batch is also the last column of every file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.dataset
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from forebay.errors import InvalidOption
from forebay.tables.files import BATCH_FIELD, read_batches
from forebay.tables.protocol import BATCH, DataFile, Place, Target
from forebay.tables.store import is_remote, sync

_LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table, committed by `deltalake`."""

    place: Place

    def target(self, directory: str, schema: pyarrow.Schema, batch: int) -> Target:
        """Returns where the tasks write: in the table, where no commit names the files yet."""
        place = self.place
        return Target(
            place.address,
            f"{place.name}/{directory}",
            schema,
            batch,
            partition_by=place.partition_by,
            in_files=False,
        )

    def create(self, schema: pyarrow.Schema) -> None:
        """Creates the table without rows, unless it exists."""
        if not DeltaTable.is_deltatable(self.place.path, storage_options=self._options):
            DeltaTable.create(
                self.place.path,
                schema.append(BATCH_FIELD),
                partition_by=self.place.partition_by,
                storage_options=self._options,
            )
            self._make_durable(0)

    def evolve(self, schema: pyarrow.Schema) -> None:
        """Adds the columns that the table lacks; raises for any other difference."""
        table = self._table()
        known = {field.name: field for field in table.schema().fields}
        wanted = DeltaSchema.from_arrow(schema).fields
        new = [field for field in wanted if field.name not in known]
        for field in wanted:
            if field.name in known and field.type != known[field.name].type:
                raise InvalidOption(
                    f"schema: {field.name} becomes {field.type} in a Delta table, which cannot "
                    "widen a column: rebuild the tables with backfill '..', or use another out"
                )
        if new:
            table.alter.add_columns([Field(field.name, field.type, nullable=True) for field in new])
            self._make_durable(self._table().version())

    def holds(self, batch: int) -> bool:
        """Returns whether a batch was committed."""
        last = self._table().transaction_version(self.place.id)
        return last is not None and last >= batch

    def append(self, batch: int, files: Sequence[DataFile]) -> None:
        """Commits the files of a batch."""
        table = self._table()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.name.removeprefix(f"{self.place.name}/"),
                file.size,
                file.values,
                modification_time=0,
                data_change=True,
                stats=file.stats,
            )
            for file in files
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=self._properties(self.place.id, batch),
        )
        self._make_durable(table.version() + 1)

    def is_rebuilt(self, generation: int) -> bool:
        """Returns whether the replacement with this number was committed."""
        last = self._table().transaction_version(self._rebuilds)
        return last is not None and last >= generation

    def replace(
        self,
        generation: int,
        batches: Mapping[int, Sequence[DataFile]],
        schema: pyarrow.Schema | None,
    ) -> None:
        """Replaces batches in one commit; this process reads the new files and writes them."""
        table = self._table()
        columns = pyarrow.schema(table.schema()) if schema is None else schema.append(BATCH_FIELD)
        rows = (
            rows
            for files in batches.values()
            for file in files
            for rows in read_batches(self.place.address, file, columns)
        )
        numbers = ", ".join(map(str, batches))
        write_deltalake(
            table,
            pyarrow.RecordBatchReader.from_batches(columns, rows),
            mode="overwrite",
            schema_mode="overwrite" if schema is not None else None,
            predicate=f"{BATCH} IN ({numbers})" if schema is None else None,
            commit_properties=self._properties(self._rebuilds, generation),
        )
        self._make_durable(self._table().version())
        for directory in {os.path.dirname(file.name) for one in batches.values() for file in one}:
            self.place.store.remove(directory)

    def drop(self, before: int) -> None:
        """Removes the rows of all batches below a number."""
        table = self._table()
        table.delete(f"{BATCH} < {before}")
        self._make_durable(table.version())

    def files(self) -> list[DataFile]:
        """Lists the files that are in the table now."""
        actions = pyarrow.table(self._table().get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(
                f"{self.place.name}/{unquote(action['path'])}",
                action["size_bytes"],
                action["num_records"],
                {
                    name.removeprefix("partition."): _text(value)
                    for name, value in action.items()
                    if name.startswith("partition.")
                },
            )
            for action in actions
        ]

    def compact(self) -> tuple[int, int]:
        """Joins small files."""
        before = len(self.files())
        table = self._table()
        table.optimize.compact()
        self._make_durable(table.version())
        return before, len(self.files())

    def vacuum(self, hours: float) -> int:
        """Removes files that the table no longer has since so many hours."""
        # Full: also what no commit ever named.
        removed = self._table().vacuum(
            int(hours), dry_run=False, enforce_retention_duration=False, full=True
        )
        # An object store may name the mark of the folder itself, too.
        return sum(bool(name) for name in removed)

    @property
    def _options(self) -> dict[str, str] | None:
        if not is_remote(self.place.address):
            return None
        # A plain HTTP endpoint has to be allowed; credentials are in the environment.
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        return {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}

    @property
    def _rebuilds(self) -> str:
        return f"{self.place.id}/rebuilds"

    def _table(self) -> DeltaTable:
        return DeltaTable(self.place.path, storage_options=self._options)

    def _properties(self, name: str, version: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(name, version)])

    def _make_durable(self, version: int) -> None:
        """Syncs a commit: the library leaves that to the system."""
        if not is_remote(self.place.address):
            log = os.path.join(self.place.path, _LOG)
            sync(os.path.join(log, f"{version:020}.json"))
            sync(log)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
