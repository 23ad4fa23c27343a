"""What each format of a table does for a commit; one class a format, and nothing else differs.

A batch is committed to a table with its number, and the table tells whether it holds a number: the
caller looks before it commits, so that a batch is in each table once. A rebuild replaces batches
and has a number of its own, the generation, which is looked up in the same way.

Only one process may change a table at a time; any number may read.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from forebay.errors import InvalidOption
from forebay.tables.store import Store, open_store

if TYPE_CHECKING:
    import pyarrow

# The column with the number of the batch, in every table.
BATCH = "batch"
# Where files are written that have no place of their own yet.
STAGING = "_staging"
# Format: its module, the package that it needs, and the extra that installs it.
FORMATS = {
    "parquet": ("forebay.tables.plain", "pyarrow", "spark"),
    "delta": ("forebay.tables.delta", "deltalake", "delta"),
    "iceberg": ("forebay.tables.iceberg", "pyiceberg", "iceberg"),
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of one table; `name` is relative to the store."""

    name: str
    size: int
    rows: int
    # The value of the partition column, as text, by its name.
    values: dict[str, str | None] = field(default_factory=dict)
    # Statistics in the form of Delta.
    stats: str = "{}"

    def document(self) -> dict[str, Any]:
        """Returns a form for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the files of one table and batch go, and which columns are in them."""

    address: str
    directory: str
    # All columns that the rows have, with types; times in UTC.
    schema: pyarrow.Schema
    # The number that is added as the last column; None if the format does not keep it in the files.
    batch: int | None = None
    partition_by: str | None = None
    # Whether the partition column is also in the files.
    in_files: bool = True
    # Whether the directories have the values in their names.
    named_directories: bool = False

    @property
    def file_schema(self) -> pyarrow.Schema:
        """The columns of a file."""
        names = self.schema.names
        left_out = {self.partition_by} if not self.in_files else set()
        import pyarrow

        schema = pyarrow.schema([self.schema.field(name) for name in names if name not in left_out])
        if self.batch is None:
            return schema
        return schema.append(pyarrow.field(BATCH, pyarrow.int64()))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is: a name in a store; and how others know it."""

    address: str
    name: str
    # Identifies the output in the tables of it.
    id: str
    partition_by: str | None = None
    # CATALOG.NAMESPACE of Iceberg; None for a catalog beside the tables.
    catalog: str | None = None

    @property
    def store(self) -> Store:
        """The store that holds the table."""
        return open_store(self.address)

    @property
    def path(self) -> str:
        """The path or the URL of the table."""
        return self.store.path(self.name)


class OpenTable(Protocol):
    """One table."""

    def target(self, directory: str, schema: pyarrow.Schema, batch: int) -> Target:
        """Returns where the tasks write the rows of a batch; `directory` is its own, anywhere."""
        ...

    def create(self, schema: pyarrow.Schema) -> None:
        """Creates the table without rows, unless it exists."""
        ...

    def evolve(self, schema: pyarrow.Schema) -> None:
        """Adds the columns that the table lacks, and widens types."""
        ...

    def holds(self, batch: int) -> bool:
        """Returns whether a batch was committed; asked for the newest one, or one after it."""
        ...

    def append(self, batch: int, files: Sequence[DataFile]) -> None:
        """Commits the files of a batch that the table does not hold yet."""
        ...

    def is_rebuilt(self, generation: int) -> bool:
        """Returns whether the replacement with this number was committed."""
        ...

    def replace(
        self,
        generation: int,
        batches: Mapping[int, Sequence[DataFile]],
        schema: pyarrow.Schema | None,
    ) -> None:
        """Replaces batches; with a schema, all rows of the table and its columns."""
        ...

    def drop(self, before: int) -> None:
        """Removes the rows of all batches below a number."""
        ...

    def files(self) -> list[DataFile]:
        """Lists the files that are in the table now."""
        ...

    def compact(self) -> tuple[int, int]:
        """Joins small files; returns how many there were, and how many there are."""
        ...

    def vacuum(self, hours: float) -> int:
        """Removes what no reader of the last hours needs; returns how many files went."""
        ...


def open_table(format: str, place: Place) -> OpenTable:
    """Returns a table, whether it exists or not; raises `InvalidOption` without its library."""
    module, package, extra = FORMATS[format]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InvalidOption(
            f"format = {format!r}: needs {package}, which is not installed: "
            f"pip install 'forebay[{extra}]'"
        ) from None
    return cast(OpenTable, found.Table(place))
