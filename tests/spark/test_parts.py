"""Parts and manifests as a Spark job leaves them; no Spark is needed for that."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay
from forebay.errors import Damaged, InvalidOption, RecordTooLarge
from forebay.queues.log.queue import Log
from forebay.spark.sink import parts as module
from forebay.spark.sink.parts import PartWriter, discard_parts, publish_batch, waiting_manifests
from forebay.storage import inbox
from forebay.storage.filesystem import Directory, DiskFilesystem, Filesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory
from tests.support.clocks import FakeClock
from tests.support.closing import closed_at_end
from tests.support.values import flip, numbered

NOW_MS = 1_800_000_000_000
HOUR_MS = 60 * 60 * 1000
TYPES = [pyarrow.binary(), pyarrow.string(), pyarrow.large_binary(), pyarrow.large_string()]


def part_writer(
    queue: Directory,
    *,
    segment_bytes: int = 1_000,
    clock: FakeClock | None = None,
    filesystem: Filesystem | None = None,
) -> PartWriter:
    return PartWriter(
        filesystem or DiskFilesystem(),
        closed_at_end(queue.directory(inbox.DIRECTORY, create=True)),
        clock or FakeClock(NOW_MS),
        segment_bytes=segment_bytes,
        partition=7,
    )


def write(queue: Directory, *columns: Any, **settings: Any) -> list[inbox.Part]:
    writer = part_writer(queue, **settings)
    for column in columns:
        writer.append(pyarrow.array(column) if isinstance(column, list) else column)
    return writer.finish()


def publish(queue: Directory, values: list[bytes], writer: str = "w", batch: int = 0) -> bool:
    return publish_batch(queue, writer, batch, write(queue, values), NOW_MS)


def adopted_values(path: Path) -> list[bytes]:
    Log(path, background=False).close()
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_kind_of_text_column_is_written_as_bytes(tmp_path: Path, kind: Any) -> None:
    queue = open_directory(tmp_path)
    values = ["", "text", "é😀", "x" * 300]
    whole = pyarrow.array(values, kind)

    parts = write(queue, whole, whole[1:3], whole[3:], whole[:0])
    publish_batch(queue, "w", 0, parts, NOW_MS)

    expected = [text.encode() for text in values + values[1:3] + values[3:]]
    assert adopted_values(tmp_path / "d") == expected


@pytest.mark.slow
@given(
    batches=st.lists(st.lists(st.binary(max_size=400), max_size=30), max_size=5),
    segment_bytes=st.integers(1_000, 3_000),
)
def test_parts_hold_the_rows_in_order_and_never_more_than_a_segment(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], segment_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("parts")
    queue = open_directory(path)
    columns = [pyarrow.array(batch, pyarrow.binary()) for batch in batches]

    parts = write(queue, *columns, segment_bytes=segment_bytes)

    sizes = [(path / "d" / "inbox" / part.name).stat().st_size for part in parts]
    assert [part.size for part in parts] == sizes
    assert all(part.count > 0 and part.size <= segment_bytes for part in parts)
    publish_batch(queue, "w", 0, parts, NOW_MS)
    assert adopted_values(path / "d") == [value for batch in batches for value in batch]


def test_a_record_larger_than_the_buffer_is_written(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    values = [b"small", bytes(9_000_000), b"small too", bytes(5_000_000)]

    parts = write(queue, values, segment_bytes=10_000_000)
    publish_batch(queue, "w", 0, parts, NOW_MS)

    assert [part.count for part in parts] == [3, 1]
    assert adopted_values(tmp_path / "d") == values


def test_a_record_larger_than_a_segment_is_refused_with_its_place(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    writer = part_writer(queue)
    writer.append(pyarrow.array([b"a", b"b", bytes(954)]))

    with pytest.raises(RecordTooLarge, match=r"'value' holds 955 bytes in row 4 of partition 7"):
        writer.append(pyarrow.array([b"d", bytes(955)]))

    writer.discard()
    assert os.listdir(tmp_path / "d" / "inbox") == []


def test_a_null_is_refused_with_its_place_in_the_partition(tmp_path: Path) -> None:
    writer = part_writer(open_directory(tmp_path))
    writer.append(pyarrow.array([b"a", b"b"]))

    with pytest.raises(InvalidOption, match=r"column 'value' is null in row 3 of partition 7"):
        writer.append(pyarrow.array([b"c", None, b"d", None]))

    writer.discard()


def test_no_rows_leave_no_part(tmp_path: Path) -> None:
    parts = write(open_directory(tmp_path), pyarrow.array([], pyarrow.binary()))

    assert parts == []
    assert os.listdir(tmp_path / "d" / "inbox") == []


def test_times_never_fall_when_the_clock_goes_back(tmp_path: Path) -> None:
    queue, clock = open_directory(tmp_path), FakeClock(NOW_MS)
    writer = part_writer(queue, clock=clock)
    for step in (0, 500, -5_000, 100):
        clock.ms = NOW_MS + step
        writer.append(pyarrow.array([b"a"]))
    publish_batch(queue, "w", 0, writer.finish(), NOW_MS)
    Log(tmp_path / "d", background=False, clock=clock).close()

    with forebay.read(tmp_path / "d", kind="log") as reader:
        times = [(record.time_ms or 0) - NOW_MS for record in reader]

    assert times == [0, 500, 500, 500]


def test_a_clock_that_leaps_by_two_months_begins_a_new_part(tmp_path: Path) -> None:
    queue, clock = open_directory(tmp_path), FakeClock(NOW_MS)
    writer = part_writer(queue, clock=clock)
    writer.append(pyarrow.array([b"a"]))
    clock.ms += 60 * 24 * HOUR_MS
    writer.append(pyarrow.array([b"b"]))

    assert [part.count for part in writer.finish()] == [1, 1]


def test_parts_are_published_in_the_order_that_is_given(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    later = write(queue, [b"c", b"d"])
    first = write(queue, [b"a", b"b"])

    assert publish_batch(queue, "w", 0, [*first, *later], NOW_MS)

    assert adopted_values(tmp_path / "d") == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("adopted", [False, True], ids=["waiting", "adopted"])
@pytest.mark.parametrize("batch", [3, 2])
def test_a_batch_that_is_there_is_not_published_again_and_its_new_parts_go(
    tmp_path: Path, adopted: bool, batch: int
) -> None:
    queue = open_directory(tmp_path)
    assert publish(queue, [b"a"], batch=3)
    if adopted:
        adopted_values(tmp_path / "d")
    before = sorted(os.listdir(tmp_path / "d" / "inbox"))

    assert not publish(queue, [b"again"], batch=batch)

    assert sorted(os.listdir(tmp_path / "d" / "inbox")) == before
    assert adopted_values(tmp_path / "d") == [b"a"]


def test_later_batches_and_other_writers_are_published(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)

    published = [publish(queue, [b"%d" % n], *who) for n, who in enumerate([("a",), ("b",)])]
    published += [publish(queue, [b"2"], "a", batch=1)]

    assert published == [True, True, True]
    assert len(waiting_manifests(queue)) == 3
    assert adopted_values(tmp_path / "d") == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("hours", "gone", "reason"), [(23.5, False, "almost a day old"), (0, True, "the part is gone")]
)
def test_parts_that_are_gone_or_about_to_go_are_not_published(
    tmp_path: Path, hours: float, gone: bool, reason: str
) -> None:
    queue = open_directory(tmp_path)
    parts = [*write(queue, [b"a"]), *write(queue, [b"b"])]
    if gone:
        (tmp_path / "d" / "inbox" / parts[1].name).unlink()

    with pytest.raises(Damaged, match=f"{reason}; nothing was published"):
        publish_batch(queue, "w", 0, parts, NOW_MS + int(hours * HOUR_MS))

    assert waiting_manifests(queue) == set()


def test_taking_back_removes_parts_and_nothing_that_is_published(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    mine, published = write(queue, [b"a"]), write(queue, [b"b"])
    publish_batch(queue, "w", 0, published, NOW_MS)

    discard_parts(queue, [*mine, *published])

    assert adopted_values(tmp_path / "d") == [b"b"]
    assert os.listdir(tmp_path / "d" / "inbox") == []


def test_taking_back_leaves_parts_that_are_being_adopted(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    parts = write(queue, [b"a"])
    move = inbox.Move(parts[0].name, "0000000000", "00")
    inbox.write_ledger(queue, inbox.Ledger({"w": 0}, [move]))

    discard_parts(queue, parts)

    assert os.listdir(tmp_path / "d" / "inbox") == [parts[0].name]


def test_taking_back_removes_nothing_while_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    parts = write(queue, [b"a"])
    publish_batch(queue, "w", 0, parts, NOW_MS)
    flip(next((tmp_path / "d" / "inbox").glob("*.ready")), 3)

    discard_parts(queue, parts)

    assert parts[0].name in os.listdir(tmp_path / "d" / "inbox")


def test_taking_back_from_a_queue_without_an_inbox_does_nothing(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)

    discard_parts(queue, [inbox.Part("a.part", 1, 1)])

    assert queue.names() == []
    assert waiting_manifests(queue) == set()


def test_a_published_batch_survives_every_power_cut_whole_and_once() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/q", create=True)
    values = numbered(15)
    for _ in range(2):
        parts = write(queue, values[:3], values[3:], filesystem=filesystem)
        publish_batch(queue, "w", 0, parts, NOW_MS)
        filesystem.acknowledge("published")

    found: dict[int, set[int]] = {}
    for state in filesystem.crash_states(6, torn=True):
        log = Log("/q", filesystem=state.restore(), background=False)
        records = [record.value for record in log.consumer("c")] if log.end else []
        log.close()
        assert records in ([], values)
        found.setdefault(state.acknowledged, set()).add(len(records))

    assert found == {0: {0, 15}, 1: {15}, 2: {15}}


def fails(queue: Directory, values: list[bytes], filesystem: ForgetfulFilesystem) -> bool:
    """Writes and publishes a batch; says whether the disk's error came through."""
    try:
        parts = write(queue, values, filesystem=filesystem)
        publish_batch(queue, "w", 0, parts, NOW_MS)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_of_any_call_is_raised_or_the_batch_is_there(error: int) -> None:
    ends = []
    for call in range(1, 31):
        filesystem = ForgetfulFilesystem()
        queue = filesystem.open_directory("/q", create=True)
        filesystem.fail_at(call, error)
        raised = fails(queue, numbered(15), filesystem)
        filesystem.heal()
        log = Log("/q", filesystem=filesystem.kill(), background=False)
        ends.append((log.end, raised))
        log.close()

    # Where the call that failed came after the publishing, the batch is there all the same.
    assert set(ends) == {(0, True), (15, True), (15, False)}
    assert ends[-1] == (15, False)


