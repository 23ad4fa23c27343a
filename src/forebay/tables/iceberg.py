"""Iceberg: a transaction adds the files of a batch, and its number to the properties.

The number is a property of the snapshot, for people, and of the table, where it outlives the
snapshots: `holds` looks there. It is also the last column of every file.

The catalog is one of the user's (`pyiceberg`'s configuration), or `catalog.db`, SQLite beside
local tables.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pyarrow.parquet
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType

from forebay.errors import InvalidOption
from forebay.tables.files import BATCH_FIELD, TableWriter, read_batches
from forebay.tables.protocol import BATCH, DataFile, Place, Target
from forebay.tables.store import is_remote, sync

CATALOG_FILE = "catalog.db"
_NAMESPACE = "forebay"
_BATCH_PROPERTY = "forebay.batch"
_REBUILD_PROPERTY = "forebay.rebuild"
_JOINED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """An Iceberg table, committed by PyIceberg."""

    place: Place

    def target(self, directory: str, schema: pyarrow.Schema, batch: int) -> Target:
        """Returns where the tasks write: in the table, where no commit names the files yet."""
        return Target(
            self.place.address,
            f"{self.place.name}/{directory}",
            _without_short_numbers(schema),
            batch,
            partition_by=self.place.partition_by,
        )

    def create(self, schema: pyarrow.Schema) -> None:
        """Creates the table without rows, unless it exists."""
        catalog, identifier = self._catalog()
        if catalog.table_exists(identifier):
            return
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(identifier[0])
        columns = _without_short_numbers(schema).append(BATCH_FIELD)
        table = catalog.create_table(identifier, columns, location=self._url(self.place.name))
        partition_by = self.place.partition_by
        if partition_by is not None:
            with table.update_spec() as spec:
                spec.add_identity(partition_by)
        self._make_durable(table)

    def evolve(self, schema: pyarrow.Schema) -> None:
        """Adds the columns that the table lacks, and widens types."""
        table = self._table()
        with table.update_schema() as update:
            update.union_by_name(_without_short_numbers(schema).append(BATCH_FIELD))
        self._make_durable(self._table())

    def holds(self, batch: int) -> bool:
        """Returns whether a batch was committed."""
        return int(self._table().properties.get(_BATCH_PROPERTY, -1)) >= batch

    def append(self, batch: int, files: Sequence[DataFile]) -> None:
        """Commits the files of a batch."""
        with self._table().transaction() as transaction:
            transaction.set_properties({_BATCH_PROPERTY: str(batch)})
            self._add(transaction, files, {_BATCH_PROPERTY: str(batch)})
        self._make_durable(self._table())

    def is_rebuilt(self, generation: int) -> bool:
        """Returns whether the replacement with this number was committed."""
        return int(self._table().properties.get(_REBUILD_PROPERTY, 0)) >= generation

    def replace(
        self,
        generation: int,
        batches: Mapping[int, Sequence[DataFile]],
        schema: pyarrow.Schema | None,
    ) -> None:
        """Replaces batches in one commit."""
        files = [file for one in batches.values() for file in one]
        number = {_REBUILD_PROPERTY: str(generation)}
        with self._table().transaction() as transaction:
            transaction.set_properties(number)
            numbers = ", ".join(map(str, batches))
            rows = f"{BATCH} IN ({numbers})" if schema is None else AlwaysTrue()
            self._remove(transaction, rows, number)
            if schema is not None:
                self._change_columns(transaction, _without_short_numbers(schema))
            self._add(transaction, files, number)
        self._make_durable(self._table())

    def drop(self, before: int) -> None:
        """Removes the rows of all batches below a number."""
        with self._table().transaction() as transaction:
            self._remove(transaction, f"{BATCH} < {before}", {})
        self._make_durable(self._table())

    def files(self) -> list[DataFile]:
        """Lists the files that are in the table now."""
        found = []
        root = self._url("")
        for task in self._table().scan().plan_files():
            if task.delete_files:
                raise InvalidOption(
                    f"{self.place.path}: another engine has deleted rows of {task.file.file_path} "
                    "by a delete file; rewrite the data files there first"
                )
            name = task.file.file_path.removeprefix(root)
            found.append(DataFile(name, task.file.file_size_in_bytes, task.file.record_count))
        return found

    def compact(self) -> tuple[int, int]:
        """Joins the small files of batches that follow one another."""
        before = len(self.files())
        for first, last, files in self._small():
            schema = pyarrow.parquet.read_schema(self.place.store.open(files[-1].name))
            target = Target(
                self.place.address,
                f"{self.place.name}/{BATCH}={first}-joined-{uuid.uuid4().hex[:8]}",
                schema,
                partition_by=self.place.partition_by,
            )
            writer = TableWriter(target)
            for file in files:
                for rows in read_batches(self.place.address, file, schema):
                    writer.write(rows)
            joined = writer.close()
            with self._table().transaction() as transaction:
                self._remove(transaction, f"{BATCH} >= {first} AND {BATCH} <= {last}", {})
                self._add(transaction, joined, {})
            self._make_durable(self._table())
        return before, len(self.files())

    def vacuum(self, hours: float) -> int:
        """Expires old snapshots, and removes the files that no snapshot has any more."""
        table = self._table()
        table.maintenance.expire_snapshots().older_than(
            datetime.now(UTC) - timedelta(hours=hours)
        ).commit()
        table = self._table()
        known = {
            os.path.basename(path) for path in table.inspect.all_files()["file_path"].to_pylist()
        }
        store, gone = self.place.store, 0
        for directory in store.names(self.place.name):
            if directory.startswith(f"{BATCH}="):
                names = store.names(f"{self.place.name}/{directory}")
                for name in names:
                    if name not in known:
                        store.remove(f"{self.place.name}/{directory}/{name}")
                        gone += 1
        return gone

    def _small(self) -> Iterator[tuple[int, int, list[DataFile]]]:
        """Yields files to join, with their batches, of which no other file has rows."""
        table = self._table()
        number = table.schema().find_field(BATCH).field_id
        spans: list[tuple[int, int, DataFile]] = []
        for task, file in zip(table.scan().plan_files(), self.files(), strict=True):
            lows, highs = task.file.lower_bounds, task.file.upper_bounds
            first, last = (int(from_bytes(LongType(), one[number])) for one in (lows, highs))
            spans.append((first, last, file))
        group: list[DataFile] = []
        begin = end = size = 0
        for first, last, file in sorted(spans, key=lambda span: span[:2]):
            if group and first > end and size >= _JOINED_BYTES:
                yield begin, end, group
                group, size = [], 0
            if not group:
                begin = end = first
            group.append(file)
            end = max(end, last)
            size += file.size
        values = self._partitions()
        if len(group) > values:
            yield begin, end, group

    def _partitions(self) -> int:
        """Returns how many values the partition column has."""
        return 1 if self.place.partition_by is None else self._table().inspect.partitions().num_rows

    def _catalog(self) -> tuple[Catalog, tuple[str, str]]:
        place = self.place
        if place.catalog is not None:
            name, _, namespace = place.catalog.partition(".")
            return load_catalog(name), (namespace or _NAMESPACE, place.name)
        if is_remote(place.address):
            raise InvalidOption(
                f"out = {place.address!r}: format = 'iceberg' in an object store needs a catalog: "
                "catalog = 'NAME.NAMESPACE', with NAME in the configuration of pyiceberg"
            )
        uri = f"sqlite:///{os.path.join(place.address, CATALOG_FILE)}"
        local = load_catalog(_NAMESPACE, type="sql", uri=uri, warehouse=self._url(""))
        return local, (_NAMESPACE, place.name)

    def _table(self) -> IcebergTable:
        catalog, identifier = self._catalog()
        return catalog.load_table(identifier)

    def _url(self, name: str) -> str:
        path = self.place.store.path(name)
        return path if is_remote(path) else f"file://{path}"

    def _add(self, transaction: Any, files: Sequence[DataFile], properties: dict[str, str]) -> None:
        if files:
            paths = [self._url(file.name) for file in files]
            transaction.add_files(
                paths, snapshot_properties=properties, check_duplicate_files=False
            )

    def _remove(self, transaction: Any, rows: Any, properties: dict[str, str]) -> None:
        if transaction.table_metadata.current_snapshot() is not None:
            transaction.delete(rows, snapshot_properties=properties)

    def _change_columns(self, transaction: Any, schema: pyarrow.Schema) -> None:
        """Makes the columns those of a schema; the table has no rows."""
        wanted = {field.name: _name_of(field.type) for field in schema.append(BATCH_FIELD)}
        with transaction.update_schema() as update:
            for field in transaction.table_metadata.schema().as_arrow():
                if wanted.get(field.name) != _name_of(field.type):
                    update.delete_column(field.name)
        with transaction.update_schema() as update:
            update.union_by_name(schema.append(BATCH_FIELD))

    def _make_durable(self, table: IcebergTable) -> None:
        """Syncs what a commit wrote: the library leaves that to the system."""
        if is_remote(self.place.address):
            return
        snapshot = table.current_snapshot()
        paths = [table.metadata_location]
        if snapshot is not None:
            paths.append(snapshot.manifest_list)
            paths += [
                manifest.manifest_path
                for manifest in snapshot.manifests(table.io)
                if manifest.added_snapshot_id == snapshot.snapshot_id
            ]
        for path in paths:
            sync(path.removeprefix("file://"))
        sync(os.path.dirname(table.metadata_location.removeprefix("file://")))


def _without_short_numbers(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Returns a schema as Iceberg has it: its shortest whole number has 32 bits."""
    short = (pyarrow.int8(), pyarrow.int16())
    return pyarrow.schema(
        [one.with_type(pyarrow.int32()) if one.type in short else one for one in schema]
    )


def _name_of(kind: pyarrow.DataType) -> str:
    return str(kind).replace("large_", "")
