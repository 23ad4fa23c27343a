"""The bounds of a log: what the disk holds, the last offset, and messages about both."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Full, Log
from forebay.queues.shared.options import SyncPolicy
from tests.queues.helpers import SYNCS, FakeClock, numbered, segment_files, values_of
from tests.queues.test_unreadable import drain

LAST = 2**63 - 1


def held_by(path: Path) -> int:
    """Returns what the segments take on the disk, space that was set aside included."""
    return sum(file.stat().st_size for file in segment_files(path))


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_disk_never_holds_more_than_max_bytes(
    tmp_path: Path, sync: SyncPolicy, batch: int
) -> None:
    options = {"segment_bytes": 1_000, "max_bytes": 4_000, "when_full": "drop_oldest"}
    most = 0

    with Log(tmp_path / "q", sync=sync, **options) as log:  # type: ignore[arg-type]
        for number in range(0, 200, batch):
            log.append_many(numbered(batch, first=number))
            most = max(most, held_by(tmp_path / "q"))
            log.append(b"one")
            most = max(most, held_by(tmp_path / "q"))
        assert log.info().dropped

    assert most <= 4_000
    assert all(file.stat().st_size <= 1_000 for file in segment_files(tmp_path / "q"))


def test_a_segment_is_never_preallocated_beyond_its_size(tmp_path: Path) -> None:
    with Log(tmp_path / "q", segment_bytes=1_000) as log:
        log.append(b"a")

        assert held_by(tmp_path / "q") == 1_000


def make_large(path: Path) -> Path:
    with Log(path / "q", segment_bytes=1_000) as log:
        log.append_many(numbered(300))
    return path / "q"


@pytest.mark.parametrize("when_full", ["block", "reject", "drop_oldest"])
def test_a_limit_set_on_a_larger_log_holds_from_the_open_on(tmp_path: Path, when_full: str) -> None:
    path = make_large(tmp_path)
    before = held_by(path)

    options: dict[str, Any] = {"max_bytes": 4_000, "when_full": when_full}
    with Log(path, segment_bytes=1_000, background=False, **options) as log:
        after, dropped = held_by(path), log.info().dropped or 0
        if when_full == "reject":
            with pytest.raises(Full):
                log.append(b"a")

    if when_full == "drop_oldest":
        assert after <= 4_000
        assert dropped > 200
        with forebay.read(path, kind="log") as reader:
            assert list(reader.values()) == numbered(300 - dropped, first=dropped)
    else:
        assert (after, dropped) == (before, 0)


@pytest.mark.parametrize("when_full", ["block", "reject", "drop_oldest"])
def test_the_limit_is_asserted_at_the_interval(tmp_path: Path, when_full: str) -> None:
    clock = FakeClock()
    options: dict[str, Any] = {"max_bytes": 4_000, "when_full": when_full, "background": False}
    with Log(tmp_path / "q", clock=clock, segment_bytes=1_000, **options) as log:
        log.append_many(numbered(20))
        # Another program, or an adoption, made it larger meanwhile.
        for base, size in list(log._segments.sizes.items()):
            log._segments.sizes[base] = size + 1_000
        clock.seconds = 100.0
        log.maintain()

        assert bool(log.info().dropped) == (when_full == "drop_oldest")


def last_segment(path: Path, count: int) -> Path:
    """Makes a log of the original program whose first offset is the last but `count`."""
    (path / "q").mkdir(mode=0o700)
    base = LAST + 1 - count
    header = b"FFLG" + bytes(4) + base.to_bytes(8, "big")
    (path / "q" / f"{base:016x}").write_bytes(header + b"\0\0\0\1a\0\0\0\1b")
    return path / "q"


def test_entries_beyond_the_last_offset_are_not_given_out(tmp_path: Path) -> None:
    path = last_segment(tmp_path, 1)

    with forebay.read(path, salvage=True, kind="log") as reader:
        records = list(reader)
    with Log(path) as log:
        found, _ = drain(log)
        with pytest.raises(Full, match=f"offsets end at {LAST}"):
            log.append(b"c")
        with pytest.raises(Full, match="0 are left"):
            log.append_many([b"c"])

    assert [(record.offset, record.value) for record in records] == [(LAST, b"a")]
    assert found == [b"a"]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_appends_end_at_the_last_offset_with_an_error(
    tmp_path: Path, sync: SyncPolicy, version: int
) -> None:
    path = last_segment(tmp_path, 5)

    with Log(path, sync=sync, version=version) as log:
        offsets = [log.append(b"c"), log.append(b"d")]
        with pytest.raises(Full, match="1 are left; nothing was written"):
            log.append_many([b"e", b"f"])
        offsets.append(log.append(b"e"))
        with pytest.raises(Full, match="0 are left"):
            log.append(b"f")
        values = values_of(log.consumer("c").read())

    assert offsets == [LAST - 2, LAST - 1, LAST]
    assert values == [b"a", b"b", b"c", b"d", b"e"]
    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == values


class Spool(logging.Handler):
    """A handler of messages that keeps them in a log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log.append(record.getMessage().encode())


@pytest.mark.parametrize("sync", SYNCS)
def test_a_handler_of_messages_may_append_to_the_log_that_logs(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    options: dict[str, Any] = {"max_bytes": 4_000, "when_full": "drop_oldest", "sync": sync}
    log = Log(tmp_path / "q", segment_bytes=2_000, **options)
    logger = logging.getLogger("forebay.queues.log.trimming")
    handler = Spool(log)
    logger.addHandler(handler)

    def work() -> None:
        for number in range(300):
            log.append(b"event %d with some text to fill" % number)

    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    finally:
        logger.removeHandler(handler)
    assert (log.info().dropped or 0) > 100
    log.close()
    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert any(b"oldest records were dropped" in value for value in reader.values())


def test_an_interrupt_while_an_append_waits_for_its_sync_leaves_the_handle_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"first")

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"second")

        assert log.append(b"third") == 2
        assert values_of(log.consumer("c").read()) == [b"first", b"second", b"third"]
    with Log(tmp_path / "q") as log:
        assert log.end == 3
