"""An output without Spark: batches that are committed, or die on the way."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import (
    COMMIT_ORDER,
    DECODED,
    DROPPED,
    LANDED,
    Intent,
    Manifest,
    Output,
    new_directory,
)
from forebay.spark.open_tables import schema_of
from forebay.tables.files import TableWriter, read_batches
from forebay.tables.protocol import DataFile
from tests.support.planting import Broken

CHANGING_CALLS = ("fsync", "rename", "unlink")
# The tables that get rows.
USED = (DECODED, DROPPED, LANDED)
_OFFSET = pyarrow.schema([("offset", pyarrow.int64()), ("batch", pyarrow.int64())])


class Crash(Exception):
    """The process died here."""


def document(format: str, **definition: Any) -> dict[str, Any]:
    """Returns the document of an output whose tables have the columns queue and offset only."""
    from pyspark.sql.types import LongType, StringType, StructType

    columns = StructType().add("queue", StringType()).add("offset", LongType()).json()
    made = Definition.make(source="/q", decode="raw", format=format, **definition)
    return {
        "definition": made.document(),
        "tables": dict.fromkeys(COMMIT_ORDER, columns),
        "starts": {},
        "generation": 0,
        "landed_from": 0,
    }


def make_output(path: Path, format: str = "parquet", **definition: Any) -> Output:
    """Makes an output without batches."""
    output = Output.at(path)
    os.makedirs(path, exist_ok=True)
    output.make(document(format, **definition))
    return output


def write(
    output: Output, batch: int, offsets: Sequence[int], generation: int = 0
) -> dict[str, list[DataFile]]:
    """Writes the files of a batch: the same offsets in each of the tables that get rows."""
    document = output.document()
    directory = new_directory(batch, generation)
    found = {}
    for name in USED:
        schema = schema_of(document, name)
        writer = TableWriter(output.tables(document)[name].target(directory, schema, batch))
        rows = {"queue": ["/q"] * len(offsets), "offset": list(offsets)}
        writer.write(pyarrow.record_batch(rows, schema=schema))
        found[name] = writer.close()
    return found


def intent(batch: int, files: dict[str, list[DataFile]]) -> Intent:
    """Returns the intent to commit one batch."""
    return Intent((Manifest(batch, "d"),), {name: {batch: those} for name, those in files.items()})


def commit(output: Output, batch: int) -> None:
    """Writes and commits a batch of two rows."""
    output.publish(intent(batch, write(output, batch, [2 * batch, 2 * batch + 1])))


def offsets_in(output: Output, name: str) -> list[int]:
    """Returns the offsets in a table, sorted."""
    table = output.tables()[name]
    if output.document()["definition"]["format"] == "parquet":
        schema = _OFFSET.remove(1)
    else:
        schema = _OFFSET
    found: list[int] = []
    for file in table.files():
        for rows in read_batches(output.path, file, schema):
            found += rows.column("offset").to_pylist()
    return sorted(found)


def dies_at(point: int, patch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Runs until the given call that changes the disk; returns whether it came to the end."""
    left = [point]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **rest: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return real(*arguments, **rest)

        return call

    with patch.context() as context:
        for name in CHANGING_CALLS:
            context.setattr(os, name, dying(getattr(os, name)))
        try:
            work()
        except Crash:
            return False
    return True


def hunt(output: Output, patch: pytest.MonkeyPatch, step: int = 1) -> int:
    """Lets each batch die a few calls later than the one before, and come again.

    Returns how many calls a batch has.

    A death is a crash at one call that changes the disk. The next run cleans, and writes the batch
    again if it is not there. Raises `Broken` where a promise does not hold.
    """
    for batch in range(1000):
        done = dies_at(step * batch, patch, functools.partial(commit, output, batch))
        _check_order(output, batch)
        try:
            output.clean()
            if not output.has(batch):
                commit(output, batch)
        except OSError as error:
            raise Broken(f"batch {batch} cannot be committed: {error}") from error
        _check_tables(output, batch)
        if done:
            return step * batch
    raise AssertionError("it never came to the end")


def _check_order(output: Output, batch: int) -> None:
    """What is in `landed` is in every table."""
    if 2 * batch in offsets_in(output, LANDED):
        for name in (DECODED, DROPPED):
            if 2 * batch not in offsets_in(output, name):
                raise Broken(f"batch {batch} is in landed and not in {name}")


def _check_tables(output: Output, batch: int) -> None:
    """Every row is in each table once, and no file is there that no table has."""
    for name in USED:
        try:
            found = offsets_in(output, name)
        except FileNotFoundError as error:
            raise Broken(f"{name} lacks a file: {error}") from error
        if found != list(range(2 * batch + 2)):
            raise Broken(f"after batch {batch} {name} has {found}")
        known = {Path(output.path, file.name) for file in output.tables()[name].files()}
        there = set(Path(output.path, name).glob("batch=[0-9]*/**/*.parquet"))
        there |= set(Path(output.path, "_staging").rglob("*.parquet"))
        if there != known:
            raise Broken(f"after batch {batch} files of {name} are left: {there - known}")
