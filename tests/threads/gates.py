"""Gates: one thread is held at one point of a call while another works; then the power is cut.

A point is a call to the disk: before it does anything, and for a sync also when it has noted what
it covers and has not returned. A case holds verb `held` at its `point`-th one, runs verb `other`,
cuts the power in a copy of the disk and takes the sum, lets go, waits for both, and does it again.
In a double gate the other verb is held as well, and the first goes on, before a third puts. Instead
of running undisturbed, the disk may be full from the moment of the hold on: for one write, or until
both are done.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import forebay
from tests.kinds import EACH, KINDS
from tests.kinds.session import Session
from tests.support.disk import SYNCS, WRITES, SlowDisk

# Long enough for a verb that nobody blocks; one that waits for the held one costs all of it.
_OTHER_SECONDS = 0.02
_JOIN_SECONDS = 10.0
FAULTS = ("none", "one write", "full")


@dataclass(frozen=True, slots=True, order=True)
class Gate:
    """A case."""

    kind: str
    policy: str
    held: str
    point: int
    other: str
    fault: str
    second: int = -1

    def __str__(self) -> str:
        text = f"{self.kind} {self.policy}: {self.held} held at {self.point}, {self.other}"
        if self.second >= 0:
            text += f" held at {self.second}"
        return text if self.fault == "none" else f"{text}, disk full ({self.fault})"


class Doorman:
    """Stands in the door to the disk: counts the points of some threads, and holds them at one."""

    def __init__(self, fault: str = "none") -> None:
        self._fault = fault
        self._full = False
        self._full_once: int | None = None
        self._holds: dict[int, Hold] = {}

    def watch(self, hold: Hold) -> None:
        """Has the calling thread counted, and held."""
        self._holds[threading.get_ident()] = hold

    def leave(self) -> None:
        """Lets everything through from now on."""
        self._holds.clear()
        self._full, self._full_once = False, None

    def visit(self, call: str, path: str, over: bool) -> None:
        hold = self._holds.get(threading.get_ident())
        if hold is None:
            return
        hold.points.append(f"{call} {path}{' under way' if over else ''}")
        if len(hold.points) - 1 == hold.point:
            self._full = self._full or self._fault == "full"
            hold.reached.set()
            hold.go.wait()
            if self._fault == "one write":
                self._full_once = threading.get_ident()

    def is_full(self) -> bool:
        if self._full_once == threading.get_ident():
            self._full_once = None
            return True
        return self._full


class Hold:
    """A point at which a thread is held."""

    def __init__(self, point: int = -1) -> None:
        self.point = point
        self.points: list[str] = []
        self.reached = threading.Event()
        self.go = threading.Event()


class Run(threading.Thread):
    """A verb in a thread of its own, and how it ended."""

    def __init__(self, verb: str, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.verb = verb
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error


def all_gates(only: str | None = None) -> list[Gate]:
    """Lists every case: kind, policy, verb, point of it, other verb, fault."""
    gates = []
    for kind, policy in EACH:
        if only not in (None, kind):
            continue
        verbs = KINDS[kind].verbs()
        for held in verbs:
            points = find_points(kind, policy, held)
            for point, text in enumerate(points):
                call = text.split(" /")[0]
                for fault in FAULTS:
                    if fault == "one write" and call not in ("pwrite", "allocate"):
                        continue
                    if fault == "full" and call not in WRITES | SYNCS:
                        continue
                    gates += [Gate(kind, policy, held, point, other, fault) for other in verbs]
    return gates


def double_gates(only: str | None = None) -> list[Gate]:
    """Lists every case in which both are held: a put or a sync first, then any verb."""
    gates = []
    for kind, policy in EACH:
        if only not in (None, kind):
            continue
        verbs = KINDS[kind].verbs()
        points = {verb: find_points(kind, policy, verb) for verb in verbs}
        for held in ("put", "sync"):
            for point, text in enumerate(points[held]):
                if text.split(" /")[0] not in WRITES | SYNCS:
                    continue
                gates += [
                    Gate(kind, policy, held, point, other, "none", second)
                    for other in verbs
                    if other != "close"
                    for second in range(len(points[other]))
                ]
    return gates


def find_points(kind: str, policy: str, held: str) -> list[str]:
    """Lists the points of a verb that nobody disturbs."""
    disk, session = open_session(kind, policy)
    doorman, hold = Doorman(), Hold()
    disk.on_visit = doorman.visit
    doorman.watch(hold)
    KINDS[kind].verbs()[held](session)
    doorman.leave()
    session.queue.close()
    return hold.points


def open_session(kind: str, policy: str, **options: Any) -> tuple[SlowDisk, Session]:
    """Makes a queue with some of everything in it, nothing of which is due or staged away."""
    disk = SlowDisk()
    options = {"filesystem": disk, "sync": policy, "background": False, **options}
    session = Session(KINDS[kind], "/q", **options)
    session.put_many(5)
    session.take()
    session.sync()
    session.put()
    session.take()
    if session.kind.adopts:
        session.hand_in()
    return disk, session


def run_gate(gate: Gate) -> None:
    """Runs a case; raises AssertionError with what is wrong."""
    disk, session = open_session(gate.kind, gate.policy)
    session.disk_fails = gate.fault != "none"
    doorman = Doorman(gate.fault)
    disk.on_visit, disk.is_full = doorman.visit, doorman.is_full
    first, second = Hold(gate.point), Hold(gate.second)
    held = Run(gate.held, lambda: _work(session, gate.held, doorman, first))
    held.start()
    # A verb may have fewer points this time: then the other one runs after it.
    _wait_for_one_of(first.reached, held)
    other = Run(gate.other, lambda: _work(session, gate.other, doorman, second, put=True))
    other.start()
    runs = [held, other]
    once = gate.fault == "none" or gate.kind != "beats"
    if gate.second >= 0:
        _wait_for_one_of(second.reached, other, _OTHER_SECONDS)
        first.go.set()
        held.join(_OTHER_SECONDS)
        runs.append(Run("sync", lambda: _go_on(session)))
        runs[-1].start()
    runs[-1].join(_OTHER_SECONDS)
    check_cut(disk, session, once=False)
    first.go.set()
    second.go.set()
    for run in runs:
        run.join(_JOIN_SECONDS)
        assert not run.is_alive(), f"{run.verb} hangs"
    doorman.leave()
    closed = "close" in (gate.held, gate.other)
    for run in runs:
        _check_error(run, closed=closed, fault=gate.fault)
    if not closed:
        _go_on(session)
    check_cut(disk, session, once=once)
    if not closed:
        # The handle itself reads on, too, from whatever files it has by now.
        session.queue.info()
        session.take(1_000)
    session.queue.close()
    assert disk.left_open.files == 0, f"{disk.left_open.files} files are left open"


def _wait_for_one_of(reached: threading.Event, run: Run, seconds: float = _JOIN_SECONDS) -> None:
    """Waits until a thread is held or has ended, or the time is up."""
    deadline = time.monotonic() + seconds
    while not reached.wait(0.001) and run.is_alive() and time.monotonic() < deadline:
        pass


def _go_on(session: Session) -> None:
    """Puts once more: nothing that happened may have ended the handle."""
    try:
        session.put()
        session.sync()
    except forebay.Closed as error:
        raise AssertionError(f"the handle has ended: {error}") from error


def _work(session: Session, verb: str, doorman: Doorman, hold: Hold, *, put: bool = False) -> None:
    """Runs a verb, held somewhere; `put`: then puts and syncs, and puts before if it is held."""
    if put and hold.point >= 0:
        session.put()
    doorman.watch(hold)
    session.kind.verbs()[verb](session)
    if put and verb != "close":
        session.put()
        session.sync()


def _check_error(run: Run, *, closed: bool, fault: str) -> None:
    error = run.error
    if error is None or (closed and isinstance(error, forebay.Closed)):
        return
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    expected = full and fault != "none"
    assert expected, f"{run.verb} raised {error!r}"


def check_cut(
    disk: SlowDisk,
    session: Session,
    *,
    chance: float = 0.0,
    once: bool = True,
    patience: float = 0.0,
) -> int:
    """Cuts the power, opens the queue again and takes the sum; gives how many values are there."""
    promises = session.ledger.promises(power_cut=True)
    after = disk.cut(chance)
    kind = session.kind
    policy = session.queue.options.sync
    queue: Any = kind.open(session.path, filesystem=after, sync=policy, background=False)
    try:
        found = kind.find_rest(queue)
    finally:
        queue.close()
    session.ledger.check(found, promises, ordered=kind.ordered, once=once, patience=patience)
    return len(found.values)
