"""Batches that other processes leave in `inbox/`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Log
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFile, DiskFilesystem
from tests.queues.helpers import (
    SEGMENT_BYTES,
    SYNCS,
    FakeClock,
    flip,
    frame_position,
    numbered,
    publish,
    run_threads,
    values_of,
    wait_until,
    write_part,
)

START_MS = 1_800_000_000_000
each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_log(path: Path, **options: Any) -> Log:
    return Log(path / "q", **{"segment_bytes": SEGMENT_BYTES, "background": False, **options})


def make_log(path: Path, count: int = 3) -> Path:
    with open_log(path) as log:
        log.append_many(numbered(count))
    return path / "q"


def values_in(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


@each_sync
def test_a_batch_left_for_a_stopped_log_is_adopted_at_the_open(tmp_path: Path, sync: str) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(2, first=3))])

    with open_log(tmp_path, sync=sync) as log:
        assert (log.end, log.durable) == (5, 5)
        assert log.info().adopted == {"w": 1}
        assert log.append(numbered(1, first=5)[0]) == 5
        assert values_of(log.consumer("c").read()) == numbered(6)
    assert os.listdir(path / "inbox") == []


@pytest.mark.slow
@each_sync
def test_a_running_owner_adopts_a_batch_by_itself(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync, background=True) as log:
        log.append(numbered(1)[0])
        path = tmp_path / "q"
        publish(path, "a", 1, [write_part(path, "a.part", numbered(2, first=1))])

        assert wait_until(lambda: log.end == 3)
        assert values_of(log.consumer("c").read()) == numbered(3)


def test_maintain_adopts_once_a_second(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, clock=clock) as log:
        path = tmp_path / "q"
        publish(path, "a", 1, [write_part(path, "a.part", [b"a"])])
        ends = []
        for seconds in (0.0, 0.9, 1.0):
            clock.seconds = seconds
            log.maintain()
            ends.append(log.end)

        assert ends == [0, 0, 1]


def test_a_waiting_consumer_gets_what_was_adopted(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c")
        path = tmp_path / "q"
        publish(path, "a", 1, [write_part(path, "a.part", [b"a", b"b"])])

        assert consumer.read() == []
        assert log.adopt() == 2
        assert values_of(consumer.read(timeout=5)) == [b"a", b"b"]


def test_the_parts_of_a_batch_lie_behind_one_another_in_their_order(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    values = numbered(9, first=3)
    # Written and named in another order than the manifest's.
    second = write_part(path, "a1.part", values[4:])
    first = write_part(path, "z9.part", values[:4])
    publish(path, "a", 1, [first, second])

    with open_log(tmp_path) as log:
        assert log.end == 12
        assert log.info().segments == 3

    assert values_in(path) == numbered(12)


def test_batches_of_a_writer_are_adopted_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    for batch in (3, 1, 2):
        stem = f"x{9 - batch}"
        publish(path, stem, batch, [write_part(path, f"{stem}.part", [b"batch %d" % batch])])

    with open_log(tmp_path) as log:
        assert log.info().adopted == {"w": 3}

    assert values_in(path) == [b"batch 1", b"batch 2", b"batch 3"]


def test_a_batch_handed_in_again_is_dropped(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    for stem in ("first", "again", "once-more"):
        publish(path, stem, 7, [write_part(path, f"{stem}.part", [b"a", b"b"])])
        with open_log(tmp_path) as log:
            assert log.info().adopted == {"w": 7}

    assert values_in(path) == [b"a", b"b"]
    assert not [name for name in os.listdir(path / "inbox") if name.endswith(".ready")]


def test_a_batch_handed_in_again_leaves_nothing_behind(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    for stem in ("first", "again"):
        publish(path, stem, 7, [write_part(path, f"{stem}.part", [b"a"])])
        open_log(tmp_path).close()

    assert os.listdir(path / "inbox") == []


def test_batches_of_two_writers_are_both_adopted(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    publish(path, "a", 1, [write_part(path, "a.part", [b"a"])], writer="one")
    publish(path, "b", 1, [write_part(path, "b.part", [b"b"])], writer="two")

    with open_log(tmp_path) as log:
        assert log.info().adopted == {"one": 1, "two": 1}
    assert values_in(path) == [b"a", b"b"]


@pytest.mark.parametrize("position", [0, 20, frame_position(1) + 3, frame_position(1) + 60])
def test_a_damaged_part_is_refused_whole_and_kept_aside(tmp_path: Path, position: int) -> None:
    path = make_log(tmp_path)
    parts = [write_part(path, f"a{n}.part", numbered(3, first=100 + 3 * n)) for n in range(2)]
    publish(path, "a", 1, parts)
    flip(path / "inbox" / "a1.part", position)
    publish(path, "b", 2, [write_part(path, "b.part", numbered(1, first=3))])

    with open_log(tmp_path) as log:
        info = log.info()
        assert info.quarantined_files == 3
        assert info.quarantined_bytes > sum(part.size for part in parts)
        assert info.adopted == {"w": 2}
        assert log.append(numbered(1, first=4)[0]) == 4

    assert values_in(path) == numbered(5)
    assert sorted(os.listdir(path / "quarantine")) == ["a.ready", "a0.part", "a1.part"]
    assert os.listdir(path / "inbox") == []


@pytest.mark.parametrize("change", [-1, 1])
def test_a_part_with_another_count_than_its_manifest_tells_is_refused(
    tmp_path: Path, change: int
) -> None:
    path = make_log(tmp_path)
    part = write_part(path, "a.part", numbered(3))
    publish(path, "a", 1, [type(part)(part.name, part.count + change, part.size)])

    with open_log(tmp_path) as log:
        assert (log.end, log.info().quarantined_files) == (3, 2)


def test_a_part_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(3))])
    with (path / "inbox" / "a.part").open("r+b") as file:
        file.truncate(100)

    with open_log(tmp_path) as log:
        assert (log.end, log.info().quarantined_files) == (3, 2)


def test_a_manifest_whose_part_is_missing_does_not_stop_the_log(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(3))])
    (path / "inbox" / "a.part").unlink()

    with open_log(tmp_path) as log:
        assert log.append(b"next") == 3


def test_a_damaged_manifest_does_not_stop_the_log(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(3))])
    flip(path / "inbox" / "a.ready", 5)

    with open_log(tmp_path) as log:
        assert log.append(b"next") == 3


def test_an_unfinished_batch_without_a_manifest_is_left_alone(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    write_part(path, "a.part", numbered(3))

    with open_log(tmp_path) as log:
        assert log.end == 3
    assert os.listdir(path / "inbox") == ["a.part"]


DAY_MS = 24 * 60 * 60 * 1000


@pytest.mark.parametrize(("age_ms", "left"), [(DAY_MS, 2), (DAY_MS + 1, 0), (-DAY_MS, 2)])
def test_what_nobody_published_is_removed_when_it_is_a_day_old(
    tmp_path: Path, age_ms: int, left: int
) -> None:
    path = make_log(tmp_path)
    stem = f"{START_MS - age_ms}-{'0' * 31}"
    write_part(path, f"{stem}a.part", numbered(3))
    (path / "inbox" / f"{stem}b.new").write_bytes(b"half a mani")

    open_log(tmp_path, clock=FakeClock(START_MS)).close()

    assert len(os.listdir(path / "inbox")) == left
    assert values_in(path) == numbered(3)


def test_an_old_part_that_a_manifest_names_is_adopted(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    name = f"{START_MS - 2 * DAY_MS}-{'0' * 32}.part"
    publish(path, "a", 1, [write_part(path, name, numbered(2, first=3))])

    open_log(tmp_path, clock=FakeClock(START_MS)).close()

    assert values_in(path) == numbered(5)


def test_parts_of_a_damaged_manifest_go_to_quarantine_with_it_however_old(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    name = f"{START_MS - 2 * DAY_MS}-{'0' * 32}.part"
    publish(path, "a", 1, [write_part(path, name, numbered(3))])
    flip(path / "inbox" / "a.ready", 5)

    with open_log(tmp_path, clock=FakeClock(START_MS)) as log:
        log.adopt()

    assert sorted(os.listdir(path / "quarantine")) == [name, "a.ready"]


def test_the_ledger_forgets_one_time_writers_and_keeps_the_others(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    for number, writer in enumerate(["once:a", "query:b", "once:c"]):
        part = write_part(path, f"{number}.part", numbered(1, first=number))
        publish(path, f"{number}", number, [part], writer=writer)

    with open_log(tmp_path) as log:
        assert log.info().adopted == {"query:b": 1}

    assert values_in(path) == numbered(3)


def test_a_one_time_writer_is_remembered_while_its_manifest_is_there(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(2, first=3))], writer="once:a")
    manifest = (path / "inbox" / "a.ready").read_bytes()
    open_log(tmp_path).close()
    # A crash between the ledger and the removal of the manifest leaves both.
    (path / "inbox" / "a.ready").write_bytes(manifest)
    queue = DiskFilesystem().open_directory(str(path))
    inbox.write_ledger(queue, inbox.Ledger({"once:a": 1}))
    queue.close()

    with open_log(tmp_path) as log:
        assert (log.end, log.info().quarantined_files) == (5, 0)
        assert log.info().adopted == {}

    assert os.listdir(path / "inbox") == []


@pytest.mark.parametrize("size", [10, 1 << 20, (1 << 20) - 12, 3_000_000])
def test_parts_larger_than_a_chunk_are_checked_whole(tmp_path: Path, size: int) -> None:
    path = make_log(tmp_path, count=0)
    values = [*numbered(3000, size=300), bytes(size), *numbered(2000, size=300), bytes(size)]
    part = write_part(path, "a.part", values)
    publish(path, "a", 1, [part])

    open_log(tmp_path, segment_bytes=10_000_000).close()

    assert values_in(path) == values


def test_a_large_part_is_never_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_log(tmp_path, count=0)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(20_000, size=300))])
    sizes: list[int] = []
    pread = DiskFile.pread

    def counting(file: DiskFile, size: int, position: int) -> bytes:
        sizes.append(size)
        return pread(file, size, position)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFile, "pread", counting)
        with open_log(tmp_path) as log:
            assert log.end == 20_000

    assert max(sizes) == 1 << 20


@pytest.mark.parametrize("position", [2_000_000, 3_899_000])
def test_a_bad_byte_behind_the_first_chunk_is_found(tmp_path: Path, position: int) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(1300, size=3000))])
    flip(path / "inbox" / "a.part", position)

    with open_log(tmp_path, segment_bytes=10_000_000) as log:
        assert (log.end, log.info().quarantined_files) == (3, 2)


def times_in(path: Path) -> list[int]:
    with forebay.read(path, kind="log") as reader:
        return [(record.time_ms or 0) - START_MS for record in reader]


def test_times_never_fall_when_an_older_batch_is_adopted(tmp_path: Path) -> None:
    clock = FakeClock(START_MS + 1000)
    with open_log(tmp_path, clock=clock) as log:
        log.append(b"a")
        path = tmp_path / "q"
        options: dict[str, Any] = {"epoch_ms": START_MS, "times": [5, 10]}
        parts = [write_part(path, f"{n}.part", [b"b", b"c"], **options) for n in range(2)]
        publish(path, "x", 1, parts)
        log.adopt()
        log.append(b"d")

    times = times_in(tmp_path / "q")
    assert len(times) == 6
    assert times == sorted(times)
    assert times[0] == 1000


def test_a_newer_batch_keeps_its_times_and_later_records_do_not_fall_below(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock=clock) as log:
        log.append(b"a")
        path = tmp_path / "q"
        part = write_part(path, "p.part", [b"b", b"c"], epoch_ms=START_MS + 500, times=[5, 10])
        publish(path, "x", 1, [part])
        log.adopt()
        log.append(b"d")

    assert times_in(tmp_path / "q") == [0, 505, 510, 510]


def test_a_part_whose_own_times_fall_does_not_make_the_logs_times_fall(tmp_path: Path) -> None:
    path = make_log(tmp_path, count=0)
    part = write_part(path, "p.part", [b"a", b"b"], epoch_ms=START_MS, times=[10, 5])
    publish(path, "x", 1, [part])

    open_log(tmp_path).close()

    times = times_in(path)
    assert times == sorted(times)


@each_sync
def test_adopting_between_appends_keeps_every_record_in_order(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "q"
    with open_log(tmp_path, sync=sync) as log:
        for turn in range(6):
            first = turn * 5
            log.append(numbered(1, first=first)[0])
            log.append_many(numbered(2, first=first + 1))
            part = write_part(path, f"{turn}.part", numbered(2, first=first + 3))
            publish(path, f"{turn}", turn, [part])
            assert log.adopt() == 2

    assert values_in(path) == numbered(30)


@each_sync
def test_an_owner_that_appends_meanwhile_loses_nothing(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "q"
    with open_log(tmp_path, sync=sync, segment_bytes=20_000) as log:

        def work(number: int) -> None:
            if number:
                for value in numbered(300, first=number * 1000):
                    log.append(value)
                return
            for batch in range(10):
                values = numbered(5, first=100_000 + 5 * batch)
                publish(path, f"{batch}", batch, [write_part(path, f"{batch}.part", values)])
                log.adopt()

        run_threads(3, work)
        assert log.end == 650

    values = values_in(path)
    adopted = [value for value in values if value >= b"00100000"]
    own = [[v for v in values if v[:5] == b"%05d" % n] for n in (1, 2)]
    assert adopted == numbered(50, first=100_000)
    assert [len(part) for part in own] == [300, 300]
    places = [values.index(value) for value in adopted]
    assert all(places[at] == places[at - 1] + 1 for at in range(50) if at % 5)


def test_threads_that_adopt_at_once_take_a_batch_once(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_log(tmp_path) as log:
        publish(path, "a", 1, [write_part(path, "a.part", numbered(3))])

        run_threads(4, lambda _: log.adopt())

        assert log.end == 3


def test_an_adopted_log_reopens_with_everything(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    publish(path, "a", 1, [write_part(path, "a.part", numbered(2, first=3))])
    for _ in range(3):
        with open_log(tmp_path) as log:
            assert (log.begin, log.end) == (0, 5)
            assert log.info().quarantined_files == 0

    assert values_in(path) == numbered(5)
