"""A full disk: what was acknowledged stays, what is read makes room again."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import DeadlineQueue, Log
from forebay.formats.fflg import encode_index
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered, run_python, values_of
from tests.support.clocks import SteppingClock

SEGMENT_BYTES = 20_000
each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_log(filesystem: ForgetfulFilesystem, **options: Any) -> Log:
    defaults = {"segment_bytes": SEGMENT_BYTES, "staging_bytes": 4096, "background": False}
    return Log("/q", filesystem=filesystem, clock=SteppingClock(), **{**defaults, **options})


def used_bytes(filesystem: ForgetfulFilesystem) -> int:
    return sum(len(data) for data in filesystem.files().values())


def fill(log: Log, size: int = 500) -> tuple[list[bytes], OSError]:
    """Appends until the disk is full; gives what was acknowledged."""
    values: list[bytes] = []
    while True:
        value = numbered(1, size=size, first=log.end)[0]
        try:
            log.append(value)
        except OSError as error:
            return values, error
        values.append(value)


@each_sync
def test_a_full_disk_raises_enospc_and_keeps_what_was_acknowledged(sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    log = open_log(filesystem, sync=sync)
    filesystem.capacity_bytes = used_bytes(filesystem) + 100_000
    values, error = fill(log)

    assert error.errno == errno.ENOSPC
    assert len(values) > 100
    assert log.end == len(values)
    filesystem.capacity_bytes = None
    assert values_of(log.consumer("c").read()) == values
    log.close()


@each_sync
def test_appending_goes_on_when_there_is_room_again(sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem, sync=sync) as log:
        filesystem.capacity_bytes = used_bytes(filesystem) + 50_000
        values, _ = fill(log)
        filesystem.capacity_bytes = None

        assert log.append(b"next") == len(values)
        assert values_of(log.consumer("c").read()) == [*values, b"next"]

    with open_log(filesystem, sync=sync) as log:
        assert values_of(log.consumer("d").read()) == [*values, b"next"]


@each_sync
def test_a_failed_batch_leaves_whole_records_only(sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem, sync=sync) as log:
        log.append_many(numbered(5, size=500))
        filesystem.capacity_bytes = used_bytes(filesystem) + 30_000
        with pytest.raises(OSError, match="No space left"):
            log.append_many(numbered(200, size=500, first=5))
        filesystem.capacity_bytes = None

        found = values_of(log.consumer("c").read())
        assert found == numbered(len(found), size=500)
        assert len(found) >= 5


@pytest.mark.parametrize("reads", [1, 60])
def test_a_place_can_be_saved_on_a_full_disk_thanks_to_the_reserve(reads: int) -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        consumer = log.consumer("c")
        log.append_many(numbered(100, size=500))
        filesystem.capacity_bytes = used_bytes(filesystem)

        consumer.read(reads)
        consumer.commit()

        assert log.info().positions == {"c": reads}
        assert "/q/reserve" not in filesystem.files()
        filesystem.capacity_bytes = None


def test_committing_and_trimming_make_room_and_appends_go_on() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        consumer = log.consumer("c")
        filesystem.capacity_bytes = used_bytes(filesystem) + 100_000
        values, _ = fill(log)
        consumer.read(150)
        consumer.commit()
        trimmed = log.trim()
        more, _ = fill(log)

        assert trimmed > 100
        assert len(more) > 100
        consumer.seek("earliest")
        assert values_of(consumer.read()) == [*values, *more][log.begin :]
        filesystem.capacity_bytes = None


def test_a_place_can_be_saved_when_the_disk_is_full_a_second_time() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        consumer = log.consumer("c")
        for turn in (1, 2):
            filesystem.capacity_bytes = None
            log.append_many(numbered(100, size=500))
            log.maintain()
            filesystem.capacity_bytes = used_bytes(filesystem)
            consumer.read(50)
            try:
                consumer.commit()
                log.trim()
            finally:
                filesystem.capacity_bytes = None
            assert log.info().positions == {"c": 50 * turn}


def test_old_records_can_be_read_while_staged_ones_wait_for_room() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem, sync="os", segment_bytes=2_000) as log:
        consumer = log.consumer("c")
        for value in numbered(10):
            log.append(value)
        log.sync()
        filesystem.capacity_bytes = used_bytes(filesystem)
        fill(log, size=100)

        try:
            assert values_of(consumer.read(10)) == numbered(10)
        finally:
            filesystem.capacity_bytes = None


def test_a_full_disk_at_a_reopen_still_gives_the_records() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        log.append_many(numbered(100, size=500))
        log.consumer("c")
    filesystem.capacity_bytes = used_bytes(filesystem)

    with open_log(filesystem) as log:
        assert values_of(log.consumer("c").read(1000)) == numbered(100, size=500)
        with pytest.raises(OSError, match="No space left"):
            log.append(b"x" * 500)
        filesystem.capacity_bytes = None


@each_sync
def test_a_deadline_queue_opens_on_a_full_disk_and_items_can_be_taken(sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    options: dict[str, Any] = {"filesystem": filesystem, "clock": SteppingClock(), "sync": sync}
    with DeadlineQueue("/q", background=False, **options) as queue:
        queue.enqueue_many(numbered(100))
    filesystem.capacity_bytes = used_bytes(filesystem)

    with DeadlineQueue("/q", background=False, **options) as queue:
        items = queue.dequeue_many(50)
        queue.release_many(items)

    filesystem.capacity_bytes = None
    assert [item.value for item in items] == numbered(50)
    with DeadlineQueue("/q", background=False, **options) as queue:
        assert len(queue) == 50


def test_the_first_place_of_all_can_be_saved_on_a_full_disk() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        log.append_many(numbered(100, size=500))
        filesystem.capacity_bytes = used_bytes(filesystem)

        try:
            consumer = log.consumer("c", start=60)
        finally:
            filesystem.capacity_bytes = None

        assert consumer.committed == 60


def test_places_that_another_program_left_outlive_a_failed_save() -> None:
    filesystem = ForgetfulFilesystem()
    with open_log(filesystem) as log:
        log.append_many(numbered(5))
    filesystem.write_file("/q/index", encode_index({"c": 3}))
    with open_log(filesystem) as log:
        filesystem.capacity_bytes = 0
        with pytest.raises(OSError, match="No space left"):
            log.consumer("d")
        filesystem.capacity_bytes = None

    with open_log(filesystem) as log:
        consumer = log.consumer("c")
        consumer.read()
        consumer.commit()
        assert log.info().positions == {"c": 5}


@pytest.mark.slow
@each_sync
def test_a_limit_of_file_size_raises_efbig_and_the_log_goes_on(tmp_path: Path, sync: str) -> None:
    program = """
import resource, sys
from forebay import DeadlineQueue, Log
from forebay.formats.fflg import encode_index
log = Log(sys.argv[1], sync=sys.argv[2], staging_bytes=4096, background=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
count = 0
try:
    while True:
        log.append(b"%08d" % count + b"." * 492)
        count += 1
except OSError as error:
    print(error.errno, count, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(log.append(b"next"))
log.close()
"""
    result = run_python(program, tmp_path / "q", sync)

    assert result.stderr == ""
    number, count, following = map(int, result.stdout.split())
    assert number == errno.EFBIG
    assert count > 100
    assert following == count
    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert list(reader.values()) == [*numbered(count, size=500), b"next"]
