"""Verbs: steps that a thread drives, those who wait in lines, and loans."""

from __future__ import annotations

import inspect
import threading
import time
from contextlib import AbstractContextManager

import pytest

from forebay.queues.shared.signal import Seat, Signal
from forebay.queues.shared.verbs import Loan, News, Run, Steps, Work, lends, run, shortcut, verb
from forebay.storage.commit import Alarm, GroupCommit, Ticket
from tests.queues.helpers import wait_until


class Box:
    """A queue of numbers in memory, with the verbs that a queue has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changes = Signal(self.lock)
        self.commit = GroupCommit(lambda: 2**62, 0)
        self.numbers: list[int] = []
        self.tries = 0

    @verb
    def put(self, number: int) -> Steps[int]:
        """Puts a number and returns how many there are."""
        with self.lock:
            self.numbers.append(number)
            count = len(self.numbers)
            self.changes.announce()
        yield Ticket(self.commit, count)
        return count

    @verb
    def get(self, *, timeout: float = 0.0) -> Steps[int | None]:
        """Takes the first number; None if there was none in time."""
        give_up_at = time.monotonic() + timeout
        while True:
            with self.lock:
                self.tries += 1
                if self.numbers:
                    return self.numbers.pop(0)
            left = give_up_at - time.monotonic()
            if left <= 0:
                return None
            yield News(self.changes, left, "items")

    @shortcut
    def swap(self, number: int, *, _run: Run[int | None] = run) -> int | None:
        """Puts a number and takes the first: the same if there is none before it."""
        self.tries += 1
        return _run(self._swap(number)) if self.numbers else number

    def _swap(self, number: int) -> Steps[int | None]:
        yield from Box.put.steps(self, number)  # type: ignore[attr-defined]  # by `verb`
        return self.get()

    @lends
    def take(self) -> Steps[Loan[int]]:
        """Lends the first number out."""
        number = yield Work(lambda: self.numbers.pop(0))
        return _Number(self, number)

    @verb
    def careful(self) -> Steps[None]:
        """Gives back what it has taken if it does not become durable."""
        with self.lock:
            number = self.numbers.pop(0)
        try:
            yield Ticket(GroupCommit(_fail, 0), 1)
        except BaseException:
            with self.lock:
                self.numbers.insert(0, number)
            raise


class _Number:
    def __init__(self, box: Box, value: int) -> None:
        self._box = box
        self.value = value

    def finish(self) -> Steps[None]:
        return
        yield

    def give_back(self, error: BaseException) -> Steps[None]:
        self._box.numbers.insert(0, self.value)
        return
        yield


def _fail() -> int:
    raise OSError(5, "the disk")


def test_a_verb_returns_what_its_steps_return() -> None:
    box = Box()

    assert box.put(7) == 1
    assert box.commit.syncs == 1
    assert box.get() == 7
    assert box.get() is None


def test_a_verb_is_typed_and_documented_as_a_plain_method() -> None:
    signature = inspect.signature(Box.get)

    assert str(signature) == "(self, *, timeout: 'float' = 0.0) -> 'int | None'"
    assert Box.get.__doc__ == "Takes the first number; None if there was none in time."
    assert inspect.signature(Box.take).return_annotation == "AbstractContextManager[int]"
    assert isinstance(Box().take(), AbstractContextManager)


def test_a_shortcut_and_its_steps_are_one_method_with_one_signature() -> None:
    box = Box()
    steps = Box.swap.steps  # type: ignore[attr-defined]  # by `shortcut`

    quick = [box.swap(1), run(steps(box, number=2))]
    box.numbers = [3]
    slow = [box.swap(4), run(steps(box, 5))]

    assert (quick, slow) == ([1, 2], [3, 4])
    assert (box.tries, box.numbers, box.commit.syncs) == (6, [5], 1)
    assert str(inspect.signature(Box.swap)) == "(self, number: 'int') -> 'int | None'"
    assert inspect.signature(Box.swap) == inspect.signature(steps)


def test_a_shortcut_must_say_what_drives_the_long_way() -> None:
    def put(box: Box, number: int) -> int:
        return number

    with pytest.raises(TypeError, match="put: the last parameter must be `_run`, which is `run`"):
        shortcut(put)


def test_a_change_wakes_the_first_of_a_line_and_each_who_leaves_the_next() -> None:
    box = Box()
    taken: list[int | None] = []
    threads = [threading.Thread(target=lambda: taken.append(box.get(timeout=60))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: box.tries >= 16)  # Each looks again when it has its seat.
    with box.lock:
        box.numbers += range(8)
        box.changes.announce()
    for thread in threads:
        thread.join()

    assert sorted(taken, key=str) == list(range(8))
    assert not box.changes.is_watched


def test_a_change_wakes_one_of_a_thousand() -> None:
    lock = threading.Lock()
    signal = Signal(lock)
    alarms = [Alarm() for _ in range(1000)]
    seats = [Seat(signal, alarm, "items") for alarm in alarms]
    for seat in seats:
        seat.join()

    with lock:
        signal.announce()

    assert [alarm.wait(0) for alarm in alarms] == [True] + [False] * 999


def test_a_seat_that_nobody_left_is_passed_over() -> None:
    signal = Signal(threading.Lock())
    gone, here = Alarm(), Alarm()
    seats = [Seat(signal, gone, "items"), Seat(signal, here, "items")]
    for seat in seats:
        seat.join()

    del gone

    assert here.wait(0), "what the one in front was woken for may be for the next"
    assert signal.is_front(seats[1])


def test_only_the_one_in_front_looks_without_a_change() -> None:
    signal = Signal(threading.Lock())
    alarms = Alarm(), Alarm()
    first, second = (Seat(signal, alarm, "items") for alarm in alarms)
    first.join()
    second.join()

    assert first.seconds(give_up_in=60, look_in=1) == 1
    assert second.seconds(give_up_in=60, look_in=1) == 60


def test_a_loan_is_finished_at_the_end_and_given_back_after_an_error() -> None:
    box = Box()
    box.numbers = [1, 2]

    with box.take() as number:
        assert number == 1
    with pytest.raises(RuntimeError), box.take():
        raise RuntimeError

    assert box.numbers == [2]


def test_what_fails_is_raised_where_the_steps_wait() -> None:
    box = Box()
    box.numbers = [1, 2]

    with pytest.raises(OSError, match="the disk"):
        box.careful()

    assert box.numbers == [1, 2]


def test_those_who_are_called_back_share_a_sync_with_those_who_wait() -> None:
    held = threading.Event()
    syncs: list[int] = []

    def sync() -> int:
        held.wait(60)
        syncs.append(1)
        return 100

    commit = GroupCommit(sync, 0)
    outcomes: list[BaseException | None] = []
    for end in (1, 2, 3):
        Ticket(commit, end).notify(outcomes.append)
    held.set()
    commit.wait(4)

    assert wait_until(lambda: len(outcomes) == 3)
    assert outcomes == [None] * 3
    assert len(syncs) <= 2


def test_those_who_are_called_back_learn_what_failed() -> None:
    commit = GroupCommit(_fail, 0)
    outcomes: list[BaseException | None] = []

    Ticket(commit, 1).notify(outcomes.append)
    assert wait_until(lambda: bool(outcomes))
    Ticket(commit, 1).notify(outcomes.append)
    assert wait_until(lambda: len(outcomes) == 2)

    assert [str(outcome) for outcome in outcomes] == ["[Errno 5] the disk"] * 2


def test_steps_that_are_given_up_are_closed() -> None:
    ended: list[type[BaseException]] = []

    def steps() -> Steps[None]:
        try:
            yield Work(lambda: None)
        except GeneratorExit as error:
            ended.append(type(error))
            raise

    begun = steps()
    next(begun)
    begun.close()

    assert ended == [GeneratorExit]
    with pytest.raises(StopIteration):
        next(begun)
    assert run(_nothing()) is None


def _nothing() -> Steps[None]:
    return
    yield
