"""The archiver against a directory: what goes up, what it says, what it keeps on the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import BeatsQueue, InvalidOption, Locked, Log, NotAQueue
from forebay.queues.archive.archiver import Archiver
from forebay.queues.archive.manifest import NAME
from tests.archive.helpers import (
    HOST,
    SEGMENT_BYTES,
    append,
    archived_records,
    check_both,
    check_target,
    manifest_of,
    value_of,
)
from tests.support.clocks import FakeClock
from tests.support.values import flip
from tests.support.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Returns the path of a log, the address, and where its archive will be."""
    return tmp_path / "events", tmp_path / "archive", tmp_path / "archive" / HOST / "events"


Place = tuple[Path, Path, Path]


def open_log(path: Path, **options: Any) -> Log:
    return Log(path, segment_bytes=SEGMENT_BYTES, background=False, **options)


def test_finished_segments_go_up_beside_a_live_owner(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)

        report = forebay.archive(path, address, host=HOST)

        assert report.segments > 1
        assert 0 < report.end < 100
        assert report.waiting == 100 - report.end
        assert [offset for offset, _ in archived_records(target)] == list(range(report.end))
        assert log.begin == 0
    check_target(target)


def test_a_log_that_was_closed_is_archived_whole(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)

    report = forebay.archive(path, address, host=HOST)

    assert (report.end, report.waiting) == (100, 0)
    assert archived_records(target) == [(n, value_of(n)) for n in range(100)]
    assert forebay.check(target).damage == ()
    assert forebay.describe(target).state == "archived"


