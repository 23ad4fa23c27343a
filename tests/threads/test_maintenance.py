"""The thread that works for a queue: nothing ends it silently, and `info` tells how it fares."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

import forebay
from tests.kinds import KINDS
from tests.kinds.session import Session
from tests.support.disk import READS, SYNCS, SlowDisk
from tests.support.waiting import wait_until

each_kind = pytest.mark.parametrize("kind", KINDS)


class Trouble:
    """Raises what it is told to, in the thread of a queue and nowhere else.

    Where it only looks: in the middle of a write it would end the handle, which is right.
    """

    def __init__(self, kind: str) -> None:
        self._calls = SYNCS if kind == "beats" else READS
        self.error: BaseException | None = None
        self.times = 0

    def visit(self, call: str, path: str, over: bool) -> None:
        named = threading.current_thread().name.startswith("forebay ")
        if self.error is not None and named and call in self._calls:
            self.times += 1
            raise self.error


def open_session(kind: str) -> tuple[Session, Trouble]:
    disk, trouble = SlowDisk(), Trouble(kind)
    disk.on_visit = trouble.visit
    session = Session(
        KINDS[kind], "/q", filesystem=disk, sync="interval", sync_interval_seconds=0.001
    )
    return session, trouble


def put_until(session: Session, condition: Callable[[], bool]) -> bool:
    """Puts now and then, so that there is something to do, until it came true."""

    def puts() -> bool:
        session.put()
        return condition()

    return wait_until(puts, 20)


def state_of(session: Session) -> str:
    """How the thread fares, or why there is no telling: the handle has ended with it."""
    try:
        return str(session.queue.info().maintenance)
    except forebay.Closed as error:
        return str(error)


@each_kind
def test_an_error_that_nobody_has_foreseen_is_told_and_the_thread_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, trouble = open_session(kind)
    trouble.error = ValueError("a surprise")
    ended = False

    with caplog.at_level(logging.ERROR, "forebay"):
        try:
            assert put_until(session, lambda: trouble.times > 0)
            assert wait_until(lambda: "a surprise" in session.queue.info().maintenance, 20)
            trouble.error = None
            assert put_until(session, lambda: session.queue.info().maintenance == "runs")
        except forebay.Closed as error:
            # It came where the handle cannot go on.
            ended = "a surprise" in str(error)
    session.queue.close()

    told = [record for record in caplog.records if "a surprise" in str(record.exc_info)]
    assert len(told) == 1 or ended


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@each_kind
def test_calls_raise_when_the_thread_has_ended_all_the_same(
    kind: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    session, trouble = open_session(kind)
    trouble.error = error("the end")

    with pytest.raises(forebay.Closed, match=r"has ended|must be reopened"):
        put_until(session, lambda: False)
    state = state_of(session)
    trouble.error = None
    session.queue.close()

    end = f"{error('the end')!r}"
    assert state in (f"ended: {end}", f"/q failed and must be reopened: {end}")
    told = [record.message for record in caplog.records if record.levelno == logging.CRITICAL]
    assert told == [f"forebay /q: background work has ended: {end}"]


@each_kind
def test_info_tells_whether_there_is_a_thread(kind: str) -> None:
    session, _ = open_session(kind)
    off = Session(KINDS[kind], "/other", filesystem=SlowDisk(), background=False)

    states = session.queue.info().maintenance, off.queue.info().maintenance
    session.queue.close()
    off.queue.close()

    assert states == ("runs", "off")
