"""One behaviour, three formats: what a commit of files promises."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from forebay.errors import InvalidOption
from tests.tables.helpers import FORMATS, SCHEMA, Rig

every = pytest.mark.parametrize("format", FORMATS)
DAYS = [date(2026, 11, 1), None, date(2026, 11, 2)]


def make(format: str, path: Path, batches: int = 0, **place: Any) -> Rig:
    """Makes a table with batches of three rows."""
    rig = Rig(format, path, **place)
    rig.table.create(SCHEMA)
    for batch in range(batches):
        offsets = range(3 * batch, 3 * batch + 3)
        rig.table.append(batch, rig.write(batch, offsets, day=DAYS, name=["a", "b", None]))
    return rig


@every
def test_a_new_table_has_no_rows_and_is_created_once(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path)

    rig.table.create(SCHEMA)

    assert rig.rows() == []
    assert not rig.table.holds(0)


@every
def test_files_are_in_the_table_when_their_batch_is_committed(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path)
    files = rig.write(0, range(4))

    before = rig.rows()
    rig.table.append(0, files)

    assert before == []
    assert rig.rows() == [0, 1, 2, 3]
    assert rig.table.holds(0)
    assert not rig.table.holds(1)


@every
def test_a_partition_has_the_rows_of_its_value(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path, batches=2, partition_by="day")

    assert len(rig.table.files()) == 6
    assert rig.rows("offset", "day") == sorted(
        [(offset, DAYS[offset % 3]) for offset in range(6)], key=str
    )


@every
def test_batches_are_replaced_and_the_others_stay(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path, batches=3)
    new = {0: rig.write(0, [10]), 2: []}

    done = rig.table.is_rebuilt(1)
    rig.table.replace(1, new, None)

    assert not done
    assert rig.rows() == [3, 4, 5, 10]
    # The format tells, or does nothing the second time.
    if not rig.table.is_rebuilt(1):
        rig.table.replace(1, new, None)
    assert rig.rows() == [3, 4, 5, 10]
    assert not rig.table.is_rebuilt(2)
    assert not rig.table.holds(3)


@every
@pytest.mark.parametrize("partition_by", [None, "day"])
def test_all_rows_are_replaced_with_other_columns(
    format: str, tmp_path: Path, partition_by: str | None
) -> None:
    rig = make(format, tmp_path, batches=2, partition_by=partition_by)
    schema = pyarrow.schema([("offset", pyarrow.int64()), SCHEMA.field("day"), ("n", "int32")])
    schema = schema.append(pyarrow.field("name", pyarrow.int64()))
    files = {
        0: rig.write(0, [0, 1], schema, n=[7, 8], name=[5, 6], day=DAYS[:2]),
        1: rig.write(1, [2], schema, n=[9], name=[4], day=DAYS[2:]),
    }

    rig.table.replace(1, files, schema)
    rig.table.append(2, rig.write(2, [3], schema, n=[1], name=[3], day=DAYS[2:]))

    assert rig.rows("offset", "name", kind=pyarrow.int64()) == [(0, 5), (1, 6), (2, 4), (3, 3)]


@every
def test_an_added_column_is_null_in_old_rows(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path, batches=1)
    schema = SCHEMA.append(pyarrow.field("more", pyarrow.int64()))

    rig.table.evolve(schema)
    rig.table.evolve(schema)
    rig.table.append(1, rig.write(1, [3], schema, more=[7]))

    assert rig.rows("offset", "more", kind=pyarrow.int64()) == [
        *((0, None), (1, None), (2, None)),
        (3, 7),
    ]


@every
def test_batches_are_dropped_up_to_one(format: str, tmp_path: Path) -> None:
    rig = make(format, tmp_path, batches=3)

    rig.table.drop(2)

    assert rig.rows() == [6, 7, 8]
    assert rig.table.holds(2)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("partition_by", [None, "day"])
def test_small_files_are_joined_and_the_old_ones_go(
    format: str, tmp_path: Path, partition_by: str | None
) -> None:
    rig = make(format, tmp_path, batches=4, partition_by=partition_by)
    rows = rig.rows("offset", "day")
    values = 3 if partition_by else 1

    joined = rig.table.compact()
    removed = rig.table.vacuum(0)

    assert joined == (4 * values, values)
    assert removed == 4 * values
    assert rig.rows("offset", "day") == rows
    assert rig.table.holds(3)
    rig.table.append(4, rig.write(4, [99]))
    rig.table.replace(1, {1: []}, None)
    assert rig.rows() == [0, 1, 2, 6, 7, 8, 9, 10, 11, 99]


def test_plain_tables_cannot_be_compacted_and_say_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be compacted: make batches larger"):
        make("parquet", tmp_path).table.compact()
