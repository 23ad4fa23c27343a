"""An exception from elsewhere, in the middle of a change, ends the handle and harms nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.commit import GroupCommit
from forebay.storage.segments import SegmentWriter


@pytest.mark.parametrize("sync", ["always", "os", "interval"])
def test_an_interrupt_behind_a_write_ends_the_handle_and_a_reopened_log_is_whole(
    tmp_path: Path, sync: SyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = forebay.Log(tmp_path / "log", sync=sync, background=False)
    log.append_many([b"one", b"two"])
    write = SegmentWriter.append

    def interrupted(self: SegmentWriter, data: memoryview) -> None:
        write(self, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append_many([b"three"])
    with pytest.raises(forebay.Closed):
        log.append(b"refused")
    log.close()

    with forebay.Log(tmp_path / "log") as again:
        assert again.append(b"four") in (2, 3)
        values = [record.value for record in again.consumer("a").read()]
    assert values in ([b"one", b"two", b"four"], [b"one", b"two", b"three", b"four"])


def test_an_interrupted_sync_leaves_nobody_waiting() -> None:
    interrupts = [KeyboardInterrupt()]

    def sync() -> int:
        if interrupts:
            raise interrupts.pop()
        return 1

    commit = GroupCommit(sync, 0)

    with pytest.raises(KeyboardInterrupt):
        commit.wait(1, commit.epoch)
    commit.wait(1, commit.epoch)

    assert commit.durable == 1
