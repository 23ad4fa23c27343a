"""Every public verb in the child of a fork, whatever the parent's threads were doing.

A thread of the parent is held in the middle of a verb, which may hold any lock; the child is made
then. There every call raises `Closed` at once, and the parent goes on.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.kinds import EACH, KINDS
from tests.kinds.session import Session
from tests.threads.gates import Doorman, Hold, Run, find_points, open_session

_SECONDS = 3
HELD = ("put", "put_many", "take", "sync", "adopt", "freeze", "merge", "trim")
SHARED: dict[str, tuple[Any, ...]] = {"sync": (), "flush": (), "maintain": (), "info": ()}
CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "log": {
        "append": (b"x",),
        "append_many": ([b"x"],),
        "append_encoded": (b"\1\0\0\0x", 1),
        "post": (b"x",),
        "put": (b"x",),
        "put_many": ([b"x"],),
        "consumer": ("other",),
        "forget_consumer": ("taker",),
        "trim": (),
        "adopt": (),
    },
    "fifo": {
        "push": (b"x",),
        "push_many": ([b"x"],),
        "push_encoded": (b"\1\0\0\0x", 1),
        "post": (b"x",),
        "put": (b"x",),
        "put_many": ([b"x"],),
        "put_nowait": (b"x",),
        "get": (),
        "get_nowait": (),
        "pop": (),
        "pop_many": (3,),
        "peek": (),
        "dead": (),
    },
    "beats": {
        "post": ({},),
        "put": ({},),
        "put_many": ([{}],),
        "put_encoded": (b"\1\0\0\0x", 1),
        "read": (3,),
    },
    "deadline": {
        "enqueue": (b"x",),
        "enqueue_many": ([b"x"],),
        "post": (b"x",),
        "put": (b"x",),
        "put_many": ([b"x"],),
        "dequeue": (),
        "dequeue_many": (3,),
        "kick": (1,),
        "peek": (),
        "browse": (),
        "get": (1,),
        "delete": (1,),
        "freeze": (),
        "merge": (),
    },
}
# Of an item that the parent was given before.
ITEM_CALLS = ("release", "requeue", "touch", "bury")
# What ends it, and what only looks.
NO_VERBS = {"close", "full", "empty", "qsize", "reclaim", "capacity_for"}
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(verbs: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Forks, tries the verbs in the child, and returns what each returned or raised there.

    The one that hangs, and those after it, say "hangs".
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for name, verb in verbs.items():
                signal.alarm(_SECONDS)
                try:
                    text = f"returned {verb()!r}"
                except BaseException as error:
                    text = f"{type(error).__name__}: {error}"
                os.write(writing, (json.dumps([name, text]) + "\n").encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = dict(json.loads(line) for line in pipe)
    os.waitpid(child, 0)
    return {name: said.get(name, "hangs") for name in verbs}


def said_in_children(kind: str, policy: str, held: str, point: int) -> dict[str, str]:
    """Holds a verb in the parent, and gives what each other verb says in a child."""
    disk, session = open_session(kind, policy)
    verbs = public_verbs(session)
    doorman, hold = Doorman(), Hold(point)
    disk.on_visit = doorman.visit

    def work() -> None:
        doorman.watch(hold)
        KINDS[kind].verbs()[held](session)

    run = Run(held, work)
    run.start()
    while run.is_alive() and not hold.reached.wait(0.001):
        pass
    said = in_child(verbs)
    hold.go.set()
    run.join(10)
    assert run.error is None
    session.put()
    session.queue.close()
    return said


def public_verbs(session: Session) -> dict[str, Callable[[], object]]:
    """The calls themselves: a child must not touch the ledger's or the disk's own locks."""
    queue: Any = session.queue
    calls = {**SHARED, **CALLS[session.kind.name]}
    verbs: dict[str, Callable[[], object]] = {
        name: partial(getattr(queue, name), *values) for name, values in calls.items()
    }
    if session.kind.name == "log":
        consumer = session.state["consumer"]
        verbs["consumer.read"] = consumer.read
        verbs["consumer.commit"] = consumer.commit
        verbs["consumer.seek"] = partial(consumer.seek, "earliest")
    elif session.kind.name == "beats":
        batch = queue.read(1)
        verbs["batch.ack"], verbs["batch.nack"] = batch.ack, batch.nack
    elif session.kind.name == "deadline":
        item = queue.dequeue()
        verbs |= {name: partial(getattr(queue, name), item) for name in ITEM_CALLS}
        verbs["release_many"] = partial(queue.release_many, [item])
    if hasattr(queue, "take"):
        verbs["take"] = lambda: queue.take().__enter__()
    if hasattr(queue, "take_many"):
        verbs["take_many"] = lambda: queue.take_many(3).__enter__()
    return verbs


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_verb_is_tried(kind: str) -> None:
    _, session = open_session(kind, "os")
    public = inspect.getmembers(type(session.queue), inspect.isfunction)

    missing = {name for name, _ in public if not name.startswith("_")}
    missing -= {*public_verbs(session), *NO_VERBS}
    session.queue.close()

    assert missing == set()


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
