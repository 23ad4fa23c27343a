"""One thread that is not scheduled for long, held in a call until everything has turned over.

While it is held, the disk runs full and has room again, over and over: puts fail and succeed more
often than any bounded memory of a queue holds. Then it goes on, and what its call says must be
true.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from dataclasses import dataclass

import forebay
from tests.kinds import EACH, KINDS
from tests.kinds.session import Session
from tests.support.disk import SlowDisk
from tests.threads.gates import Run, check_cut, open_session
from tests.threads.interrupts import Places, count_places

HELD = ("put", "put_many", "take", "sync")
# Above every bound on what is kept in memory about the past.
_TURNS = 150
_RECORDS = re.compile(r"/[0-9a-f]{10}$|\.seg$|\.tape$|\.wal")
_TURN_SECONDS = 0.03
_CHURN_SECONDS = 1.0
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, order=True)
class Starved:
    """A case: a verb is held at one of its places."""

    kind: str
    policy: str
    verb: str
    place: int
    full: bool

    def __str__(self) -> str:
        state = "full from its beginning" if self.full else "full meanwhile"
        return f"{self.kind} {self.policy}: {self.verb} held at {self.place}, disk {state}"


def all_starved() -> list[Starved]:
    return [
        Starved(kind, policy, verb, place, full)
        for kind, policy in EACH
        for verb in HELD
        for place in range(count_places(kind, policy, verb))
        for full in (False, True)
    ]


class Room:
    """Whether the disk is full: no write to a file of records gets through."""

    def __init__(self) -> None:
        self.full = False

    def visit(self, call: str, path: str, over: bool) -> None:
        if self.full and call in ("pwrite", "allocate", "create") and _RECORDS.search(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def run_starved(case: Starved) -> None:
    """Runs a case; raises AssertionError with what is wrong."""
    disk, session = open_session(case.kind, case.policy, **KINDS[case.kind].at_once)
    room = Room()
    disk.on_visit = room.visit
    reached, go = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go.wait()

    def work() -> None:
        with Places(hold, case.place).watched():
            KINDS[case.kind].verbs()[case.verb](session)

    held = Run(case.verb, work)
    room.full = case.full
    held.start()
    while held.is_alive() and not reached.wait(0.001):
        pass
    turned = threading.Event()
    churn = Run("churn", lambda: _turn_over(session, room, turned, go))
    churn.start()
    # Where the held one has the lock, nobody else gets on: then there is nothing to see.
    if turned.wait(_TURN_SECONDS):
        churn.join(_CHURN_SECONDS)
    go.set()
    room.full = False
    for run in (held, churn):
        run.join(_JOIN_SECONDS)
        assert not run.is_alive(), f"{run.verb} hangs"
        told = run.error is None or isinstance(run.error, OSError | forebay.Closed)
        assert told, f"{run.verb} raised {run.error!r}"
    room.full = False
    with contextlib.suppress(forebay.Closed):
        session.sync()
    _check(disk, session)


def _turn_over(session: Session, room: Room, turned: threading.Event, go: threading.Event) -> None:
    for turn in range(_TURNS):
        if go.is_set():
            return
        # A success now and then, and a long row of failures at the end.
        room.full = turn % 7 != 1 if turn < 50 else True
        with contextlib.suppress(OSError):
            if turn % 5 == 3:
                session.put_many(3)
            else:
                session.put()
        turned.set()
    room.full = False


def _check(disk: SlowDisk, session: Session) -> None:
    check_cut(disk, session, once=False)
    session.queue.close()
