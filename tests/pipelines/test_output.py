"""Tests of the one way of committing, on each format: a crash leaves all of a batch, or nothing."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.errors import InvalidOption, Locked, NotAQueue
from forebay.pipelines.ingest import output as module
from forebay.pipelines.ingest.output import (
    COMMIT_ORDER,
    DECODED,
    DROPPED,
    INTENT,
    LANDED,
    TABLES,
    Intent,
    Manifest,
    Output,
)
from forebay.tables import delta, iceberg, plain
from forebay.tables.protocol import Place, open_table
from tests.counting import Count
from tests.pipelines.rigs import USED, commit, dies_at, hunt, intent, make_output, offsets_in, write
from tests.support.planting import Broken
from tests.tables.helpers import FORMATS, SCHEMA

every = pytest.mark.parametrize("format", FORMATS)


@every
def test_a_new_output_has_every_table_and_no_batch(format: str, tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", format)

    assert output.exists
    assert output.batches() == []
    assert [offsets_in(output, name) for name in TABLES] == [[]] * len(TABLES)


@every
@pytest.mark.slow
@pytest.mark.crash
def test_a_crash_at_any_call_leaves_a_batch_that_is_finished_or_done_again(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A commit of Iceberg takes ten times as long as one of the others.
    step = 5 if format == "iceberg" else 1

    calls = hunt(make_output(tmp_path / "out", format), monkeypatch, step)

    assert calls > 15


@pytest.mark.full
@pytest.mark.crash
def test_a_crash_at_any_call_of_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hunt(make_output(tmp_path / "out", "iceberg"), monkeypatch) > 15


def left_alone(patch: pytest.MonkeyPatch) -> None:
    """A run does not finish what another one was committing."""
    patch.setattr(Output, "finish", lambda self: self.store.write(INTENT, b""))


def landed_first(patch: pytest.MonkeyPatch) -> None:
    """`landed` is committed before the other tables."""
    patch.setattr(module, "COMMIT_ORDER", tuple(reversed(COMMIT_ORDER)))


def not_looked_up(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether a table holds the batch."""
    for owner in (plain.Table, iceberg.Table):
        patch.setattr(owner, "holds", lambda self, batch: False)


def thought_done(patch: pytest.MonkeyPatch) -> None:
    """A table claims to hold the batch that is being committed."""
    for owner in (plain.Table, delta.Table, iceberg.Table):
        patch.setattr(owner, "holds", lambda self, batch: True)


def files_left(patch: pytest.MonkeyPatch) -> None:
    """The files of a batch that died stay."""
    patch.setattr(module, "attempt_of", lambda name: (None, 0))


def files_lost(patch: pytest.MonkeyPatch) -> None:
    """The files of the newest batch are taken for those of one that died."""
    real = module.attempt_of

    def attempt(name: str) -> tuple[int | None, int]:
        batch, generation = real(name)
        return None if batch is None else batch + 1, generation

    patch.setattr(module, "attempt_of", attempt)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    ("format", "plant"),
    [
        ("delta", left_alone),
        ("delta", landed_first),
        ("parquet", landed_first),
        ("parquet", not_looked_up),
        ("iceberg", not_looked_up),
        ("delta", thought_done),
        ("delta", files_left),
        ("delta", files_lost),
    ],
)
def test_a_planted_bug_is_caught(
    format: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Count,
) -> None:
    output = make_output(tmp_path / "out", format)
    plant(monkeypatch)

    with pytest.raises(Broken):
        hunt(output, monkeypatch)

    record_property("planted bugs caught", 1)