def test_a_repeat_changes_nothing(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    before = {file.name: (file.read_bytes(), file.stat().st_ino) for file in target.iterdir()}

    report = forebay.archive(path, address, host=HOST)

    assert report.segments == 0
    after = {file.name: (file.read_bytes(), file.stat().st_ino) for file in target.iterdir()}
    assert after == before


def test_without_its_manifest_the_same_bytes_go_up_again(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    (target / NAME).unlink()
    before = {file.name: file.read_bytes() for file in target.iterdir()}

    forebay.archive(path, address, host=HOST)

    after = {file.name: file.read_bytes() for file in target.iterdir() if file.name != NAME}
    assert after == before


def test_without_trim_the_archive_is_no_reader_that_lets_records_go(place: Place) -> None:
    path, address, _ = place
    with open_log(path) as log:
        append(log, 100)
        forebay.archive(path, address, host=HOST)

        assert log.trim() == 0


def test_what_is_not_archived_stays_when_all_consumers_have_read_it(place: Place) -> None:
    path, address, _ = place
    with open_log(path) as log:
        append(log, 50)
        with Archiver(path, address, host=HOST) as archiver:
            consumer = log.consumer("c")
            append(log, 50)
            consumer.read(100)
            consumer.commit()
            kept = log.trim()
            archiver.run()
            gone = log.trim()

    assert (kept, gone > 0) == (0, True)


def test_with_trim_an_owner_drops_what_was_read_back(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)

        report = forebay.archive(path, address, host=HOST, trim=True)

        assert (report.trimmed, report.verified) == (0, report.segments)
        assert log.trim() == report.end
        assert log.begin == report.end
        check_both(path, archived_records(target), 100)


def test_with_trim_and_no_owner_the_archiver_drops_it(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)

    report = forebay.archive(path, address, host=HOST, trim=True)

    assert report.trimmed > 0
    check_both(path, archived_records(target), 100)


def test_nothing_is_trimmed_past_a_copy_that_does_not_verify(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    manifest = manifest_of(target)
    assert manifest is not None
    flip(target / manifest.segments[1].object, 500)

    report = forebay.archive(path, address, host=HOST, trim=True)

    assert [damage.path for damage in report.damage] == [str(target / manifest.segments[1].object)]
    assert report.trimmed == manifest.segments[0].end


def test_a_damaged_segment_goes_up_as_it_is_and_stays_here(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    second = sorted(path.glob("00*"))[1]
    flip(second, 500)

    report = forebay.archive(path, address, host=HOST, trim=True)

    assert report.end == 100
    assert len(report.damage) == 1
    assert second.exists()
    assert (target / f"{second.name}-1").read_bytes() == second.read_bytes()


def test_a_segment_that_cannot_be_read_is_left_out_and_later_ones_go_up(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    second = sorted(path.glob("00*"))[1]
    os.link(second, path.parent / "another name")

    report = forebay.archive(path, address, host=HOST, trim=True)

    assert [damage.path for damage in report.damage] == [str(second)]
    manifest = manifest_of(target)
    assert manifest is not None
    assert second.name not in [row.name for row in manifest.segments]
    assert manifest.end == 100
    assert second.exists()


def test_what_a_limit_dropped_before_it_went_up_is_counted(place: Place) -> None:
    path, address, _ = place
    with open_log(path, max_bytes=3 * SEGMENT_BYTES, when_full="drop_oldest") as log:
        append(log, 60)
        first = forebay.archive(path, address, host=HOST)
        for _ in range(10):
            append(log, 30)

        second = forebay.archive(path, address, host=HOST)

        assert second.lost == log.begin - first.end


def test_two_archivers_of_one_address_exclude_each_other(place: Place) -> None:
    path, address, _ = place
    open_log(path).close()
    with Archiver(path, address, host=HOST), pytest.raises(Locked):
        forebay.archive(path, address, host=HOST)


def test_another_queue_of_the_same_name_is_refused(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    path.rename(path.with_name("old"))
    open_log(path).close()
    before = {file.name: file.read_bytes() for file in target.iterdir()}

    with pytest.raises(NotAQueue, match="archive of another queue"):
        forebay.archive(path, address, host=HOST)

    assert {file.name: file.read_bytes() for file in target.iterdir()} == before


@pytest.mark.parametrize("limit", ["keep_days", "keep_bytes"])
def test_retention_removes_the_oldest_and_nothing_comes_back(place: Place, limit: str) -> None:
    path, address, target = place
    clock = FakeClock()
    with open_log(path) as log:
        append(log, 100)
        limits: dict[str, Any] = {limit: 1_500}
        with Archiver(path, address, host=HOST, clock=clock, **limits) as archiver:
            archiver.run()
            clock.ms += 1_501 * 86_400_000

            reports = [archiver.run() for _ in range(2)]

    assert reports[-1].removed == reports[-1].segments == 0
    manifest = manifest_of(target)
    assert manifest is not None
    assert manifest.forgotten == ()
    assert manifest.begin == manifest.segments[0].first > 0
    assert {file.name for file in target.iterdir()} == {
        NAME,
        *(row.object for row in manifest.segments),
    }
    assert archived_records(target)[0][0] == manifest.begin


def test_objects_that_a_crash_of_retention_left_go_with_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    with monkeypatch.context() as patch:
        patch.setattr("forebay.storage.objects.DiskFolder.remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            forebay.archive(path, address, host=HOST, keep_bytes=1_500)
    check_target(target)

    forebay.archive(path, address, host=HOST)

    manifest = manifest_of(target)
    assert manifest is not None
    assert len(list(target.iterdir())) == len(manifest.segments) + 1


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_offsets_that_were_lost_and_assigned_again_replace_those_before(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    *kept, last = sorted(path.glob("00*"))
    lose_from(path, last)
    with open_log(path) as log:
        append(log, 5)
        end = log.end

    report = forebay.archive(path, address, host=HOST, trim=True)

    assert report.end == end == int(last.name, 16) + 5
    assert [offset for offset, _ in archived_records(target)] == list(range(end))
    manifest = manifest_of(target)
    assert manifest is not None
    assert [row.name for row in manifest.superseded] == [last.name]
    assert (target / manifest.superseded[0].object).exists()
    assert len(manifest.segments) == len(kept) + 1


def lose_from(path: Path, last: Path) -> None:
    """Leaves a log as a power cut would on a disk that had not kept what it had acknowledged."""
    from forebay.storage.filesystem import DiskFilesystem
    from forebay.storage.tail import TailFile

    directory = DiskFilesystem().open_directory(str(path))
    file = TailFile.open(directory, write=True)
    assert file is not None
    tail = file.read()
    assert tail is not None
    base = int(last.name, 16)
    last.unlink()
    old = tail._replace(
        written=base, durable=base, segment=0, position=34, salt=b"", clean=False, boot_id=bytes(16)
    )
    file.write(old, sync=True)
    file.write(old, sync=True)
    file.close()
    directory.close()


def test_the_events_of_a_beats_queue_are_archived(tmp_path: Path) -> None:
    with BeatsQueue(tmp_path / "beats", segment_bytes=4_096) as queue:
        queue.put_many([{"fields": {"number": number}} for number in range(200)])
        live = forebay.archive(tmp_path / "beats", tmp_path / "archive", host=HOST)
    report = forebay.archive(tmp_path / "beats", tmp_path / "archive", host=HOST)
    target = tmp_path / "archive" / HOST / "beats"

    assert min(live.segments, report.segments) > 0
    with forebay.read(target, kind="beats") as reader:
        assert [event.fields["number"] for event in reader] == list(range(200))
    assert forebay.check(target).damage == ()


def test_acknowledged_events_that_were_archived_stay_there(tmp_path: Path) -> None:
    target = tmp_path / "archive" / HOST / "beats"
    with BeatsQueue(tmp_path / "beats", segment_bytes=4_096) as queue:
        for start in range(0, 400, 100):
            numbers = range(start, start + 100)
            queue.put_many([{"fields": {"number": number}} for number in numbers])
            forebay.archive(tmp_path / "beats", tmp_path / "archive", host=HOST)
            queue.read(50).ack()
    forebay.archive(tmp_path / "beats", tmp_path / "archive", host=HOST)

    with forebay.read(target, kind="beats") as reader:
        assert [event.fields["number"] for event in reader] == list(range(400))


def test_kinds_without_segments_are_refused(tmp_path: Path) -> None:
    forebay.Fifo(tmp_path / "q").close()

    with pytest.raises(InvalidOption, match="only logs and Beats queues"):
        forebay.archive(tmp_path / "q", tmp_path / "archive")


def test_a_beats_queue_is_not_trimmed(tmp_path: Path) -> None:
    BeatsQueue(tmp_path / "q").close()

    with pytest.raises(InvalidOption, match="acknowledged"):
        forebay.archive(tmp_path / "q", tmp_path / "archive", trim=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "ä"])
def test_a_name_that_is_no_plain_name_is_refused(place: Place, name: str) -> None:
    path, address, _ = place
    open_log(path).close()

    with pytest.raises(InvalidOption, match="name"):
        forebay.archive(path, address, name=name)


def test_an_archive_is_not_opened_as_a_queue(place: Place) -> None:
    path, address, target = place
    open_log(path).close()
    forebay.archive(path, address, host=HOST)

    with pytest.raises(NotAQueue, match="is an archive"):
        forebay.open(target)
    with pytest.raises(NotAQueue, match="is an archive"):
        forebay.accept_losses(target)


def test_an_address_is_not_taken_for_the_path_of_a_new_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotAQueue, match="is an address"):
        Log("s3://bucket/queue")

    assert list(tmp_path.iterdir()) == []


def test_credentials_in_an_address_are_refused_and_not_repeated(place: Place) -> None:
    path, _, _ = place
    open_log(path).close()

    with pytest.raises(InvalidOption, match="no credentials") as caught:
        forebay.archive(path, "s3://key:secret@bucket/archive")

    assert "secret" not in str(caught.value)


def test_an_object_that_is_gone_is_damage_and_the_rest_is_read(place: Place) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    manifest = manifest_of(target)
    assert manifest is not None
    gone = manifest.segments[1]
    (target / gone.object).unlink()

    report = forebay.check(target)
    with forebay.read(target, kind="log", salvage=True) as reader:
        offsets = [record.offset for record in reader]

    assert (report.lost, report.records) == (gone.end - gone.first, 100 - gone.end + gone.first)
    assert offsets == [n for n in range(100) if not gone.first <= n < gone.end]


def test_a_manifest_that_does_not_verify_is_damage(place: Place) -> None:
    path, address, target = place
    open_log(path).close()
    forebay.archive(path, address, host=HOST)
    flip(target / NAME, 20)

    with pytest.raises(forebay.Damaged, match="checksum"):
        forebay.read(target)
    with pytest.raises(forebay.Damaged, match="checksum"):
        forebay.archive(path, address, host=HOST)


def test_an_archive_is_recovered_into_a_queue(place: Place, tmp_path: Path) -> None:
    path, address, target = place
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)

    report = forebay.recover(f"file://{target}", tmp_path / "again")

    assert report.copied == 100
    with Log(tmp_path / "again") as log:
        assert log.end == 100


def test_what_has_been_open_for_long_is_sealed_and_archived(place: Place) -> None:
    path, address, _ = place
    clock = FakeClock()
    with (
        open_log(path, seal_seconds=10, clock=clock) as log,
        Archiver(path, address, host=HOST) as archiver,
    ):
        append(log, 3)
        log.maintain()
        clock.seconds += 9
        log.maintain()
        early = archiver.run().end
        clock.seconds += 2
        log.maintain()
        log.sync()
        log.maintain()
        late = archiver.run().end
        clock.seconds += 100
        log.maintain()
        files = len(list(path.glob("00*")))
        append(log, 1)

        assert (early, late, files) == (0, 3, 2)
        assert log.end == 4
    with open_log(path) as log:
        assert log.end == 4


def test_the_archiver_sees_what_the_thread_of_an_owner_has_sealed(place: Place) -> None:
    path, address, _ = place
    with Log(path, seal_seconds=0.01) as log, Archiver(path, address, host=HOST) as archiver:
        log.append(value_of(0))

        assert wait_until(lambda: archiver.run().end == 1)
