"""The files of a deadline queue while they are written: when what is in them is durable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.formats.deadline.items import Item, Key
from forebay.queues.deadline import compaction as deadline_writing
from forebay.queues.deadline.compaction import SetWriter
from forebay.queues.deadline.names import wal_name
from forebay.queues.deadline.queue import DeadlineQueue
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulFile
from tests.support.inside import journal_of, upkeep_of


def test_a_large_run_is_synced_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_writing, "_SYNC_BYTES", 10_000)
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    writer = SetWriter(filesystem, directory, 1, "none", bytes(16))
    run = writer._runs[0]

    for number in range(1, 200):
        run.add([Item(Key(number, number), bytes(1_000))])
        run.end_block()
    directory.sync()
    end = filesystem.operations
    states = filesystem.crash_states(points=lambda point: point == end)
    sizes = [len(data) for state in states for data in state.files().values()]
    run.remove()

    assert min(sizes) > 100_000


def test_a_log_that_is_left_is_durable_though_nobody_waited_for_what_is_in_it() -> None:
    filesystem = ForgetfulFilesystem()
    queue = DeadlineQueue("/q", filesystem=filesystem, sync="interval", background=False)
    queue.enqueue(b"written by another thread, which has yet to wait for its sync")
    journal = journal_of(queue)
    following = journal.prepare(journal.wal.number + 100)

    with journal.lock:
        left = journal.switch(following)

    end = filesystem.operations
    path = f"/q/{wal_name(left.number)}"
    states = filesystem.crash_states(points=lambda point: point == end)
    found = [b"written by another thread" in state.files()[path] for state in states]
    left.file.close()
    queue.close()
    assert found
    assert all(found)


@pytest.mark.slow
def test_what_is_enqueued_during_a_freeze_is_durable_when_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filesystem = ForgetfulFilesystem()
    queue = DeadlineQueue("/q", filesystem=filesystem, background=False)
    queue.enqueue(b"before")
    writer: Callable[[int], SetWriter] = upkeep_of(queue).writer

    def enqueue_and_write(number: int) -> SetWriter:
        # The new log is in use, and no run has synced the directory yet.
        queue.enqueue(b"meanwhile")
        filesystem.acknowledge("meanwhile")
        return writer(number)

    monkeypatch.setattr(upkeep_of(queue), "writer", enqueue_and_write)
    queue.freeze()
    states = list(filesystem.crash_states(2, garbage=False))
    queue.close()

    after = [state for state in states if state.acknowledged]
    assert len(after) > 5
    for state in after:
        with DeadlineQueue("/q", filesystem=state.restore(), background=False) as again:
            found = sorted(item.value for item in again.dequeue_many(9))
        assert found == [b"before", b"meanwhile"], state


def test_a_freeze_syncs_its_log_before_it_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = ForgetfulFilesystem()
    queue = DeadlineQueue("/q", filesystem=filesystem, sync="interval", background=False)
    queue.enqueue_many([bytes(1_000)] * 50)
    log = journal_of(queue).wal.file
    locked: list[bool] = []
    sync = ForgetfulFile.sync

    def note(file: ForgetfulFile) -> None:
        if file is log:
            locked.append(journal_of(queue).lock.locked())
        sync(file)

    monkeypatch.setattr(ForgetfulFile, "sync", note)
    queue.freeze()
    queue.close()

    # All that was enqueued; nothing has come since that the lock would be held for.
    assert locked == [False]
