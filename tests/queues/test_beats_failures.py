"""What a call on a Beats queue leaves that failed, was interrupted, or came beside another."""

from __future__ import annotations

import contextlib
import errno
import gc
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from forebay import BeatsQueue, Closed, Overtaken
from forebay.storage.filesystem import DiskDirectory
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    numbered,
    numbers_of,
    open_queue,
    segment_names,
    take_all,
)
from tests.queues.helpers import FakeClock, open_files, run_threads, wait_until
from tests.queues.test_beats_room import fill, open_on
from tests.support.inside import has_failed_to_write, writer_of


class Interrupted(KeyboardInterrupt):
    """Stands for Ctrl-C."""


def interrupt_at(line: int, call: Callable[[], object]) -> bool:
    """Runs a call that is interrupted at its n-th line of the queue; says whether it was."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if "/forebay/queues/" not in frame.f_code.co_filename:
            return None
        # The interpreter looks for signals after calls: never between a block and the end of its
        # `with`, for which there is a line as well.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with "):
            lines += 1
            if lines == line:
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_put_that_waited_for_another_that_gave_up_raises_too(sync: str) -> None:
    filesystem, clock = ForgetfulFilesystem(), FakeClock()
    queue = open_on(filesystem, clock=clock, version="v2", retry_seconds=5, sync=sync)
    queue.put_many(numbered(1))
    fill(filesystem)
    stored: list[int] = []
    errors: list[OSError] = []

    def put(number: int) -> None:
        try:
            queue.put_many(numbered(1, first=number))
            stored.append(number)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in (1, 2, 3)]
    threads[0].start()
    assert wait_until(lambda: has_failed_to_write(queue))
    for thread in threads[1:]:
        thread.start()
    assert wait_until(lambda: writer_of(queue).applied == 4)
    while any(thread.is_alive() for thread in threads):
        clock.seconds += 0.25
        threads[0].join(0.02)
    filesystem.capacity_bytes = None
    queue.put_many(numbered(1, first=4))

    assert [error.errno for error in errors] == [errno.ENOSPC] * 3
    assert take_all(queue) == [0, *stored, 4]
    queue.close()


def test_a_put_that_waits_while_the_queue_is_closed_is_written_or_raises() -> None:
    filesystem, clock = ForgetfulFilesystem(), FakeClock()
    queue = open_on(filesystem, clock=clock, version="v2", retry_seconds=1000, sync="os")
    fill(filesystem)
    errors: list[BaseException] = []

    def put(number: int) -> None:
        try:
            queue.put_many(numbered(1, first=number))
        except (OSError, Closed) as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: writer_of(queue).applied == 3)
    with contextlib.suppress(OSError):
        queue.close()
    for thread in threads:
        thread.join(60)

    assert len(errors) == 3


def read_and_acknowledge(queue: BeatsQueue, handed_out: list[int]) -> None:
    batch = queue.read(4)
    handed_out += numbers_of(batch)
    batch.ack()


@pytest.mark.slow
def test_a_read_that_is_interrupted_anywhere_skips_no_event() -> None:
    whole = list(range(10))
    interrupted, line = True, 0
    while interrupted:
        line += 1
        filesystem = ForgetfulFilesystem()
        with open_on(filesystem, version="v2") as queue:
            queue.put_many(numbered(10))
            handed_out: list[int] = []
            interrupted = interrupt_at(line, partial(read_and_acknowledge, queue, handed_out))
            with contextlib.suppress(Closed):
                rest = take_all(queue)
        with open_on(filesystem) as queue:
            again = take_all(queue)

        # What was handed out and not acknowledged comes again, with all that was read after it.
        assert rest in (whole, whole[4:]), line
        assert again in ([], whole[:4], whole), line
        assert {*handed_out, *rest, *again} == set(whole), line
    assert line > 50


def fail_to_save(patch: pytest.MonkeyPatch, error: int) -> None:
    """Lets no small file be made."""
    original = DiskDirectory.create

    def create(self: DiskDirectory, name: str) -> Any:
        if name.startswith("state.dat"):
            raise OSError(error, os.strerror(error))
        return original(self, name)

    patch.setattr(DiskDirectory, "create", create)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_an_acknowledgement_that_raised_has_acknowledged_nothing(
    tmp_path: Path, error: int
) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(10))
        first, second = queue.read(4), queue.read(3)
        with pytest.MonkeyPatch.context() as patch:
            fail_to_save(patch, error)
            with pytest.raises(OSError, match=os.strerror(error)):
                first.ack()
        second.ack()
        outstanding = queue.info().outstanding
        first.nack()

        assert outstanding == 4
        assert numbers_of(queue.read(10)) == [0, 1, 2, 3]
    with open_queue(tmp_path / "q", "v2") as queue:
        assert take_all(queue) == list(range(10))


def test_an_acknowledgement_that_raised_can_be_made_again(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(10))
        batch = queue.read(4)
        with pytest.MonkeyPatch.context() as patch:
            fail_to_save(patch, errno.EMFILE)
            with pytest.raises(OSError, match="Too many"):
                batch.ack()
        batch.ack()
    with open_queue(tmp_path / "q", "v2") as queue:
        assert take_all(queue) == list(range(4, 10))


def test_segments_that_cannot_be_removed_now_go_later(tmp_path: Path) -> None:
    original = DiskDirectory.unlink

    def unlink(self: DiskDirectory, name: str) -> None:
        if not name.endswith(".seg"):
            return original(self, name)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(3 * PER_SEGMENT))
        batch = queue.read(PER_SEGMENT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DiskDirectory, "unlink", unlink)
            batch.ack()
        left = segment_names(tmp_path / "q")
        queue.read(1).ack()

        assert left == ["0.seg", "1.seg", "2.seg"]
        assert segment_names(tmp_path / "q") == ["1.seg", "2.seg"]


@pytest.mark.slow
def test_closing_beside_readers_leaves_no_file_open(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / str(number)
        queue = open_queue(path, "v2", sync="os", background=False)
        queue.put_many(numbered(30))
        started = threading.Event()

        def read(queue: BeatsQueue = queue, started: threading.Event = started) -> None:
            try:
                while True:
                    queue.read(1)
                    started.set()
            except Closed:
                pass

        thread = threading.Thread(target=read)
        thread.start()
        started.wait(60)
        queue.close()
        thread.join(60)

        assert open_files(path) == []


class Spool(logging.Handler):
    """A handler that puts what is logged into the queue that logs."""

    def __init__(self, queue: BeatsQueue) -> None:
        super().__init__()
        self.queue = queue

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.put({"fields": {"message": record.getMessage()}})
        with contextlib.suppress(Overtaken):
            self.queue.read(1)


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_logging_handler_may_use_the_queue(tmp_path: Path, sync: str) -> None:
    options = {"when_full": "drop_oldest", "sync": sync, "max_bytes": 3_000}
    done = threading.Event()

    def work(queue: BeatsQueue) -> None:
        for event in numbered(60):
            queue.put(event)
        done.set()

    with open_queue(tmp_path / "q", "v2", **options) as queue:
        spool = Spool(queue)
        logging.getLogger("forebay").addHandler(spool)
        try:
            thread = threading.Thread(target=work, args=(queue,), daemon=True)
            thread.start()
            assert done.wait(30), "the queue logs while it holds its lock"
        finally:
            logging.getLogger("forebay").removeHandler(spool)


def test_what_was_handed_out_and_is_dropped_is_not_counted_as_dropped(tmp_path: Path) -> None:
    options = {"when_full": "drop_oldest", "max_bytes": 3_000}
    with open_queue(tmp_path / "q", "v2", **options) as queue:
        queue.put_many(numbered(12))
        batch = queue.read(11)
        for first in range(12, 60, 4):
            queue.put_many(numbered(4, first=first))
        dropped = queue.info().dropped
        with pytest.raises(Overtaken) as caught:
            queue.read(100)
        rest = take_all(queue)
        batch.ack()

        assert caught.value.lost == dropped
        assert 11 + dropped + len(rest) == 60


def test_what_is_given_back_after_its_segment_was_dropped_is_told_as_dropped(
    tmp_path: Path,
) -> None:
    options = {"when_full": "drop_oldest", "max_bytes": 3_000}
    with open_queue(tmp_path / "q", "v2", **options) as queue:
        queue.put_many(numbered(12))
        batch = queue.read(11)
        for first in range(12, 36, 4):
            queue.put_many(numbered(4, first=first))
        batch.nack()
        found: list[int] = []
        lost = 0
        for _ in range(20):
            try:
                found += take_all(queue)
            except Overtaken as error:
                lost += error.lost

        assert sorted(found) == found
        assert len(set(found)) == len(found)
        assert len(found) + lost == 36
        assert queue.info().dropped == lost


@pytest.mark.slow
@pytest.mark.parametrize("given_back", [False, True])
def test_reading_one_by_one_does_not_slow_down_with_what_is_out(
    tmp_path: Path, given_back: bool
) -> None:
    def seconds(count: int) -> float:
        with open_queue(tmp_path / f"{count}", "v2", sync="os", segment_bytes=10**7) as queue:
            queue.put_many(numbered(count))
            batches = [queue.read(1) for _ in range(count)] if given_back else []
            for batch in batches:
                batch.nack()
            gc.collect()
            begun = time.process_time()
            for _ in range(count):
                queue.read(1)
            return time.process_time() - begun

    small, large = seconds(500), seconds(4_000)

    assert large < 8 * 3 * small


def test_many_threads_that_give_back_get_everything_once(tmp_path: Path) -> None:
    taken: list[int] = []
    with open_queue(tmp_path / "q", "v2", segment_bytes=4000) as queue:
        queue.put_many(numbered(200))

        def work(number: int) -> None:
            tries = 0
            while len(taken) < 200:
                batch = queue.read(7)
                tries += 1
                if tries % 3 == number % 3 and tries < 100:
                    batch.nack()
                else:
                    taken.extend(numbers_of(batch))
                    batch.ack()

        run_threads(4, work)

    assert sorted(taken) == list(range(200))
