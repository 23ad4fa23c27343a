"""The staging buffer of a deadline queue, when batches do not fit and syncs come in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forebay.queues.deadline.queue import DeadlineQueue
from tests.queues.deadline_helpers import open_queue
from tests.support.inside import journal_of


def values_after_a_kill(queue: DeadlineQueue, path: Path) -> list[bytes]:
    """Returns what is there if the process ends now: all that it has written stays."""
    shutil.copytree(queue.path, path)
    with open_queue(path) as again:
        assert again.damage == []
        return [item.value for item in again.browse()]


@pytest.mark.parametrize("large", [[bytes(3000)] * 2, [bytes(1300)] * 3])
def test_a_batch_that_does_not_fit_leaves_those_after_it_whole(
    tmp_path: Path, large: list[bytes]
) -> None:
    with open_queue(tmp_path / "q", sync="os", staging_bytes=4096) as queue:
        queue.enqueue(b"before")
        queue.enqueue_many(large)
        queue.enqueue(b"after")
        found = values_after_a_kill(queue, tmp_path / "copy")

    assert found == [b"before", *large, b"after"]


@pytest.mark.parametrize("large", [[bytes(3000)] * 2, [bytes(1300)] * 3])
def test_a_sync_that_ends_while_the_buffer_is_used_leaves_all_batches_whole(
    tmp_path: Path, large: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_queue(tmp_path / "q", sync="os", staging_bytes=4096) as queue:
        queue.enqueue(b"before")
        file = journal_of(queue).wal.file
        sync = file.sync

        def enqueue_meanwhile() -> None:
            queue.enqueue(b"meanwhile")
            sync()

        monkeypatch.setattr(file, "sync", enqueue_meanwhile)
        queue.sync()
        monkeypatch.undo()
        queue.enqueue_many(large)
        queue.enqueue(b"after")
        found = values_after_a_kill(queue, tmp_path / "copy")

    assert found == [b"before", b"meanwhile", *large, b"after"]
