"""Deadline queues as tables, without Spark: live items, entries, ranges, snapshots, damage."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import Damaged, DataLoss, InvalidOption
from forebay.formats.deadline.manifest import NAME
from forebay.queues.deadline.item import DeadlineItem
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.deadline.slices import SnapshotReader
from forebay.queues.deadline.snapshot import Snapshot
from forebay.storage import staging
from tests.queues.deadline_helpers import files_of, must, open_queue
from tests.spark.readers import batch_reader, offsets_of, read, rows_of, stream_reader
from tests.support.clocks import FakeClock
from tests.support.values import flip, numbered

COMMON = ["queue", "kind", "offset", "timestamp", "value", "segment", "position"]
ADDED = ["deadline", "id", "type", "enqueue_time", "requeue_time", "dequeue_count", "reason"]
# So small that every block of a run is a range, and every range a task.
SMALL = {"maxPartitionBytes": "1k"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(tmp_path: Path, clock: FakeClock) -> Path:
    """A thousand items, of which every tenth was released and every tenth requeued or buried.

    They are in two sets of runs and a log.
    """
    with open_queue(tmp_path / "q", clock=clock, sync="os") as opened:
        for number in range(10):
            opened.enqueue_many(numbered(100, first=100 * number))
            if number in (3, 7):
                opened.freeze()
            clock.ms += 1000
        for at, item in enumerate(opened.dequeue_many(300)):
            if at % 10 == 0:
                opened.release(item)
            elif at % 10 == 1:
                opened.requeue(item, delay=60)
            elif at % 10 == 2:
                opened.bury(item, "bad")
    return tmp_path / "q"


def facts(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        *(row["id"], row["value"], _ms(row["deadline"]), _ms(row["enqueue_time"])),
        *(_ms(row["requeue_time"]), row["dequeue_count"], row["type"] == "buried"),
        row["reason"] or "",
    )


def snapshot_of(path: Path) -> Snapshot:
    with SnapshotReader(path) as reader:
        return reader.snapshot


def _ms(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)


def items_of(path: Path) -> list[tuple[object, ...]]:
    with forebay.DeadlineReader(path) as reader:
        return [
            (
                *(item.id, item.value, item.deadline_ms, item.enqueue_ms, item.requeue_ms),
                *(item.dequeue_count, item.buried, item.reason),
            )
            for item in reader
        ]


def do_something_to(queue: DeadlineQueue, item: DeadlineItem, chance: random.Random) -> None:
    choice = chance.random()
    if choice < 0.4:
        queue.release(item)
    elif choice < 0.6:
        queue.requeue(item)
    elif choice < 0.8:
        queue.bury(item)


def test_live_items_are_rows_with_the_columns_of_every_kind_and_their_own(queue: Path) -> None:
    rows = read(queue)

    assert list(rows[0]) == [*COMMON, *ADDED]
    assert [facts(row) for row in rows] == items_of(queue)
    assert len(rows) == 970
    assert {row["kind"] for row in rows} == {"deadline"}
    assert all(row["offset"] == row["id"] for row in rows)
    assert all(row["timestamp"] == row["enqueue_time"] for row in rows)
    assert {row["segment"].partition(".")[2] for row in rows} == {"p.run", "wal"}
    assert {row["type"] for row in rows} == {"pending", "buried"}


@pytest.mark.slow
def test_a_large_queue_is_many_tasks_that_each_merge_their_own_keys(queue: Path) -> None:
    reader = batch_reader(queue, **SMALL)
    tasks = reader.partitions()

    parts = [rows_of(reader, [task]) for task in tasks]

    assert len(tasks) > 50
    assert [facts(row) for part in parts for row in part] == items_of(queue)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_was_done_to_a_queue_its_rows_are_what_the_reader_gives(
    tmp_path: Path, clock: FakeClock, seed: int
) -> None:
    chance = random.Random(seed)
    with open_queue(tmp_path / "q", clock=clock, sync="os", max_attempts=4) as opened:
        for _ in range(60):
            clock.ms += chance.randrange(1000)
            values = numbered(chance.randrange(1, 20), size=chance.randrange(10, 300))
            opened.enqueue_many(values, delay=chance.randrange(20))
            for item in opened.dequeue_many(chance.randrange(1, 20), lease_seconds=2):
                do_something_to(opened, item, chance)
            if chance.random() < 0.5:
                chance.choice([opened.freeze, opened.merge])()
            if chance.random() < 0.1:
                opened.kick(count=2)

        assert [facts(row) for row in read(tmp_path / "q", **SMALL)] == items_of(tmp_path / "q")
        assert [facts(row) for row in read(tmp_path / "q")] == items_of(tmp_path / "q")


@pytest.mark.slow
def test_raw_is_every_entry_and_tombstone_of_runs_and_logs(queue: Path) -> None:
    rows = read(queue, view="raw", **SMALL)

    assert sorted(map(repr, rows)) == sorted(map(repr, read(queue, view="RAW")))
    counted = Counter(row["type"] for row in rows)
    assert counted == {"pending": 1030, "buried": 30, "tombstone": 90, "dequeued": 300}
    graves = [row for row in rows if row["type"] == "tombstone"]
    assert all(row["value"] is None and row["enqueue_time"] is None for row in graves)
    assert {row["type"] for row in rows if row["segment"].endswith(".p.run")} == {"pending"}


@pytest.mark.slow
def test_items_are_chosen_by_their_deadline_buried_ones_too(queue: Path) -> None:
    due = [row["deadline"] for row in read(queue)]
    middle = sorted(due)[300]
    chosen = {"startingDeadline": str(_ms(middle)), "endingDeadline": str(_ms(middle) + 30_000)}

    found = read(queue, **chosen, **SMALL)

    end = datetime.fromtimestamp(_ms(middle) / 1000 + 30, UTC)
    assert sorted(row["deadline"] for row in found) == sorted(
        time for time in due if middle <= time < end
    )
    with pytest.raises(InvalidOption, match="startingDeadline = 5: must be below"):
        read(queue, startingDeadline="5", endingDeadline="5")


def test_a_plan_reads_what_it_saw_whatever_is_written_later(
    tmp_path: Path, clock: FakeClock
) -> None:
    with open_queue(tmp_path / "q", clock=clock) as opened:
        opened.enqueue_many(numbered(50))
        reader = batch_reader(tmp_path / "q")
        tasks = reader.partitions()
        opened.release(must(opened.dequeue()))
        opened.enqueue_many(numbered(5))

        assert len(rows_of(reader, tasks)) == 50
        assert len(read(tmp_path / "q")) == 54


def test_files_that_are_gone_since_the_plan_are_an_error_that_says_so(
    queue: Path, clock: FakeClock
) -> None:
    strict, lax = batch_reader(queue), batch_reader(queue, failOnDataLoss="false")
    plans = strict.partitions(), lax.partitions()
    with open_queue(queue, clock=clock) as opened:
        opened.merge()

    with pytest.raises(DataLoss, match="froze or merged it after the query was planned; run the"):
        rows_of(strict, plans[0])
    assert [facts(row) for row in rows_of(lax, plans[1])] == items_of(queue)


def test_another_queue_at_the_path_is_not_taken_for_the_one_that_was_planned(
    tmp_path: Path,
) -> None:
    for name in ("q", "other"):
        with open_queue(tmp_path / name) as opened:
            opened.enqueue_many(numbered(3))
    reader = batch_reader(tmp_path / "q")
    tasks = reader.partitions()
    (tmp_path / "q").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "q")

    with pytest.raises(DataLoss, match="another queue than the one that was planned"):
        rows_of(reader, tasks)


def test_a_queue_with_the_manifest_of_another_is_read_as_it_was_planned(tmp_path: Path) -> None:
    for name in ("q", "other"):
        with open_queue(tmp_path / name) as opened:
            opened.enqueue_many(numbered(3))
    (tmp_path / "q" / NAME).write_bytes((tmp_path / "other" / NAME).read_bytes())

    rows = read(tmp_path / "q", mode="PERMISSIVE")

    assert [row["value"] for row in rows] == numbered(3)
    assert [facts(row) for row in rows] == items_of(tmp_path / "q")


@pytest.mark.parametrize("harmed", ["log", "staging"])
def test_staged_items_are_read_without_their_log_or_the_head_of_their_buffer(
    tmp_path: Path, harmed: str
) -> None:
    with open_queue(tmp_path / "q", sync="os") as opened:
        opened.enqueue_many(numbered(3))
        # As a process that is killed leaves it.
        shutil.copytree(tmp_path / "q", tmp_path / "killed")
    if harmed == "log":
        files_of(tmp_path / "killed", ".wal")[0].unlink()
    else:
        flip(tmp_path / "killed" / staging.NAME, 0)

    rows = read(tmp_path / "killed", mode="PERMISSIVE")

    assert [row["value"] for row in rows] == numbered(3)
    assert [facts(row) for row in rows] == items_of(tmp_path / "killed")


def test_a_snapshot_has_a_text_and_an_id_that_stays_while_nothing_is_written(queue: Path) -> None:
    first, again = snapshot_of(queue), snapshot_of(queue)

    assert Snapshot.decode(first.encode()) == first == again
    assert first.id == again.id
    with open_queue(queue) as opened:
        opened.enqueue(b"more")
        assert snapshot_of(queue).id != first.id


@pytest.mark.slow
def test_a_bad_block_costs_its_entries_only_and_is_told_once(queue: Path) -> None:
    whole = read(queue)
    file = files_of(queue, ".p.run")[0]
    flip(file, 100)
    (damage,) = read(queue, table="damage")

    with pytest.raises(Damaged, match="the check of block 0 does not match; mode PERM"):
        read(queue)
    rest = read(queue, mode="DROPMALFORMED", **SMALL)
    told = read(queue, mode="PERMISSIVE", columns="id,damage", **SMALL)

    assert (damage["segment"], damage["position"], damage["offset"]) == (file.name, 48, None)
    lost = set(offsets_of(whole)) - set(offsets_of(rest))
    assert 0 < len(lost) <= damage["count"] < 400
    assert [row for row in whole if row["offset"] not in lost] == rest
    (place,) = [row["damage"] for row in told if row["damage"]]
    assert (place["position"], place["count"]) == (48, damage["count"])


def test_items_whose_tombstones_are_damaged_come_again(queue: Path, clock: FakeClock) -> None:
    before = len(read(queue))
    with open_queue(queue, clock=clock) as opened:
        opened.freeze()
    graves = files_of(queue, ".t.run")[-1]
    flip(graves, 60)

    (damage,) = read(queue, table="damage")

    assert damage["segment"] == graves.name
    # What lies below the mark of a run is known to be dead.
    again = len(read(queue, mode="DROPMALFORMED")) - before
    assert 0 < again <= damage["count"]


def test_a_lost_index_is_found_again_by_the_blocks_and_told(queue: Path) -> None:
    whole = read(queue)
    file = files_of(queue, ".p.run")[0]
    flip(file, file.stat().st_size - 5)

    assert read(queue, mode="DROPMALFORMED") == whole
    assert [row["segment"] for row in read(queue, table="damage")] == [file.name]


def test_a_run_that_is_missing_is_damage(queue: Path) -> None:
    file = files_of(queue, ".p.run")[0]
    file.unlink()

    (damage,) = read(queue, table="damage")

    assert (damage["segment"], damage["reason"]) == (file.name, "the file is missing")
    with pytest.raises(Damaged, match="the file is missing"):
        read(queue)
    assert len(read(queue, mode="DROPMALFORMED")) < 970


def test_an_unfinished_end_of_a_log_is_no_damage_and_a_bad_batch_before_it_is(
    tmp_path: Path,
) -> None:
    with open_queue(tmp_path / "q") as opened:
        for value in numbered(4):
            opened.enqueue(value)
        (log,) = files_of(tmp_path / "q", ".wal")
        mark = tmp_path / "q" / "deadline-mark"
        size, before = log.stat().st_size, mark.read_bytes()
        opened.enqueue(b"last")
        copy, after = log.read_bytes(), mark.read_bytes()
        log.write_bytes(copy[: size + 10])
        mark.write_bytes(before)

        assert len(read(tmp_path / "q")) == 4
        assert read(tmp_path / "q", table="damage") == []
        log.write_bytes(copy)
        mark.write_bytes(after)
        flip(log, 110)
        assert len(read(tmp_path / "q", mode="DROPMALFORMED")) == 4
        (damage,) = read(tmp_path / "q", table="damage")
        assert (damage["segment"], damage["torn"]) == (log.name, False)


def test_segments_are_runs_and_logs_and_there_are_no_consumers(queue: Path) -> None:
    segments = read(queue, table="segments")

    assert [row["segment"].partition(".")[2] for row in segments] == ["p.run", "p.run", "wal"]
    assert [row["count"] for row in segments] == [400, 400, None]
    assert [row["sealed"] for row in segments] == [True, True, False]
    assert read(queue, table="consumers") == []


def test_an_empty_queue_is_an_empty_table(tmp_path: Path) -> None:
    DeadlineQueue(tmp_path / "q").close()

    assert read(tmp_path / "q") == read(tmp_path / "q", view="raw") == []


def test_deadline_queues_and_logs_are_one_table(queue: Path, tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(3))

    rows = read(f"{tmp_path}/*")

    assert list(rows[0]) == COMMON
    assert Counter(row["kind"] for row in rows) == {"deadline": 970, "log": 3}
    with pytest.raises(InvalidOption, match=r"view = 'raw': .*log has no other"):
        read(tmp_path / "log", view="raw")


@pytest.mark.parametrize(
    "name", ["startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"]
)
def test_bounds_that_items_have_no_order_by_are_refused(queue: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}: .* is a deadline queue"):
        read(queue, **{name: "5"})


def test_a_stream_is_refused_with_what_to_do_instead(queue: Path, tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(3))
    stream = stream_reader(f"{tmp_path}/l*")
    (tmp_path / "late").symlink_to(queue)

    for path in (queue, f"{tmp_path}/*"):
        with pytest.raises(InvalidOption, match=r"no stream reads it\. Read it with spark.read,"):
            stream_reader(path).initialOffset()
    with pytest.raises(InvalidOption, match="no stream reads it"):
        stream.initialOffset()


def test_a_queue_that_has_lost_its_manifest_is_read_by_its_files(queue: Path) -> None:
    whole = offsets_of(read(queue))
    (queue / "deadline-manifest").unlink()

    assert offsets_of(read(queue)) == whole
