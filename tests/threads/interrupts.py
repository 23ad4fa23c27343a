"""An exception at every place where a signal can get in, and at every system call.

CPython runs a signal handler when a function begins, when a call returns, and where a loop turns
back; never between two plain assignments, and never inside a compiled function. `sys.setprofile`
is told of the first two, so it can raise KeyboardInterrupt at exactly those places, one after the
other: at the n-th of a verb, for all n. With compiled kernels these are all returns into Python;
with FOREBAY_PURE=1 the kernels are plain Python as well, and count.

An OSError is raised at the n-th call to the disk instead. After either, another thread works on the
queue, closes it and opens it again, and the sum is taken. Nothing may hang, and nothing may be left
open. The handle may have ended: then all calls say so.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import forebay
from tests.kinds import EACH, KINDS
from tests.kinds.session import Session
from tests.support.disk import SlowDisk
from tests.threads.gates import Run, check_cut, open_session

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE)
# In place of an error: a signal handler that closes the queue.
CLOSES = -1
_JOIN_SECONDS = 8.0
_STANDARD = sysconfig.get_paths()["stdlib"]
_OURS = os.path.dirname(forebay.__file__)


@dataclass(frozen=True, slots=True, order=True)
class Blow:
    """A case: the exception comes at the `place`-th place of a verb; `error` 0 is an interrupt."""

    kind: str
    policy: str
    verb: str
    place: int
    error: int = 0
    lasting: bool = False

    def __str__(self) -> str:
        names = {0: "interrupt", CLOSES: "close() by a handler"}
        what = names.get(self.error) or errno.errorcode[self.error]
        if self.lasting:
            what += " from then on,"
        return f"{self.kind} {self.policy}: {what} at {self.place} of {self.verb}"


class Places:
    """Counts the places of this thread where a signal could come, and acts at one of them."""

    def __init__(self, act: Callable[[], None], at: int = -1) -> None:
        self._act = act
        self._at = at
        self.count = 0
        self.where = ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        # What the collector finalises, and when, is not part of the verb.
        gc.disable()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return":
            # It comes to who has called.
            caller = frame.f_back
            if caller is None or not _is_ours(caller):
                return
        elif event not in ("call", "c_return") or not _is_ours(frame):
            return
        self.count += 1
        if self.count - 1 == self._at:
            sys.setprofile(None)
            code = frame.f_code
            folder, name = os.path.split(code.co_filename)
            self.where = f"{event} {os.path.basename(folder)}/{name}:{frame.f_lineno}"
            self.where += f" {code.co_name}"
            self._act()


def _is_ours(frame: FrameType | None) -> bool:
    """Says whether the code is Forebay's, or of the standard library and called by it."""
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "__del__":
            return False
        if name.startswith(_OURS):
            return True
        if not name.startswith(_STANDARD) or "site-packages" in name:
            return False
        frame = frame.f_back
    return False


def all_interrupts(only: str | None = None) -> list[Blow]:
    """Lists an interrupt at every place of every verb."""
    return [
        Blow(kind, policy, verb, place)
        for kind, policy in EACH
        if only in (None, kind)
        for verb in KINDS[kind].verbs()
        for place in range(count_places(kind, policy, verb))
    ]


def all_closes(only: str | None = None) -> list[Blow]:
    """Lists a signal handler that closes the queue at every place of every verb."""
    return [replace(blow, error=CLOSES) for blow in all_interrupts(only) if blow.verb != "close"]


def all_errors(only: str | None = None) -> list[Blow]:
    """Lists an error at every system call of every verb."""
    return [
        Blow(kind, policy, verb, place, error, lasting)
        for kind, policy in EACH
        if only in (None, kind)
        for verb in KINDS[kind].verbs()
        for place in range(count_calls(kind, policy, verb))
        for error in ERRORS
        for lasting in (False, True)
    ]


def count_places(kind: str, policy: str, verb: str) -> int:
    _, session = open_session(kind, policy)
    places = Places(lambda: None)
    with places.watched():
        KINDS[kind].verbs()[verb](session)
    session.queue.close()
    return places.count


