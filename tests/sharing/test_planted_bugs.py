"""Bugs that are planted in a server, and the hunts that find them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forebay import Empty, ForebayError, Locked
from forebay.client.finding import bind
from forebay.serve.driving import Task
from forebay.serve.holding import OneQueue
from forebay.serve.limits import Limits
from forebay.serve.server import Server
from forebay.serve.session import Session
from forebay.wire.frames import FrameReader
from forebay.wire.messages import Status
from tests.counting import Count
from tests.support import planting
from tests.support.planting import Broken, Bug, Patch
from tests.support.raw_clients import RawClient, request, sized

pytestmark = [pytest.mark.slow]
REQUESTS, HELD, FRAME_BYTES, BATCH = 8, 8, 10_000, 50
LIMITS = Limits(
    requests=REQUESTS,
    held=HELD,
    frame_bytes=FRAME_BYTES,
    batch_records=BATCH,
    stalled_seconds=1.0,
)
# Sessions that a bug keeps from being collected.
kept: list[Session] = []
# How long what must come back may take: without a bug it is there at once.
SECONDS = 1.5


@contextmanager
def served(path: Path) -> Iterator[None]:
    """Runs a server in a fork of this process, with what was planted here."""
    path.mkdir()
    directory = os.open(path, os.O_PATH)
    listener = bind(directory)
    child = os.fork()
    if child == 0:
        try:
            Server(directory, listener, OneQueue(directory), LIMITS).run()
        finally:
            os._exit(1)
    listener.close()
    os.close(directory)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def broken_unless(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def comes_back(client: RawClient, verb: str, *arguments: Any, target: int) -> None:
    """Asks until there is something: what a client held must come back when it is gone."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            if client.ask(verb, *arguments, target=target) is not None:
                return
        except (Empty, Locked):
            pass
        broken_unless(time.monotonic() < end, "what a client held did not come back")
        time.sleep(0.01)


def hunt_for_loans(path: Path) -> None:
    with served(path), RawClient(path) as good:
        mine = good.open()
        good.ask("push", b"x", target=mine)
        with RawClient(path) as gone:
            gone.ask("take", 1, target=gone.open())
        comes_back(good, "popping", 1, 0, target=mine)


def hunt_for_leases(path: Path) -> None:
    with served(path), RawClient(path) as good:
        mine = good.open("deadline")
        good.ask("enqueue", b"x", target=mine)
        with RawClient(path) as gone:
            gone.ask("dequeue", target=gone.open("deadline"))
        comes_back(good, "dequeue", target=mine)


def hunt_for_leases_that_stay(path: Path) -> None:
    with served(path), RawClient(path) as good:
        mine = good.open("deadline")
        good.ask("enqueue", b"x", target=mine)
        with RawClient(path) as gone:
            gone.ask("dequeue", target=gone.open("deadline"), lease_seconds=600)
        time.sleep(0.3)
        broken_unless(good.ask("dequeue", target=mine) is None, "a lease that stays has ended")


def hunt_for_names(path: Path) -> None:
    with served(path), RawClient(path) as good:
        mine = good.open("log")
        with RawClient(path) as gone:
            gone.ask("consumer", "c", target=gone.open("log"))
        comes_back(good, "consumer", "c", target=mine)


