"""`SpoolHandler`: never longer than told, never lost in silence, never locked up by itself."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import Log, LogReader
from forebay.logging import SpoolHandler
from tests.sources import python_path
from tests.support.inside import lock_of

_PROGRAM = """
import logging, os, sys
from forebay.logging import SpoolHandler
handler = SpoolHandler(sys.argv[1], shared=True, timeout_seconds=30)
logging.getLogger().addHandler(handler)
child = os.fork()
for number in range(100):
    logging.warning("%s %d", "child" if child == 0 else "parent", number)
if child:
    assert os.waitpid(child, 0)[1] == 0
logging.shutdown()
"""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("spool-test")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


def documents(path: Path) -> list[dict[str, Any]]:
    with LogReader(path) as reader:
        return [json.loads(value) for value in reader.values()]


def test_records_are_lines_of_json_with_what_was_given(
    tmp_path: Path, logger: logging.Logger
) -> None:
    handler = SpoolHandler(tmp_path / "q")
    logger.addHandler(handler)

    try:
        raise ValueError("a reason")
    except ValueError:
        logger.exception("it failed: %s", "here", extra={"order": 7})
    logger.info("ü\n")
    handler.close()

    first, second = documents(tmp_path / "q")
    assert (first["level"], first["message"], first["order"]) == ("ERROR", "it failed: here", 7)
    assert "ValueError: a reason" in first["exception"]
    assert second["message"] == "ü\n"
    assert first["process"] == os.getpid()


def test_a_formatter_says_how_a_record_looks(tmp_path: Path, logger: logging.Logger) -> None:
    handler = SpoolHandler(tmp_path / "q")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)

    logger.warning("hello")
    handler.close()

    with LogReader(tmp_path / "q") as reader:
        assert list(reader.values()) == [b"WARNING hello"]


def test_a_call_waits_no_longer_than_it_was_told(tmp_path: Path, logger: logging.Logger) -> None:
    handler = SpoolHandler(tmp_path / "q", timeout_seconds=0.01)
    logger.addHandler(handler)
    done = threading.Event()

    def log_some() -> None:
        for number in range(5):
            logger.info("%d", number)
        done.set()

    # A disk that stalls holds this lock.
    with lock_of(handler._log):
        thread = threading.Thread(target=log_some)
        thread.start()
        ended = done.wait(60)
    thread.join()
    handler.close()

    assert ended
    assert [document["message"] for document in documents(tmp_path / "q")] == list("01234")


def test_what_had_no_room_is_counted_and_told(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = SpoolHandler(tmp_path / "q", timeout_seconds=0, buffer_records=10)
    logger.addHandler(handler)

    with lock_of(handler._log):
        for number in range(100):
            logger.info("%d", number)
        lost = handler.lost
    handler.flush()
    logger.info("after")
    handler.close()

    messages = [document["message"] for document in documents(tmp_path / "q")]
    assert lost > 0
    assert len([text for text in messages if text.isdigit()]) == 100 - lost
    told = [int(text.split()[0]) for text in messages if text.endswith("were lost")]
    assert sum(told) == lost
    assert messages[-1] == "after"
    assert capsys.readouterr().err.count("are being lost") == 1


def test_a_full_log_loses_nothing_in_silence(tmp_path: Path, logger: logging.Logger) -> None:
    handler = SpoolHandler(
        *(tmp_path / "q",),
        timeout_seconds=0,
        max_bytes=200_000_000,
        when_full="reject",
    )
    handler.close()
    logger.addHandler(handler)

    logger.info("after the end")

    assert handler.lost == 0
    assert documents(tmp_path / "q") == []


def test_our_own_messages_go_into_the_log_without_end_or_deadlock(tmp_path: Path) -> None:
    handler = SpoolHandler(tmp_path / "q", timeout_seconds=30)
    ours = logging.getLogger("forebay")
    ours.addHandler(handler)
    inner = handler._log.append_many

    def append_many(values: Any, **options: Any) -> int:
        # As a log does that drops its oldest records.
        ours.warning("written: %d", len(values))
        return inner(values, **options)

    handler._log.append_many = append_many  # type: ignore[method-assign]  # a log that talks
    try:
        ours.warning("first")
        handler.flush()
    finally:
        ours.removeHandler(handler)
        handler.close()

    messages = [document["message"] for document in documents(tmp_path / "q")]
    assert messages == ["first", "written: 1"]


def test_a_signal_handler_may_log(tmp_path: Path, logger: logging.Logger) -> None:
    handler = SpoolHandler(tmp_path / "q", timeout_seconds=5)
    logger.addHandler(handler)
    before = signal.signal(signal.SIGALRM, lambda *_: logger.info("signal"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        until = time.monotonic() + 0.3
        count = 0
        while time.monotonic() < until:
            logger.info("main")
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    handler.close()

    messages = [document["message"] for document in documents(tmp_path / "q")]
    assert messages.count("main") == count
    assert "signal" in messages


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_processes_log_into_one_queue_after_a_fork_too(tmp_path: Path) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(tmp_path / "q")],
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        for _ in range(2)
    ]
    codes = [program.wait(120) for program in programs]

    messages = [document["message"] for document in documents(tmp_path / "q")]
    assert codes == [0, 0]
    for who in ("child", "parent"):
        for number in range(100):
            assert messages.count(f"{who} {number}") == 2


def test_a_closed_log_is_whole(tmp_path: Path, logger: logging.Logger) -> None:
    handler = SpoolHandler(tmp_path / "q")
    logger.addHandler(handler)
    logger.info("x")
    handler.close()

    with Log(tmp_path / "q") as log:
        assert len(log) == 1
