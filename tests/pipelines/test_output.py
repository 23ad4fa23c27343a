"""Tests of the directory of an output: one rename publishes, and a crash leaves all or nothing."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from forebay.errors import InvalidOption, Locked, NotAQueue
from forebay.pipelines.ingest import output as durability
from forebay.pipelines.ingest import output as module
from forebay.pipelines.ingest.output import (
    COLUMNS_ONLY,
    DECODED,
    LANDED,
    MANIFEST,
    TABLES,
    Manifest,
    Output,
    read_manifest,
)

CHANGING_CALLS = ("fsync", "rename", "symlink")


class Crash(Exception):
    """The process died here."""


def fill(staged: str, number: int, tables: tuple[str, ...] = TABLES) -> str:
    """Writes tables of one row into a staged batch."""
    for table in tables:
        os.makedirs(f"{staged}/{table}")
        rows = pyarrow.table({"x": pyarrow.array([number] if number >= 0 else [], pyarrow.int64())})
        pyarrow.parquet.write_table(rows, f"{staged}/{table}/part-0.parquet")
    durability.write_file(f"{staged}/{MANIFEST}", Manifest(number, "d").encode())
    return staged


def make_output(path: Path, batches: int = 0) -> Output:
    output = Output.at(path)
    os.makedirs(path, exist_ok=True)
    output.make({"n": 1}, fill(output.stage(COLUMNS_ONLY), -1))
    for number in range(batches):
        output.publish(number, fill(output.stage(number), number))
    return output


def rows_of(output: Output, table: str) -> list[Any]:
    found = pyarrow.dataset.dataset(f"{output.path}/{table}", partitioning="hive").to_table()
    return sorted(found.column("x").to_pylist())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Notes every call that changes the disk, with its path; the file of `fsync` by its name."""
    noted: list[tuple[str, str]] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **rest: Any) -> Any:
            place = arguments[-1]
            path = os.readlink(f"/proc/self/fd/{place}") if name == "fsync" else str(place)
            noted.append((name, path))
            return real(*arguments, **rest)

        return call

    for name in CHANGING_CALLS:
        monkeypatch.setattr(os, name, noting(name))
    yield noted
    monkeypatch.undo()