def hunt_for_late_cancels(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open()
        client.ask("push", b"x", target=queue)
        popping = client.begin("popping", 1, 0, target=queue)
        client.result(popping)
        client.tell("cancel", popping)
        comes_back(client, "popping", 1, 0, target=queue)


def hunt_for_answers(path: Path) -> None:
    """Counts the answers to a wait that is cancelled: there must be one."""
    with served(path), RawClient(path) as client:
        queue = client.open()
        for number in range(50, 60):
            client.send(request("popping", 1, 60, number=number, target=queue))
            client.tell("cancel", number)
            said = client.answer(number)
            broken_unless(said.status == Status.CANCELLED, "a wait was not cancelled")
            client.ask("size", target=queue)
            broken_unless(client.counts[number] == 1, "a request was answered twice")


def hunt_for_durability(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open("log")
        for _ in range(5):
            offset = client.ask("append", b"x", target=queue)
            durable = client.ask("durable", target=queue)
            broken_unless(durable > offset, "a record was acknowledged before it was durable")


def hunt_for_order(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open()
        numbers = [client.begin("push", b"%d" % each, target=queue) for each in range(7)]
        client.results(numbers)
        popped = [client.pop(queue) for _ in range(7)]
        broken_unless(popped == [b"%d" % each for each in range(7)], "a client's order was lost")


def hunt_for_the_limit_of_requests(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open()
        for _ in range(REQUESTS):
            client.begin("popping", 1, 60, target=queue)
        last = client.begin("size", target=queue)
        broken_unless(client.answer(last).status == Status.FAILED, "one request too many")


def hunt_for_the_limit_of_things(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open()
        for _ in range(HELD - 1):
            client.ask("__iter__", target=queue)
        answer = client.answer(client.begin("__iter__", target=queue))
        broken_unless(answer.status == Status.FAILED, "one thing too many")


def hunt_for_the_limit_of_messages(path: Path) -> None:
    with served(path), RawClient(path) as client:
        client.send(sized(b"", FRAME_BYTES + 1))
        client.send(request("hello", 1, 1, "0"))
        said = client.ended_with()
        broken_unless(said is not None and "at most 10000" in str(said.result), "no limit")


def hunt_for_the_limit_of_batches(path: Path) -> None:
    with served(path), RawClient(path) as client:
        queue = client.open()
        try:
            client.ask("push_many", [b"x"] * (BATCH + 1), target=queue)
        except ForebayError:
            return
        raise Broken("one record too many")


def replace(patch: Patch, owner: Any, name: str, made: Callable[..., Any]) -> None:
    """Replaces a method by one that gets the old one first."""
    patch.setattr(owner, name, made(getattr(owner, name)))


def keeps_loans(patch: Patch) -> None:
    def keep(self: Session) -> None:
        kept.append(self)

    patch.setattr(Session, "_give_all_back", keep)


def forgets_leases(patch: Patch) -> None:
    patch.setattr(Session, "_note_leases", lambda self, asked, result: None)


def ends_every_lease(patch: Patch) -> None:
    def note(old: Any) -> Any:
        def noted(self: Any, asked: Any, result: Any) -> None:
            asked.keywords.pop("lease_seconds", None)
            old(self, asked, result)

        return noted

    replace(patch, Session, "_note_leases", note)


def notes_no_undoing(patch: Patch) -> None:
    patch.setattr(Session, "_note", lambda self, *arguments: None)


def answers_twice(patch: Patch) -> None:
    def done(old: Any) -> Any:
        def answered(self: Any, asked: Any, task: Any, result: Any, error: Any) -> None:
            old(self, asked, task, result, error)
            if task.cancelled:
                old(self, asked, task, result, error)

        return answered

    replace(patch, Session, "_done", done)


def answers_before_durable(patch: Patch) -> None:
    def must_wait(old: Any) -> Any:
        def waits(self: Any, wait: Any) -> bool:
            if hasattr(wait, "is_settled"):
                return False
            return bool(old(self, wait))

        return waits

    replace(patch, Task, "_must_wait", must_wait)


def begins_the_last_first(patch: Patch) -> None:
    def begin(old: Any) -> Any:
        def begun(self: Any, asked: Any) -> None:
            if asked.verb == "push":
                self._loop.later(0.01 / (asked.id % 10 + 1), partial(old, self, asked))
            else:
                old(self, asked)

        return begun

    replace(patch, Session, "_begin", begin)


def one_more(name: str) -> Callable[[Patch], None]:
    """Plants a limit that is off by one: the server reads one more than it was given."""

    def plant(patch: Patch) -> None:
        given = vars(Limits)[name].__get__

        def read(self: Limits) -> Any:
            return given(self, Limits) + 1

        patch.setattr(Limits, name, property(read))

    return plant


def measures_no_frame(patch: Patch) -> None:
    def made(old: Any) -> Any:
        def begun(self: Any, bytes_max: int = 0) -> None:
            old(self)

        return begun

    replace(patch, FrameReader, "__init__", made)
    unbounded = property(lambda self: 2**32, lambda self, to: None)
    patch.setattr(FrameReader, "bytes_max", unbounded, raising=False)


def counts_no_batch(patch: Patch) -> None:
    patch.setattr("forebay.serve.session.batch_count", lambda data: 0)


BUGS: dict[str, Bug] = {
    "a loan is kept when its client is gone": (keeps_loans, hunt_for_loans),
    "a lease is kept when its client is gone": (forgets_leases, hunt_for_leases),
    "a lease that stays ends with its client": (ends_every_lease, hunt_for_leases_that_stay),
    "the name of a consumer is kept": (keeps_loans, hunt_for_names),
    "a pop cannot be cancelled after its answer": (notes_no_undoing, hunt_for_late_cancels),
    "a cancelled request is answered twice": (answers_twice, hunt_for_answers),
    "an answer comes before it is durable": (answers_before_durable, hunt_for_durability),
    "requests are carried out in another order": (begins_the_last_first, hunt_for_order),
    "one request too many is begun": (one_more("requests"), hunt_for_the_limit_of_requests),
    "one thing too many is held": (one_more("held"), hunt_for_the_limit_of_things),
    "a message may be of any size": (measures_no_frame, hunt_for_the_limit_of_messages),
    "a message may be a byte too long": (one_more("frame_bytes"), hunt_for_the_limit_of_messages),
    "a batch may have one too many": (one_more("batch_records"), hunt_for_the_limit_of_batches),
    "a batch may be of any size": (counts_no_batch, hunt_for_the_limit_of_batches),
}


@planting.each(BUGS)
def test_every_planted_bug_is_caught(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, record_property: Count, tmp_path: Path
) -> None:
    planting.check_caught(bug, monkeypatch, record_property, tmp_path / "q")


@planting.each(BUGS)
def test_the_same_hunt_finds_nothing_without_the_bug(bug: Bug, tmp_path: Path) -> None:
    planting.check_control(bug, tmp_path / "q")
