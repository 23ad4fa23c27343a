"""Bounds, errors of the disk, locks, forks and keys of a Beats queue."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forebay import (
    BeatsQueue,
    BeatsReader,
    Closed,
    Full,
    InvalidOption,
    Locked,
    NotAQueue,
    Overtaken,
    RecordTooLarge,
)
from forebay.formats.beats.events import Event
from tests.crash.beats_kind import key_file
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulFile
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    WRITABLE,
    make_key,
    numbered,
    numbers_of,
    open_queue,
    segment_names,
    state_of,
    take_all,
)
from tests.queues.helpers import SYNCS, FakeClock, run_threads, wait_until
from tests.support.inside import has_failed_to_write, path_of, writer_of

LIMIT = {"max_bytes": 3_000}


def open_on(filesystem: ForgetfulFilesystem, **options: Any) -> BeatsQueue:
    settings: dict[str, Any] = {"segment_bytes": 1000, "background": False, **options}
    return BeatsQueue("/q", filesystem=filesystem, key_file=key_file(), **settings)


def size_of(path: Path) -> int:
    return sum((path / name).stat().st_size for name in segment_names(path))


def fill_up(queue: BeatsQueue) -> int:
    """Puts events until the queue is full; gives how many."""
    put = 0
    while True:
        try:
            queue.put_many(numbered(1, first=put))
        except Full:
            return put
        put += 1


@pytest.mark.parametrize("version", WRITABLE)
def test_reject_raises_full_and_writes_nothing(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version, when_full="reject", **LIMIT) as queue:
        put = fill_up(queue)
        assert size_of(tmp_path / "q") <= 3_000
        assert take_all(queue) == list(range(put))
        queue.put_many(numbered(1, first=put))
        assert take_all(queue) == [put]


def test_reject_takes_a_batch_whole_or_not_at_all(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2", when_full="reject", **LIMIT) as queue:
        with pytest.raises(Full):
            queue.put_many(numbered(40))

        assert take_all(queue) == []


def test_block_waits_until_acknowledgements_make_room(tmp_path: Path) -> None:
    taken: list[int] = []

    with open_queue(tmp_path / "q", "v2", when_full="block", **LIMIT) as queue:

        def work(number: int) -> None:
            if number:
                queue.put_many(numbered(200))
            while not number and len(taken) < 200:
                batch = queue.read(20)
                taken.extend(numbers_of(batch))
                batch.ack()
                # The files change only under the lock: else the sum is of several moments.
                with writer_of(queue).lock:
                    assert size_of(tmp_path / "q") <= 3_000

        run_threads(2, work)

    assert taken == list(range(200))


@pytest.mark.parametrize("sync", ["always", "os"])
def test_drop_oldest_drops_whole_segments_counts_them_and_tells_once(
    tmp_path: Path, sync: str
) -> None:
    options = {"when_full": "drop_oldest", "sync": sync, **LIMIT}
    with open_queue(tmp_path / "q", "v2", **options) as queue:
        queue.put_many(numbered(5))
        outstanding = queue.read(2)
        for first in range(5, 60, 5):
            queue.put_many(numbered(5, first=first))
        dropped = queue.info().dropped or 0

        with pytest.raises(Overtaken) as caught:
            queue.read(5)
        rest = take_all(queue)
        outstanding.ack()

        assert caught.value.lost == dropped > 0
        # Two of them were handed out before.
        assert rest == list(range(dropped + 2, 60))
        assert (dropped + 2) % PER_SEGMENT == 0
        assert size_of(tmp_path / "q") <= 3_000
        assert state_of(tmp_path / "q")[0] <= int(segment_names(tmp_path / "q")[-1].split(".")[0])


def test_an_event_that_fits_into_no_segment_is_refused(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        with pytest.raises(RecordTooLarge):
            queue.put_many([*numbered(2), Event(0, 0, {}, {"m": "x" * 1000})])
        queue.put(Event(1, 0, {}, {"m": "x" * 900}))

        assert len(queue.read(5)) == 1


def fill(filesystem: ForgetfulFilesystem) -> None:
    """Makes the disk as large as what is on it."""
    filesystem.capacity_bytes = sum(map(len, filesystem.files().values()))


class WatchedClock(FakeClock):
    """Tells that a thread has looked at it, and acted on what it saw."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()

    def wait_for_looks(self) -> None:
        # The second look from now on comes after what the first one made the thread do.
        before = self.looks
        assert wait_until(lambda: self.looks >= before + 2)


