"""Plain Parquet: `TABLE/batch=NUMBER/`, a directory that a rename puts there whole.

Every engine reads it without a library, and none sees half a batch. There is no transaction over
several directories: a reader may see a part of a rebuild. `batch=-1` has no rows: it says which
columns there are. The number is in the name of the directory and not in the files.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from forebay.errors import InvalidOption
from forebay.tables.files import NULL_DIRECTORY
from forebay.tables.protocol import BATCH, STAGING, DataFile, Place, Target
from forebay.tables.store import Directory, is_remote

_COLUMNS = f"{BATCH}=-1"


@dataclass(frozen=True, slots=True)
class Table:
    """A directory with a directory for each batch."""

    place: Place

    def target(self, directory: str, schema: pyarrow.Schema, batch: int) -> Target:
        """Returns where the tasks write: aside, where no reader looks."""
        place = self.place
        return Target(
            place.address,
            f"{STAGING}/{place.name}/{directory}",
            schema,
            partition_by=place.partition_by,
            in_files=False,
            named_directories=True,
        )

    def create(self, schema: pyarrow.Schema) -> None:
        """Creates the table without rows, unless it exists."""
        if is_remote(self.place.address):
            raise InvalidOption(
                f"out = {self.place.address!r}: format = 'parquet' needs a directory, because an "
                "object store cannot rename one; use format = 'delta' or 'iceberg'"
            )
        if not self._store.names(f"{self.place.name}/{_COLUMNS}"):
            self.evolve(schema)

    def evolve(self, schema: pyarrow.Schema) -> None:
        """Writes the file without rows again; files that are there keep their columns."""
        directory, partition = f"{self.place.name}/{_COLUMNS}", self.place.partition_by
        if partition is not None and partition in schema.names:
            directory += f"/{partition}={NULL_DIRECTORY}"
            schema = schema.remove(schema.get_field_index(partition))
        with self._store.create(f"{directory}/columns.parquet") as file:
            pyarrow.parquet.write_table(schema.empty_table(), file)

    def holds(self, batch: int) -> bool:
        """Returns whether a batch was committed."""
        return os.path.isdir(self._store.path(self._directory(batch)))

    def append(self, batch: int, files: Sequence[DataFile]) -> None:
        """Renames the directory of a batch to its place."""
        self._store.move(self._staged(files), self._directory(batch))

    def is_rebuilt(self, generation: int) -> bool:
        """Returns False: `replace` sees for each directory whether it is done."""
        return False

    def replace(
        self,
        generation: int,
        batches: Mapping[int, Sequence[DataFile]],
        schema: pyarrow.Schema | None,
    ) -> None:
        """Replaces the directories of batches, one after the other."""
        if schema is not None:
            self.evolve(schema)
        for batch, files in batches.items():
            staged = self._staged(files) if files else None
            if staged is not None and not os.path.isdir(self._store.path(staged)):
                # An attempt that died had got this far.
                continue
            if self.holds(batch):
                self._remove(batch)
            if staged is not None:
                self._store.move(staged, self._directory(batch))

    def drop(self, before: int) -> None:
        """Removes the directories of all batches below a number."""
        for batch in self._batches():
            if batch < before:
                self._remove(batch)

    def files(self) -> list[DataFile]:
        """Lists the files that are in the table now."""
        found = []
        for batch in self._batches():
            root = self._store.path(self._directory(batch))
            for directory, _, names in os.walk(root):
                inner = os.path.relpath(directory, self.place.address)
                parts = (part.split("=", 1) for part in inner.split("/") if "=" in part)
                values = {n: None if v == NULL_DIRECTORY else unquote(v) for n, v in parts}
                for name in names:
                    if not name.startswith("_"):
                        size = os.path.getsize(os.path.join(directory, name))
                        found.append(DataFile(f"{inner}/{name}", size, -1, dict(values)))
        return found

    def compact(self) -> tuple[int, int]:
        """Raises: the files of two batches cannot be joined."""
        raise InvalidOption(
            "format = 'parquet' has a directory for each batch, and cannot be compacted: make "
            "batches larger with a longer trigger, or use format = 'delta' or 'iceberg'"
        )

    def vacuum(self, hours: float) -> int:
        """Removes nothing: nothing is left over."""
        return 0

    @property
    def _store(self) -> Directory:
        return cast(Directory, self.place.store)

    def _directory(self, batch: int) -> str:
        return f"{self.place.name}/{BATCH}={batch}"

    def _staged(self, files: Sequence[DataFile]) -> str:
        # _staging/TABLE/DIRECTORY/…
        return "/".join(files[0].name.split("/")[:3])

    def _remove(self, batch: int) -> None:
        # Aside first: no reader sees a half of it, however many files there are.
        aside = f"{STAGING}/{uuid.uuid4().hex}"
        self._store.move(self._directory(batch), aside)
        self._store.remove(aside)

    def _batches(self) -> list[int]:
        names = self._store.names(self.place.name)
        found = [int(name.partition("=")[2]) for name in names if name.startswith(f"{BATCH}=")]
        return sorted(batch for batch in found if batch >= 0)
