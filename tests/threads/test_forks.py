"""Every public verb in the child of a fork, whatever the parent's threads were doing.

A thread of the parent is held in the middle of a verb, which may hold any lock; the child is made
then. There every call raises `Closed` at once, and the parent goes on.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import pytest

from tests.support.kinds import EACH, KINDS, Session
from tests.threads.gates import Doorman, Hold, Run, find_points, open_session

_SECONDS = 3
HELD = ("put", "put_many", "take", "sync", "adopt", "freeze", "merge", "trim")
SHARED: dict[str, tuple[Any, ...]] = {"sync": (), "maintain": (), "info": ()}
CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "log": {
        "append": (b"x",),
        "append_many": ([b"x"],),
        "consumer": ("other",),
        "resolve": ("latest",),
        "trim": (),
        "adopt": (),
    },
    "fifo": {
        "push": (b"x",),
        "push_many": ([b"x"],),
        "pop": (),
        "pop_many": (3,),
        "peek": (),
        "adopt": (),
    },
    "events": {"put": ({},), "put_many": ([{}],), "read": (3,)},
    "deadline": {
        "enqueue": (b"x",),
        "enqueue_many": ([b"x"],),
        "dequeue": (),
        "peek": (),
        "browse": (),
        "get": (1,),
        "delete": (1,),
        "freeze": (),
        "merge": (),
        "adopt": (),
    },
}
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(work: Any) -> str:
    """Forks, works in the child, and gives what it returned or raised there; "hangs" if nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            try:
                text = f"returned {work()!r}"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text or "hangs"


def said_in_children(kind: str, policy: str, held: str, point: int) -> dict[str, str]:
    """Holds a verb in the parent, and gives what each other verb says in a child."""
    disk, session = open_session(kind, policy)
    doorman, hold = Doorman(), Hold(point)
    disk.on_visit = doorman.visit

    def work() -> None:
        doorman.watch(hold)
        KINDS[kind].verbs()[held](session)

    run = Run(held, work)
    run.start()
    while run.is_alive() and not hold.reached.wait(0.001):
        pass
    said = {name: in_child(verb) for name, verb in public_verbs(session).items()}
    hold.go.set()
    run.join(10)
    assert run.error is None
    session.put()
    session.queue.close()
    return said


def public_verbs(session: Session) -> dict[str, Any]:
    """The calls themselves: a child must not touch the ledger's or the disk's own locks."""
    queue: Any = session.queue
    calls: dict[str, Any] = {name: (queue, name, arguments) for name, arguments in SHARED.items()}
    for name, arguments in CALLS[session.kind.name].items():
        calls[name] = (queue, name, arguments)
    consumer = session.state.get("consumer")
    if consumer is not None:
        calls["read"] = (consumer, "read", ())
        calls["commit"] = (consumer, "commit", ())
    return {
        label: partial(getattr(owner, name), *arguments)
        for label, (owner, name, arguments) in calls.items()
    }


@pytest.mark.parametrize(("kind", "policy"), EACH)
def test_every_verb_raises_closed_in_a_child_whatever_the_parent_holds(
    kind: str, policy: str
) -> None:
    wrong: dict[str, str] = {}
    for held in HELD:
        if held in KINDS[kind].verbs():
            # The middle of a verb: it has whatever locks it takes.
            point = len(find_points(kind, policy, held)) // 2
            said = said_in_children(kind, policy, held, point)
            wrong |= {
                f"{verb} while {held} runs": text
                for verb, text in said.items()
                if not text.startswith("Closed: /q was opened before a fork")
            }

    assert wrong == {}