@pytest.mark.slow
def test_a_failed_write_is_tried_again_after_one_two_and_four_seconds() -> None:
    filesystem, clock = ForgetfulFilesystem(), WatchedClock()
    queue = open_on(filesystem, clock=clock, version="v2", retry_seconds=200)
    queue.put_many(numbered(1))
    fill(filesystem)
    before = filesystem.writes
    thread = threading.Thread(target=lambda: queue.put_many(numbered(1, first=1)), daemon=True)
    thread.start()
    tries: list[int] = []
    # 1, 2, 4, 8, 16 and then 30 seconds after the try before.
    for moment, following in pairwise((0, 1, 3, 7, 15, 31, 61, 91, 121)):
        clock.seconds = moment
        assert wait_until(lambda: filesystem.writes > before + len(tries))
        clock.wait_for_looks()
        clock.seconds = following - 0.001
        clock.wait_for_looks()
        tries.append(filesystem.writes - before)
    filesystem.capacity_bytes = None
    clock.seconds = 121
    thread.join(120)

    assert tries == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not thread.is_alive()
    assert take_all(queue) == [0, 1]
    queue.close()


@pytest.mark.slow
def test_tries_are_bounded_and_the_queue_goes_on() -> None:
    filesystem, clock = ForgetfulFilesystem(), FakeClock()
    queue = open_on(filesystem, clock=clock, version="v2", retry_seconds=5)
    fill(filesystem)
    errors: list[OSError] = []

    def put() -> None:
        try:
            queue.put_many(numbered(1))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    while thread.is_alive():
        clock.seconds += 0.25
        thread.join(0.02)
    filesystem.capacity_bytes = None
    queue.put_many(numbered(1, first=1))

    assert errors[0].errno == errno.ENOSPC
    assert clock.seconds >= 5
    assert take_all(queue) == [1]
    queue.close()


def test_closing_ends_the_tries() -> None:
    filesystem, clock = ForgetfulFilesystem(), FakeClock()
    queue = open_on(filesystem, clock=clock, version="v2", retry_seconds=1000, sync="os")
    fill(filesystem)
    errors: list[BaseException] = []

    def put() -> None:
        try:
            queue.put_many(numbered(1))
        except (OSError, Closed) as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    assert wait_until(lambda: has_failed_to_write(queue))
    queue.close()
    thread.join(120)

    assert len(errors) == 1


@pytest.mark.parametrize("version", WRITABLE)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, None], ids=["EIO", "full", "short"])
def test_after_a_failed_write_the_queue_goes_on(version: str, error: int | None) -> None:
    filesystem = ForgetfulFilesystem()
    queue = open_on(filesystem, version=version, retry_seconds=0)
    queue.put_many(numbered(2))
    if error == errno.EIO:
        filesystem.fail_at(1, error)
    else:
        fill(filesystem)
        filesystem.capacity_bytes = (filesystem.capacity_bytes or 0) + (50 if error is None else 0)
    with pytest.raises(OSError, match=r"error|space"):
        queue.put_many(numbered(2, first=2))
    filesystem.capacity_bytes = None
    queue.put_many(numbered(2, first=4))
    queue.close()

    with open_on(filesystem) as again:
        assert take_all(again) == [0, 1, 4, 5]
        assert again.damage == []


def test_a_failed_sync_ends_the_handle() -> None:
    filesystem = ForgetfulFilesystem()
    queue = open_on(filesystem, version="v2", retry_seconds=30)
    queue.put_many(numbered(1))
    filesystem.fail_at(2, errno.EIO)
    with pytest.raises(OSError, match="error"):
        queue.put_many(numbered(1, first=1))

    with pytest.raises(Closed):
        queue.put_many(numbered(1, first=2))
    with pytest.raises(Closed):
        queue.read(1)
    queue.close()


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q"), pytest.raises(Locked) as caught:
        open_queue(tmp_path / "q")

    assert caught.value.pid == os.getpid()
    open_queue(tmp_path / "q").close()


def test_a_closed_queue_refuses_everything(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "q")
    queue.put_many(numbered(2))
    batch = queue.read(1)
    queue.close()
    queue.close()

    for use in (
        lambda: queue.put_many(numbered(1)),
        lambda: queue.put_many([]),
        queue.sync,
        queue.info,
        lambda: queue.read(1),
        lambda: queue.read(1, timeout=1),
        batch.ack,
        batch.nack,
    ):
        with pytest.raises(Closed):
            use()


