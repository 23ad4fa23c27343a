"""Bugs that are planted in the forwarder: the hunts of this suite find each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay import Log, OutputManager
from forebay.forward import http, state
from forebay.forward.forwarder import Forwarder, Piece
from forebay.forward.function import FunctionOutput
from forebay.forward.http import HttpOutput
from forebay.forward.outputs import Again, Answer, Delivered, Refused
from forebay.forward.state import Cut, Settled, State, read_state
from tests.counting import Count
from tests.support.forwarding import (
    FAST,
    POISON,
    Taker,
    check_holds,
    forward_all,
    run_killed,
    state_of,
)
from tests.support.planting import Broken, Patch, check_caught, check_control, each
from tests.support.receiver import Receiver
from tests.support.values import numbered
from tests.support.waiting import wait_until

COUNT = 100


def filled(folder: Path, *, poison: bool = False) -> Log:
    values = numbered(COUNT)
    for number in (5, 41, 42) if poison else ():
        values[number] += POISON
    log = Log(folder / "q")
    log.append_many(values)
    return log


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Broken(f"{what}: {found!r:.300} instead of {wanted!r:.300}")


def hunt_outage(folder: Path) -> None:
    """Stops while the output is away, and goes on when it is back."""
    with filled(folder) as log:
        taker = Taker(answers=[Again("away")] * 20)
        with OutputManager(log, taker, **FAST):
            wait_until(lambda: not taker.answers, 5)
        taker.answers.clear()
        forward_all(log, taker)
        expect(taker.values, numbered(COUNT), "the records that arrived")
    check_holds(folder / "q")


def hunt_repeats(folder: Path) -> None:
    """The answers get lost: each batch is sent twice."""
    with filled(folder) as log:
        taker = Taker()
        lost = itertools.cycle([True, False])

        def send(batch: Any) -> Answer:
            answer = taker(batch)
            return Again("the answer was lost") if next(lost) else answer

        forward_all(log, FunctionOutput(send, takes_key=True))
        expect(taker.values, numbered(COUNT), "the records that arrived")


def hunt_poison(folder: Path) -> None:
    """Exactly the poison is set aside, once."""
    with filled(folder, poison=True) as log:
        taker = Taker()
        settled = forward_all(log, taker).settled
        expect(len(taker.values), COUNT - 3, "the records that arrived")
        expect((settled.delivered, settled.set_aside), (COUNT - 3, 3), "the counts")
    check_holds(folder / "q")
    expect(state.refused_offsets(str(state_of(folder / "q"))), [5, 41, 42], "what was set aside")


def hunt_kills(folder: Path) -> None:
    """Kills at each of the first points; what was set aside is there once, and the sums hold."""
    with filled(folder, poison=True):
        pass

    def run() -> None:
        with Log(folder / "q") as log:
            forward_all(log, Taker())

    for seed in range(16):
        if run_killed(run, seed, 24):
            break
        if (state_of(folder / "q") / "cuts").exists():
            check_holds(folder / "q")
    run()
    check_holds(folder / "q")
    expect(state.refused_offsets(str(state_of(folder / "q"))), [5, 41, 42], "what was set aside")


def hunt_cuts(folder: Path) -> None:
    """What is being sent was written down, as it is sent."""
    with filled(folder, poison=True) as log:

        def take(batch: Any) -> Answer:
            found = read_state(state_of(folder / "q"))
            if found is None or batch.key not in [cut.key(found.queue) for cut in found.cuts]:
                raise KeyboardInterrupt(f"{batch.key} was not written down")
            return Taker()(batch)

        try:
            forward_with_interrupts(log, take)
        except KeyboardInterrupt as error:
            raise Broken(str(error)) from None


def forward_with_interrupts(log: Log, take: Callable[[Any], Answer]) -> None:
    """Forwards so that what `take` raises ends it."""
    raised: list[BaseException] = []

    def send(batch: Any) -> Answer:
        try:
            return take(batch)
        except KeyboardInterrupt as error:
            raised.append(error)
            return Delivered()

    forward_all(log, send)
    if raised:
        raise raised[0]


def hunt_drops(folder: Path) -> None:
    """What was dropped is counted."""
    options: Any = {"segment_bytes": 1000, "max_bytes": 3000, "when_full": "drop_oldest"}
    with Log(folder / "q", **options) as log:
        forward_all(log, Taker())
        for value in numbered(COUNT):
            log.append(value)
        forward_all(log, Taker())
    check_holds(folder / "q")


def hunt_http(folder: Path, receiver: Receiver) -> None:
    """An answer that is no delivery is none."""
    path = folder.name
    receiver.script(path, script=["403", "die-after", "404", "short-answer", "401"])
    with filled(folder) as log:
        forward_all(log, HttpOutput(receiver.url(path), timeout_seconds=5))
    found = receiver.summary(path)
    expect((found["records"], found["requests"]), (COUNT, 5 + COUNT // 20), "what arrived")


def commit_before_the_answer(patch: Patch) -> None:
    def save(self: State, settled: Settled, inner: Any = State.save) -> None:
        ends = [cut.end for cut in settled.cuts]
        inner(self, replace(settled, place=max([settled.place, *ends]), cuts=()))

    patch.setattr(State, "save", save)


def refusal_counts_as_delivery(patch: Patch) -> None:
    patch.setattr(Forwarder, "_refuse", lambda self, piece, answer: self._count(piece))


def status_of_4xx_is_delivery(patch: Patch) -> None:
    def judge(status: int, headers: Any, words: bytes, inner: Any = http.judge) -> Answer:
        return Delivered() if status < 500 else inner(status, headers, words)

    patch.setattr(http, "judge", judge)


def key_changes_on_a_repeat(patch: Patch) -> None:
    numbers = itertools.count()
    patch.setattr(Cut, "key", lambda self, queue: f"{queue}/{self.first}/{next(numbers)}")


def poison_takes_its_neighbours(patch: Patch) -> None:
    def refuse(self: Forwarder, piece: Piece, answer: Refused) -> None:
        for record in piece.records:
            self._set_aside(piece, record, answer.reason)
        piece.refused = len(piece.records)
        self._count(piece)

    patch.setattr(Forwarder, "_refuse", refuse)


def there_is_a_last_attempt(patch: Patch) -> None:
    def fail(self: Forwarder, piece: Piece, *rest: Any, inner: Any = Forwarder._fail) -> None:
        inner(self, piece, *rest)
        if piece.attempts > 3:
            self._count(piece)

    patch.setattr(Forwarder, "_fail", fail)


def crashes_set_aside_again(patch: Patch) -> None:
    patch.setattr(state, "_added_since", lambda path, end: [])


def cuts_are_not_written(patch: Patch) -> None:
    def launch(self: Forwarder, inner: Any = Forwarder._launch) -> None:
        save = self._save
        self._save = lambda: None  # type: ignore[method-assign]  # the bug
        try:
            inner(self)
        finally:
            self._save = save  # type: ignore[method-assign]  # as it was

    patch.setattr(Forwarder, "_launch", launch)


def drops_are_not_counted(patch: Patch) -> None:
    def count(self: Forwarder, piece: Piece, inner: Any = Forwarder._count) -> None:
        if piece.gap is not None:
            piece.gap = replace(piece.gap, count=0)
        inner(self, piece)

    patch.setattr(Forwarder, "_count", count)


def answers_are_not_read(patch: Patch) -> None:
    def exchange(self: HttpOutput, body: bytes, key: str, most: int) -> Any:
        headers = {**self._headers, "Idempotency-Key": key}
        response = self._pool.urlopen(
            *("POST", self._target, body, headers), retries=False, preload_content=False
        )
        response.close()
        return response.status, response.headers, b""

    patch.setattr(HttpOutput, "_exchange", exchange)


def counts_and_place_are_apart(patch: Patch) -> None:
    def save(self: State, settled: Settled, inner: Any = State.save) -> None:
        before = self.settled
        assert before is not None
        inner(self, replace(settled, delivered=before.delivered))
        self.settled = settled

    patch.setattr(State, "save", save)


BUGS = {
    "commit before the answer": (commit_before_the_answer, hunt_outage),
    "a refusal counts as delivery": (refusal_counts_as_delivery, hunt_poison),
    "the key changes on a repeat": (key_changes_on_a_repeat, hunt_repeats),
    "poison takes its neighbours": (poison_takes_its_neighbours, hunt_poison),
    "there is a last attempt": (there_is_a_last_attempt, hunt_outage),
    "crashes set aside again": (crashes_set_aside_again, hunt_kills),
    "cuts are not written": (cuts_are_not_written, hunt_cuts),
    "drops are not counted": (drops_are_not_counted, hunt_drops),
    "counts and place are apart": (counts_and_place_are_apart, hunt_kills),
}
HTTP_BUGS = {
    "a 4xx is taken for delivery": (status_of_4xx_is_delivery, hunt_http),
    "answers are not read": (answers_are_not_read, hunt_http),
}


@pytest.mark.slow
@each(BUGS)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Count, bug: Any
) -> None:
    check_caught(bug, monkeypatch, record_property, tmp_path)


@pytest.mark.slow
@each(HTTP_BUGS)
def test_a_planted_bug_of_http_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Count,
    bug: Any,
    receiver: Receiver,
) -> None:
    plant, hunt = bug

    check_caught(
        (plant, lambda place: hunt(place, receiver)), monkeypatch, record_property, tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize("hunt", sorted({hunt for _, hunt in BUGS.values()}, key=str))
def test_the_hunts_find_nothing_without_a_bug(tmp_path: Path, hunt: Any) -> None:
    check_control((commit_before_the_answer, hunt), tmp_path)


@pytest.mark.slow
def test_the_hunt_by_http_finds_nothing_without_a_bug(tmp_path: Path, receiver: Receiver) -> None:
    bug = (commit_before_the_answer, lambda place: hunt_http(place, receiver))

    check_control(bug, tmp_path)