def count_calls(kind: str, policy: str, verb: str) -> int:
    disk, session = open_session(kind, policy)
    failing = FailingCall(-1, errno.EIO)
    disk.on_visit = failing.visit
    KINDS[kind].verbs()[verb](session)
    disk.on_visit = None
    session.queue.close()
    return failing.count


class FailingCall:
    """Lets the n-th call to the disk fail, and all after it if it is `lasting`."""

    def __init__(self, at: int, error: int, lasting: bool = False) -> None:
        self._lasting = lasting
        self._at = at
        self._error = error
        self.count = 0
        self.where = ""

    def visit(self, call: str, path: str, over: bool) -> None:
        # A sync fails at its end, when it has covered something or not.
        if call in ("sync", "sync names") and not over:
            return
        self.count += 1
        place = self.count - 1
        if place == self._at or (self._lasting and place > self._at >= 0):
            self.where = self.where or f"{call} {path}"
            raise OSError(self._error, os.strerror(self._error), path)


def run_blow(blow: Blow) -> None:
    """Runs a case; raises AssertionError with what is wrong."""
    kind = KINDS[blow.kind]
    disk, session = open_session(blow.kind, blow.policy)
    session.disk_fails = True
    verb = kind.verbs()[blow.verb]
    if blow.error > 0:
        failing = FailingCall(blow.place, blow.error, blow.lasting)
        disk.on_visit = failing.visit
        raised = _raised(lambda: verb(session))
        if not blow.lasting:
            disk.on_visit = None
        where = failing.where
        # What cannot be read is damage.
        allowed: tuple[type[BaseException], ...] = (OSError, forebay.Closed, forebay.Damaged)
    else:
        closes = blow.error == CLOSES
        places = Places(session.queue.close if closes else _interrupt, blow.place)
        with places.watched():
            raised = _raised(lambda: verb(session))
        where = places.where
        # It knows the queue, which is to be forgotten.
        del places
        allowed = (forebay.Reentered, forebay.Closed) if closes else (KeyboardInterrupt,)
    try:
        assert raised is None or isinstance(raised, allowed), f"raised {raised!r}"
        _check_after(disk, session)
        if blow.error <= 0:
            # Nobody can close what an interrupt has come between; who forgets it closes it.
            raised = None
            del session.queue
            session.state.clear()
            gc.collect()
        left = sorted(file.path for file in disk.files_open)
        assert not left, f"left open: {left}"
    except AssertionError as error:
        raise AssertionError(f"[{where}] {error}") from error


def _interrupt() -> None:
    raise KeyboardInterrupt


def _raised(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except BaseException as error:
        return error
    return None


def _check_after(disk: SlowDisk, session: Session) -> None:
    """Has other threads work, close, and open again; takes the sum after each."""
    for name, work in (("put", _work_on(session)), ("close", session.queue.close)):
        run = Run(name, work)
        run.start()
        run.join(_JOIN_SECONDS)
        assert not run.is_alive(), f"{name} hangs afterwards"
        if isinstance(run.error, OSError | forebay.Damaged) and (
            name == "close" or disk.on_visit is not None
        ):
            # Told: what could not be made durable is not promised.
            continue
        expected = run.error is None or isinstance(run.error, forebay.Closed)
        assert expected, f"{name} raised {run.error!r} afterwards"
    disk.on_visit = None
    check_cut(disk, session, once=session.kind.name != "beats")
    _check_reopened(disk, session)


def _work_on(session: Session) -> Callable[[], None]:
    def work() -> None:
        session.put()
        session.put_many()
        session.take()
        session.sync()

    return work


def _check_reopened(disk: SlowDisk, session: Session) -> None:
    """Opens it on the same machine: what was put is there, as after the end of a process."""
    promises = session.ledger.promises(power_cut=False)
    after = disk.kill()
    queue: Any = session.kind.open(session.path, filesystem=after, background=False)
    try:
        found = session.kind.find_rest(queue)
    finally:
        queue.close()
    once = session.kind.name != "beats"
    session.ledger.check(found, promises, ordered=session.kind.ordered, once=once)