def test_a_handle_is_void_in_the_child_of_a_fork(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "q")
    queue.put_many(numbered(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.put_many(numbered(1))
        except Closed:
            code = 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    assert take_all(queue) == [0]
    queue.close()


@pytest.mark.parametrize("content", [b"k" * 16, b"k" * 16 + b"\n", b"6b" * 16, b"6b" * 16 + b"\n"])
def test_a_key_file_holds_raw_bytes_or_hex_digits(tmp_path: Path, content: bytes) -> None:
    with BeatsQueue(tmp_path / "q", key_file=make_key(tmp_path, b"k" * 16)) as queue:
        queue.put_many(numbered(1))

    with BeatsQueue(tmp_path / "q", key_file=make_key(tmp_path, content)) as queue:
        assert take_all(queue) == [0]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    key = make_key(tmp_path)
    key.chmod(mode)

    with pytest.raises(InvalidOption, match=f"{mode:04o}"):
        BeatsQueue(tmp_path / "q", key_file=key)


@pytest.mark.parametrize("content", [b"", b"k" * 15, b"k" * 17, b"x" * 5000])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidOption) as caught:
        BeatsQueue(tmp_path / "q", key_file=make_key(tmp_path, content))

    assert "kkk" not in str(caught.value)
    assert not (tmp_path / "q").exists()


def test_the_key_shows_in_no_repr(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        shown = f"{queue!r} {queue.options!r} {queue._access!r} {queue.info()}"

    assert "keykey" not in shown


def test_a_directory_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir(mode=0o700)
    (tmp_path / "q" / "precious.txt").write_text("x")

    with pytest.raises(NotAQueue):
        BeatsQueue(tmp_path / "q")

    assert os.listdir(tmp_path / "q") == ["precious.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_no_segment_that_is_done_with_comes_back_after_a_power_cut(sync: str) -> None:
    machine = ForgetfulFilesystem()
    queue = open_on(machine, sync=sync)
    queue.put_many(numbered(36))
    queue.read(30).ack()
    end = machine.operations
    states = list(machine.crash_states(points=lambda point: point == end, garbage=False))
    queue.close()

    assert not any("/q/0.seg" in state.files() for state in states)
    for state in states:
        left = state.restore()
        with BeatsReader("/q", filesystem=left, key_file=key_file()) as reader:
            assert numbers_of(reader.events(unread=True)) == [*range(30, 36)]
        with open_on(left, sync=sync) as queue:
            assert numbers_of(queue.read(99)) == [*range(30, 36)]
            assert queue.info().damage == ()


@pytest.mark.slow
def test_events_are_dropped_only_when_the_ones_after_them_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = ForgetfulFilesystem()
    held, go = threading.Event(), threading.Event()
    syncs: list[ForgetfulFile] = []
    sync = ForgetfulFile.sync

    def hold_second(file: ForgetfulFile) -> None:
        syncs.extend([file] if path_of(file) == "/q/1.seg" else [])
        # The first one was of its header.
        if path_of(file) == "/q/1.seg" and len(syncs) == 2:
            held.set()
            assert go.wait(60)
        sync(file)

    monkeypatch.setattr(ForgetfulFile, "sync", hold_second)
    queue = open_on(machine, version="v2", max_bytes=2_000, when_full="drop_oldest")
    queue.put_many(numbered(8))
    large = {"message": "x" * 600}
    first = threading.Thread(target=queue.put, args=[Event(10**9 + 8, 0, {}, large)])
    first.start()
    assert held.wait(60)
    since = machine.operations
    # It needs the room of the oldest segment, while no event of the next one is synced.
    second = threading.Thread(target=queue.put, args=[Event(10**9 + 9, 0, {}, large)])
    second.start()
    assert wait_until(lambda: queue.info().dropped == 8)
    states = list(machine.crash_states(2, since=since, garbage=False))
    go.set()
    first.join(60)
    second.join(60)
    queue.close()

    found = set()
    for state in states:
        with open_on(state.restore()) as left:
            found.add(tuple(numbers_of(left.read(99))))
            assert left.info().losses == 0
    assert found == {(*range(8),), (*range(9),), (8,)}