@pytest.mark.parametrize("call", range(1, 31))
def test_a_replay_after_an_error_of_any_call_leaves_the_batch_durable_and_once(call: int) -> None:
    values = numbered(15)
    filesystem = ForgetfulFilesystem(seed=call)
    queue = filesystem.open_directory("/q", create=True)
    filesystem.fail_at(call, errno.EIO)
    fails(queue, values, filesystem)
    filesystem.heal()
    fails(queue, values, filesystem)
    end = filesystem.operations

    for state in filesystem.crash_states(4, points=lambda point: point == end):
        log = Log("/q", filesystem=state.restore(), background=False)
        records = [record.value for record in log.consumer("c")]
        log.close()
        assert records == values, state.description


def test_a_large_part_is_synced_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYNC_BYTES", 1_000)
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/q", create=True)
    queue.directory(inbox.DIRECTORY, create=True).sync()
    writer = part_writer(queue, segment_bytes=100_000, filesystem=filesystem)

    writer.append(pyarrow.array(numbered(100)))
    # The syncs run on another thread, one after the other.
    writer._syncer.submit(lambda: None).result(timeout=60)
    writer._work.sync()
    end = filesystem.operations
    states = filesystem.crash_states(points=lambda point: point == end)
    sizes = {len(data) for state in states for data in state.files().values()}
    writer.discard()

    assert min(sizes) > 1_000
