"""Tests of Spark's checkpoint as the pipeline reads, syncs and repairs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.checkpoint import batch_offsets, make_durable, repair
from forebay.pipelines.ingest.output import Offsets

COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def place(offset: int, **more: int) -> dict[str, Any]:
    return {"id": "ab", "incarnation": 3, "offset": offset, **more}


def make_checkpoint(path: Path, planned: int, committed: int) -> Path:
    """Makes the checkpoint of a stream over one queue, ten records a batch."""
    (path / "metadata").parent.mkdir(parents=True)
    (path / "metadata").write_text('{"id":"x"}')
    for name in ("offsets", "commits"):
        (path / name).mkdir()
    for number in range(planned):
        write_offsets(path, number, {"/q": place(10 * (number + 1))})
        (path / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(committed):
        (path / "commits" / str(number)).write_text(COMMIT)
    return path


def write_offsets(path: Path, number: int, queues: dict[str, Any]) -> None:
    text = f"v1\n{{}}\n{json.dumps({'v': 1, 'queues': queues})}"
    (path / "offsets" / str(number)).write_text(text)


def entries(path: Path, name: str) -> list[str]:
    return sorted(file.name for file in (path / name).iterdir() if file.name.isdecimal())


def test_the_range_of_a_batch_lies_between_its_entry_and_the_one_before(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "c", planned=2, committed=1)

    assert batch_offsets(str(path), 0, {}) == {"/q": Offsets("ab", 3, 0, 10)}
    assert batch_offsets(str(path), 0, {"/q": 4}) == {"/q": Offsets("ab", 3, 4, 10)}
    assert batch_offsets(str(path), 1, {"/q": 4}) == {"/q": Offsets("ab", 3, 10, 20)}


def test_a_queue_that_came_later_begins_at_0_and_one_without_news_is_left_out(
    tmp_path: Path,
) -> None:
    path = make_checkpoint(tmp_path / "c", planned=1, committed=1)
    later = {"/q": place(10), "/new": place(7, **{"from": 5}), "/again": place(9)}
    write_offsets(path, 1, later)

    assert batch_offsets(str(path), 1, {}) == {
        "/new": Offsets("ab", 3, 0, 7),
        "/again": Offsets("ab", 3, 0, 9),
    }


def test_offsets_that_were_given_out_again_begin_where_the_source_says(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "c", planned=1, committed=1)
    write_offsets(path, 1, {"/q": place(12, **{"from": 6})})

    assert batch_offsets(str(path), 1, {})["/q"] == Offsets("ab", 3, 6, 12)


def test_another_queue_at_the_same_path_begins_at_0(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "c", planned=1, committed=1)
    write_offsets(path, 1, {"/q": {**place(12, **{"from": 6}), "id": "cd"}})

    assert batch_offsets(str(path), 1, {"/q": 4})["/q"] == Offsets("cd", 3, 0, 12)


def test_a_whole_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "c", planned=3, committed=2)

    repair(str(path), lambda batch: batch < 2)

    assert entries(path, "offsets") == ["0", "1", "2"]
    assert entries(path, "commits") == ["0", "1"]


@pytest.mark.parametrize("damage", ["", "v1", "v1\n{}", 'v1\n{}\n{"v":', "\0\0\0"])
def test_an_unfinished_plan_of_an_unpublished_batch_is_planned_again(
    tmp_path: Path, damage: str
) -> None:
    path = make_checkpoint(tmp_path / "c", planned=3, committed=2)
    (path / "offsets" / "2").write_text(damage)

    repair(str(path), lambda batch: batch < 2)

    assert entries(path, "offsets") == ["0", "1"]
    assert not (path / "offsets" / ".2.crc").exists()


@pytest.mark.parametrize("damage", [None, "", "v1\n"])
@pytest.mark.parametrize("committed", [0, 2])
def test_a_published_batch_whose_commit_was_lost_is_committed(
    tmp_path: Path, damage: str | None, committed: int
) -> None:
    path = make_checkpoint(tmp_path / "c", planned=committed + 1, committed=committed)
    lost = path / "commits" / str(committed)
    if damage is not None:
        lost.write_text(damage)

    repair(str(path), lambda batch: True)

    assert lost.read_text() == COMMIT


def test_a_commit_that_is_written_again_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path / "c", planned=2, committed=1)
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}"))
    )

    repair(str(path), lambda batch: True)

    assert synced == [f"{path}/commits/1", f"{path}/commits"]


def test_a_checkpoint_of_a_stream_that_published_nothing_is_thrown_away_if_it_is_unusable(
    tmp_path: Path,
) -> None:
    path = make_checkpoint(tmp_path / "c", planned=1, committed=0)
    (path / "metadata").write_text("")

    repair(str(path), lambda batch: False)
    repair(str(path), lambda batch: False)

    assert not path.exists()


def test_a_missing_checkpoint_beside_published_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="missing or damaged"):
        repair(str(tmp_path / "c"), lambda batch: True)


def test_syncing_reaches_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path / "c", planned=1, committed=1)
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
    )

    make_durable(str(path))

    assert {"metadata", "0", ".0.crc", "offsets", "commits", "c", tmp_path.name} <= set(synced)
