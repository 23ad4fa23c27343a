"""A handler of `logging` that puts every message of a queue into that same queue.

Whatever the queue logs while it is open, it holds no lock that a put needs: nobody hangs, and the
sum holds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import forebay
from tests.kinds import KINDS, POLICIES
from tests.kinds.session import Session
from tests.support.disk import SlowDisk
from tests.support.waiting import wait_until
from tests.threads.gates import Run
from tests.threads.test_maintenance import open_session as open_with_trouble

_SECONDS = 30.0
_DROPPING = ("log", "fifo", "beats")
_BOUNDED = {"max_bytes": 4_000, "when_full": "reject"}


class Spool(logging.Handler):
    """Puts a value for each message that it hears; not for those that its own puts cause."""

    def __init__(self, session: Session, before: Callable[[], None]) -> None:
        super().__init__()
        self._session = session
        self._before = before
        self._puts = threading.local()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._puts, "now", False):
            return
        self._puts.now = True
        try:
            self.heard.append(record.module)
            self._before()
            with contextlib.suppress(forebay.Full, forebay.Closed):
                self._session.put()
        finally:
            self._puts.now = False


@contextlib.contextmanager
def spooled(session: Session, before: Callable[[], None] = lambda: None) -> Iterator[Spool]:
    """Has the messages of all queues put into one; `before` is called first of all."""
    logger = logging.getLogger("forebay")
    spool, level = Spool(session, before), logger.level
    logger.addHandler(spool)
    logger.setLevel(logging.DEBUG)
    try:
        yield spool
    finally:
        logger.setLevel(level)
        logger.removeHandler(spool)


@dataclass(frozen=True)
class Message:
    """What makes a queue log, and the module that does."""

    kind: str
    name: str
    module: str
    work: Callable[[Session], object]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def leave(session: Session, name: str, inside: str | None = None) -> None:
    """Leaves a file of rubbish in the directory of a queue, or in one inside it."""
    disk = session.filesystem
    assert isinstance(disk, SlowDisk)
    with disk.quietly():
        directory = disk.open_directory(session.path)
        if inside is not None:
            directory = directory.directory(inside, create=True)
        file = directory.create(name)
        file.pwrite(b"rubbish", 0)
        file.close()
        directory.close()


def refuse_a_batch(session: Session) -> None:
    leave(session, "rubbish.ready", "inbox")
    session.queue.adopt()


def remove_an_orphan(session: Session) -> None:
    leave(session, f"1-{'0' * 32}.part", "inbox")
    session.queue.adopt()


def lose_the_ledger(session: Session) -> None:
    leave(session, "ledger")
    session.adopt()


def fail_to_remove(session: Session) -> None:
    def visit(call: str, path: str, over: bool) -> None:
        if call == "unlink" and path.endswith(".seg"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    assert isinstance(session.filesystem, SlowDisk)
    session.put_many(30)
    session.filesystem.on_visit = visit
    session.take(25)
    session.filesystem.on_visit = None


MESSAGES = [
    Message("log", "refused", "adoption", refuse_a_batch),
    Message("log", "orphan", "adoption", remove_an_orphan),
    Message("log", "ledger", "inbox", lose_the_ledger),
    Message("beats", "segments stay", "delivery", fail_to_remove),
]


def open_quietly(kind: str, policy: str, **options: Any) -> tuple[SlowDisk, Session]:
    disk = SlowDisk()
    options = {"filesystem": disk, "sync": policy, "background": False, **options}
    return disk, Session(KINDS[kind], "/q", **options)


def run_to_its_end(work: Callable[[], object]) -> None:
    run = Run("the work", work)
    run.start()
    run.join(_SECONDS)
    assert not run.is_alive(), "it hangs"
    assert run.error is None


def rest_after(disk: SlowDisk, session: Session) -> Any:
    """Closes a queue and returns what the next open finds."""
    session.queue.close()
    queue = session.kind.open(session.path, filesystem=disk, background=False)
    try:
        return session.kind.find_rest(queue)
    finally:
        queue.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_handler_may_put_into_the_queue_that_logs(message: Message, policy: str) -> None:
    disk, session = open_quietly(message.kind, policy, **message.options)
    session.put_many(5)

    with spooled(session) as spool:
        run_to_its_end(lambda: message.work(session))
    found = rest_after(disk, session)

    assert message.module in spool.heard
    found.told[:] = [text for text in found.told if "rubbish.ready" not in text]
    promises = session.ledger.promises(power_cut=False)
    session.ledger.check(found, promises, ordered=session.kind.ordered)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", _DROPPING)
def test_a_handler_may_put_into_the_queue_that_drops(kind: str, policy: str) -> None:
    options = {"max_bytes": 4_000, "when_full": "drop_oldest"}
    disk, session = open_quietly(kind, policy, **options)

    def put_many_singles() -> None:
        for _ in range(80):
            session.put()

    with spooled(session) as spool:
        run_to_its_end(put_many_singles)
    dropped = session.queue.info().dropped
    found = rest_after(disk, session)

    assert spool.heard
    assert found.told == []
    assert dropped + len(found.values) == len(session.ledger.put)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_may_put_what_the_thread_of_the_queue_says(kind: str) -> None:
    session, trouble = open_with_trouble(kind)

    def puts() -> bool:
        # It may have come where the handle cannot go on.
        with contextlib.suppress(forebay.Closed):
            session.put()
        return "background" in spool.heard

    def recover() -> None:
        trouble.error = None

    with spooled(session, recover) as spool:
        trouble.error = ValueError("a surprise")
        run_to_its_end(lambda: wait_until(puts, 20))
        run_to_its_end(session.queue.close)

    assert "background" in spool.heard