@pytest.mark.parametrize(
    "format", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.full)]
)
@pytest.mark.slow
@pytest.mark.crash
def test_a_crash_in_a_rebuild_leaves_it_done_or_not_begun(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output(tmp_path / "out", format)
    for batch in range(3):
        commit(output, batch)
    expected = [list(range(6))]

    # Not every call: those of a commit are the same ones, one after the other.
    for number, point in enumerate((0, 2, 3, 4, 5, 7, 9, 12, 15, 19, 1000), 1):
        files = write(output, 1, [100 + number], generation=output.document()["generation"] + 1)
        document = {**output.document(), "generation": output.document()["generation"] + 1}
        rebuilt = replace(intent(1, files), document=document)
        dies_at(point, monkeypatch, functools.partial(output.publish, rebuilt))
        output.clean()
        expected.append([0, 1, 4, 5, 100 + number])

        found = [offsets_in(output, name) for name in USED]
        assert found == [found[0]] * len(USED)
        assert found[0] in expected[-2:]
        expected[-1] = found[0]

    assert expected[-1] == [0, 1, 4, 5, 111]
    commit(output, 3)
    assert offsets_in(output, LANDED) == [0, 1, 4, 5, 6, 7, 111]


def test_a_batch_may_lack_tables(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out")
    files = write(output, 0, [0])

    output.publish(intent(0, {LANDED: files[LANDED], DECODED: []}))

    assert offsets_in(output, LANDED) == [0]
    assert offsets_in(output, DECODED) == []
    assert output.batches() == [0]


def test_an_intent_survives_its_bytes(tmp_path: Path) -> None:
    files = write(make_output(tmp_path / "out"), 0, [0])
    made = Intent((Manifest(0, "d"),), {DROPPED: {0: files[DROPPED]}}, {"generation": 1}, True)

    assert Intent.decode(made.encode()) == made


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()

    with pytest.raises(InvalidOption, match=r"holds 'photo.jpg'"):
        make_output(tmp_path)


def test_batches_without_their_document_are_not_thrown_away(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out")
    commit(output, 0)
    (tmp_path / "out" / "pipeline.json").unlink()

    with pytest.raises(InvalidOption, match=r"holds batches, but pipeline\.json is missing"):
        make_output(tmp_path / "out")


def test_an_output_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match="holds no tables"):
        Output.at(tmp_path / "none").document()


def test_tables_of_an_earlier_version_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text(json.dumps({"v": 1}))

    with pytest.raises(InvalidOption, match=r"of version 1, and this .* give another out"):
        Output.at(tmp_path).document()


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out")

    with output.locked(), pytest.raises(Locked), output.locked():
        pass

    with output.locked():
        assert (tmp_path / "out").is_dir()


def test_a_file_in_the_place_of_the_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()

    with pytest.raises(InvalidOption, match="is a file"), Output.at(tmp_path / "out").locked():
        pass


def test_plain_tables_in_an_object_store_are_refused_before_anything_is_written() -> None:
    table = open_table("parquet", Place("s3://bucket/x", LANDED, "id"))

    with pytest.raises(InvalidOption, match="object store cannot rename"):
        table.create(SCHEMA)


def test_a_commit_is_durable_before_the_next_step_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output(tmp_path / "out")
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(number: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def note_rename(source: str, target: str) -> None:
        calls.append(("rename", target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    commit(output, 0)

    def at(name: str, path: str) -> int:
        return calls.index((name, f"{tmp_path}/out/{path}"))

    intended, first, last = (
        at("rename", path) for path in (INTENT, "decoded/batch=0", "landed/batch=0")
    )
    # Every file has its content and its name before anything names it.
    written = [
        number
        for number, (name, path) in enumerate(calls)
        if name == "rename" and path.endswith(".parquet")
    ]
    for number in written:
        path = calls[number][1]
        assert calls[number - 1][0] == "fsync"
        assert calls[number + 1] == ("fsync", os.path.dirname(path))
    assert len(written) == 3
    assert max(written) < intended < first < last < at("rename", "_batches/0.json")
    # The intent is there before a table, and each rename before what follows it.
    assert ("fsync", f"{tmp_path}/out") in calls[intended:first]
    assert ("fsync", f"{tmp_path}/out/decoded") in calls[first:last]
    assert at("fsync", "landed") < at("rename", "_batches/0.json")
    published = at("rename", "_batches/0.json")
    assert calls[published + 1] == ("fsync", f"{tmp_path}/out/_batches")
    assert calls[published + 3] == ("rename", f"{tmp_path}/out/{INTENT}")


@pytest.mark.parametrize(
    ("format", "log"), [("delta", "_delta_log"), ("iceberg", "metadata")], ids=["delta", "iceberg"]
)
def test_a_commit_of_a_library_is_synced_before_the_next_step(
    format: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output(tmp_path / "out", format)
    synced: list[str] = []
    fsync = os.fsync

    def note_sync(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    before = set((tmp_path / "out" / LANDED / log).iterdir())
    monkeypatch.setattr(os, "fsync", note_sync)
    commit(output, 0)

    new = set((tmp_path / "out" / LANDED / log).iterdir()) - before
    assert new
    assert {str(path) for path in new if path.suffix != ".crc"} <= set(synced)
    assert str(tmp_path / "out" / LANDED / log) in synced