def test_a_new_output_has_every_table_with_its_columns_and_no_rows(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out")

    assert output.exists
    assert [rows_of(output, table) for table in TABLES] == [[]] * len(TABLES)
    assert output.current().batches() == {}
    assert output.current().document() == {"v": 1, "n": 1}
    assert (tmp_path / "out" / "pipeline.json").exists()


def test_a_published_batch_is_in_every_table_for_every_kind_of_reader(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", batches=2)

    path = f"{output.path}/{DECODED}"
    assert rows_of(output, DECODED) == [0, 1]
    assert pyarrow.parquet.read_table(path).column("batch").to_pylist() == [0, 1]
    assert len(glob.glob(f"{path}/**/*.parquet", recursive=True)) == 3
    assert output.has(1)
    assert not output.has(2)
    assert list(output.current().batches()) == [0, 1]
    assert read_manifest(output.current().batches()[1]).batch == 1


def test_a_batch_may_lack_tables(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out")

    output.publish(0, fill(output.stage(0), 0, (LANDED,)))

    assert rows_of(output, LANDED) == [0]
    assert rows_of(output, DECODED) == []


@pytest.mark.slow
@pytest.mark.crash
def test_a_crash_at_any_call_leaves_a_batch_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for point in range(1000):
        output = make_output(tmp_path / str(point), batches=1)
        staged = fill(output.stage(1), 1)
        done = dies_at(point, monkeypatch, partial(output.publish, 1, staged))
        states = {tuple(rows_of(output, table)) for table in TABLES}
        seen |= states

        assert len(states) == 1
        assert states == ({(0, 1)} if output.has(1) else {(0,)})
        output.clean()
        if not output.has(1):
            output.publish(1, fill(output.stage(1), 1))
        assert [rows_of(output, table) for table in TABLES] == [[0, 1]] * len(TABLES)
        assert len(os.listdir(tmp_path / str(point) / "_batches")) == 3
        if done:
            break
    assert seen == {(0,), (0, 1)}


def dies_at(point: int, patch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Runs until the given call that changes the disk; says whether it came to the end."""
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


@pytest.mark.slow
@pytest.mark.crash
def test_a_crash_at_any_call_leaves_no_half_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in range(1000):
        path = tmp_path / str(point)
        done = dies_at(point, monkeypatch, partial(make_output, path))
        if not Output.at(path).exists:
            make_output(path)

        output = Output.at(path)
        output.clean()
        assert [rows_of(output, table) for table in TABLES] == [[]] * len(TABLES)
        if done:
            break


def test_everything_is_durable_before_the_rename_and_the_rename_after_it(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    output = make_output(tmp_path / "out")
    staged = fill(output.stage(0), 0)
    files = {str(file) for file in Path(staged).rglob("*")} | {staged}
    calls.clear()

    output.publish(0, staged)

    pool = f"{output.path}/_batches"
    moment = calls.index(("rename", f"{pool}/{os.path.basename(staged)}"))
    synced = {path for name, path in calls[:moment] if name == "fsync"}
    links = {os.path.dirname(path) for name, path in calls[:moment] if name != "fsync"}
    links -= {f"{output.path}/_staging"}
    assert files <= synced
    assert links <= synced
    assert ("fsync", pool) in calls[moment:]
    assert not [path for name, path in calls[moment + 1 :] if name != "fsync"]


def test_a_new_output_is_durable_with_its_name(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    make_output(tmp_path / "out")

    assert calls[-1] == ("fsync", str(tmp_path))


def test_a_settled_batch_is_durable_before_it_gets_its_place(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    output = make_output(tmp_path / "out")
    staged = fill(output.stage(0), 0)
    files = {str(file) for file in Path(staged).rglob("*")} | {staged}
    calls.clear()

    settled = output.settle(staged)

    moment = calls.index(("rename", f"{output.path}/_batches/{settled}"))
    assert files <= {path for name, path in calls[:moment] if name == "fsync"}
    assert calls[moment + 1 :] == [("fsync", f"{output.path}/_batches")]


def test_replaced_tables_are_durable_before_the_link_leads_to_them(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    output = make_output(tmp_path / "out", batches=2)
    changed = {0: output.settle(fill(output.stage(0), 10))}
    calls.clear()

    output.replace(changed, {"n": 2})

    named, linked = (moment for moment, call in enumerate(calls) if _is_published(call, output))
    tables = output.current().path
    assert calls[named] == ("rename", tables)
    before = {path for name, path in calls[:named] if name == "fsync"}
    made = {str(file.relative_to(tables)) for file in Path(tables).rglob("*")}
    staged = next(path for path in before if os.path.dirname(path) == f"{output.path}/_staging")
    assert {f"{staged}/{name}" for name in made if not os.path.islink(f"{tables}/{name}")} <= before
    assert ("fsync", os.path.dirname(tables)) in calls[named:linked]
    assert calls[linked + 1 :] == [("fsync", output.path)]


def _is_published(call: tuple[str, str], output: Output) -> bool:
    """Says whether a call gives a set of tables its name, or leads the readers to it."""
    name, path = call
    sets = os.path.dirname(output.current().path)
    return name == "rename" and (os.path.dirname(path) == sets or path == f"{output.path}/current")


def test_replacing_shows_new_batches_at_once_and_keeps_the_others(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", batches=3)
    old = output.current()

    settled = {number: output.settle(fill(output.stage(number), number + 10)) for number in (0, 2)}
    before = rows_of(output, DECODED)
    output.replace(settled, {"n": 2})

    assert before == [0, 1, 2]
    assert [rows_of(output, table) for table in TABLES] == [[1, 10, 12]] * len(TABLES)
    assert output.current().document()["n"] == 2
    assert len(old.batches()) == 3


def test_replaced_tables_go_only_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output(tmp_path / "out", batches=1)
    old = output.current()
    output.replace({0: output.settle(fill(output.stage(0), 10))}, {"n": 2})

    output.clean()
    kept = os.path.exists(old.path)
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + 1e11)
    output.clean()

    assert kept
    assert not os.path.exists(old.path)
    assert rows_of(output, DECODED) == [10]
    assert len(os.listdir(f"{output.path}/_batches")) == 2


def test_cleaning_removes_what_was_staged_or_settled_and_never_published(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", batches=1)
    fill(output.stage(1), 1)
    output.settle(fill(output.stage(2), 2))

    output.clean()

    assert not os.path.exists(f"{output.path}/_staging")
    assert len(os.listdir(f"{output.path}/_batches")) == 2
    assert rows_of(output, LANDED) == [0]


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()

    with pytest.raises(InvalidOption, match=r"holds 'photo.jpg'"):
        make_output(tmp_path)


def test_batches_without_the_link_to_their_tables_are_not_thrown_away(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", batches=1)
    os.unlink(f"{output.path}/current")

    with pytest.raises(InvalidOption, match="holds batches, but the link 'current'"):
        make_output(tmp_path / "out")


def test_an_output_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match="holds no tables"):
        Output.at(tmp_path / "none").current()


def test_tables_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output(tmp_path / "out")
    monkeypatch.setattr(module, "_VERSION", 2)

    with pytest.raises(InvalidOption, match="has version 1, this program reads 2"):
        output.current().document()


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out")

    with output.locked(), pytest.raises(Locked), output.locked():
        pass

    with output.locked():
        assert os.path.isdir(tmp_path / "out")


def test_a_file_in_the_place_of_the_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()

    with pytest.raises(InvalidOption, match="is a file"), Output.at(tmp_path / "out").locked():
        pass
