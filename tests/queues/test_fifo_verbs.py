"""The verbs of a fifo as steps: what they wait for, and what goes back if nobody waits any more."""

from __future__ import annotations

import inspect
import math
import struct
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from forebay import Fifo, FifoReader
from forebay.errors import Empty, Full, InvalidOption, RecordTooLarge
from forebay.kernels.entry import encode, encode_sized, measure_sized
from forebay.queues.fifo.head import LENT_MAX
from forebay.queues.shared.options import SyncPolicy
from forebay.queues.shared.verbs import News
from forebay.storage.commit import GroupCommit, Ticket
from tests.formats.entries import VERSION
from tests.queues.fifo_helpers import TwoClocks, open_fifo, peek_all
from tests.queues.helpers import numbered, wait_until
from tests.support.inside import waiters_of, writer_of

SYNCS: list[SyncPolicy] = ["always", "interval", "os"]
WAITING_VERBS = ["push", "push_many", "push_encoded", "pop", "pop_many", "take", "put", "get"]


class Cancelled(BaseException):
    """What a loop throws into the steps of a task that is cancelled."""


def steps_of(verb: Any, *arguments: Any, **keywords: Any) -> Generator[Any, Any, Any]:
    begun: Generator[Any, Any, Any] = verb.steps(*arguments, **keywords)
    return begun


def run_to(kind: type, steps: Generator[Any, Any, Any]) -> Any:
    """Drives steps to the first wait of a kind, and returns it; it settles those before it."""
    wait = next(steps)
    while not isinstance(wait, kind):
        wait.settle()
        wait = steps.send(None)
    return wait


def end_of(steps: Generator[Any, Any, Any]) -> Any:
    """Drives steps that wait no more; returns their result."""
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    return ended.value.value


def cancel(steps: Generator[Any, Any, Any]) -> None:
    with pytest.raises(Cancelled):
        steps.throw(Cancelled())


def test_every_verb_that_may_wait_has_steps_of_the_same_signature() -> None:
    for name in WAITING_VERBS:
        verb = getattr(Fifo, name)
        blocking, stepping = inspect.signature(verb), inspect.signature(verb.steps)

        assert list(blocking.parameters.values()) == list(stepping.parameters.values()), name
        assert verb.__doc__, name
    assert list(inspect.signature(Fifo.sync).parameters) == ["self"]


def test_a_push_waits_for_the_disk_under_always_alone(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "durable") as durable, open_fifo(tmp_path / "q", sync="os") as quick:
        slow, fast = steps_of(Fifo.push, durable, b"x"), steps_of(Fifo.push, quick, b"x")
        ticket = run_to(Ticket, slow)
        before = durable.pop()
        ticket.settle()
        entry_id = end_of(slow)

        assert end_of(fast) > 0
        assert before is None
        entry = durable.peek()
        assert entry is not None
        assert entry.id == entry_id


@pytest.mark.parametrize("mapped", [True, False])
def test_a_pop_that_is_cancelled_took_nothing(tmp_path: Path, mapped: bool) -> None:
    sync: SyncPolicy = "always" if mapped else "os"
    with open_fifo(tmp_path / "q", sync=sync, mapped=mapped) as fifo:
        fifo.push_many(numbered(5))
        cancelled, other = steps_of(Fifo.pop, fifo), steps_of(Fifo.pop_many, fifo, 2)
        run_to(Ticket, cancelled)
        cancel(cancelled)
        passed = steps_of(Fifo.pop, fifo)
        run_to(Ticket, passed)
        run_to(Ticket, other).settle()
        taken = end_of(other)
        cancel(passed)

        assert taken == numbered(2, first=1)
        assert [entry.value for entry in peek_all(fifo)] == [*numbered(1), *numbered(2, first=3)]
        assert (len(fifo), fifo.info().taken) == (3, 0)
        assert fifo.pop_many(9) == [*numbered(1), *numbered(2, first=3)]
        assert fifo.info().entry_bytes == 0


def test_all_who_are_cancelled_leave_the_queue_as_it_was(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", file_bytes=100_000) as fifo:
        fifo.push_many(numbered(400))
        steps = [steps_of(Fifo.pop_many, fifo, 40) for _ in range(5)]
        for each in steps:
            run_to(Ticket, each)
        for each in steps:
            cancel(each)
        rows = len(writer_of(fifo).head.lent)

        assert (rows, len(fifo)) == (0, 400)
        assert fifo.pop_many(500) == numbered(400)


def test_more_that_goes_back_than_the_head_names_comes_again_and_is_not_lost(
    tmp_path: Path,
) -> None:
    fifo = open_fifo(tmp_path / "q", file_bytes=100_000)
    fifo.push_many(numbered(400))
    many, few = steps_of(Fifo.pop_many, fifo, 300), steps_of(Fifo.pop_many, fifo, 10)
    run_to(Ticket, many)
    run_to(Ticket, few).settle()
    taken = end_of(few)
    cancel(many)
    in_order = [entry.value for entry in peek_all(fifo)]
    fifo.close()

    with open_fifo(tmp_path / "q", file_bytes=100_000) as again:
        left = again.pop_many(500)

    assert taken == numbered(10, first=300)
    assert in_order == [*numbered(300), *numbered(90, first=310)]
    assert left == numbered(400), "what was popped after them may come again"


def test_an_interrupt_in_the_wait_of_a_pop_gives_the_entry_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many(numbered(3))

        def interrupt(*_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(GroupCommit, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fifo.pop()

        assert fifo.pop_many(9) == numbered(3)


def test_the_files_of_a_pop_that_may_go_back_stay(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many(numbered(30))
        first = steps_of(Fifo.pop, fifo)
        run_to(Ticket, first)
        rest = fifo.pop_many(29)
        cancel(first)

        assert (rest, fifo.pop()) == (numbered(29, first=1), numbered(1)[0])


def test_a_pop_that_waits_while_the_queue_is_closed_has_its_entry(tmp_path: Path) -> None:
    fifo = open_fifo(tmp_path / "q")
    fifo.push_many(numbered(2))
    steps = steps_of(Fifo.pop, fifo)
    ticket = run_to(Ticket, steps)
    fifo.close()
    ticket.settle()
    value = end_of(steps)

    with open_fifo(tmp_path / "q") as again:
        assert (value, again.pop_many(9)) == (numbered(1)[0], numbered(1, first=1))


def test_a_take_that_is_cancelled_before_it_began_does_not_count(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", max_attempts=1) as fifo:
        fifo.push(b"one")
        for _ in range(3):
            steps = steps_of(Fifo.take, fifo)
            run_to(Ticket, steps)
            cancel(steps)

        assert (fifo.dead(), fifo.pop()) == ([], b"one")


def test_those_who_wait_sit_in_the_line_of_what_they_want(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os", max_entries=LENT_MAX + 1) as fifo:
        waits = [
            run_to(News, steps_of(Fifo.pop, fifo, 5)),
            run_to(News, steps_of(Fifo.get, fifo)),
            run_to(News, steps_of(Fifo.take, fifo, 5)),
        ]
        fifo.push_many(numbered(LENT_MAX + 1))
        lent = [fifo.take() for _ in range(LENT_MAX)]
        for one in lent:
            one.__enter__()
        waits += [
            run_to(News, steps_of(Fifo.push, fifo, b"x")),
            run_to(News, steps_of(Fifo.take, fifo)),
        ]
        for one in lent:
            one.__exit__(None, None, None)

    assert [wait.line for wait in waits] == ["items", "items", "items", "room", "loans"]
    assert [wait.give_up_in > 4 for wait in waits] == [True] * 5
    assert [wait.look_in for wait in waits] == [math.inf] * 5


def test_a_take_that_waits_for_a_loan_does_not_keep_a_pop_from_its_entry(tmp_path: Path) -> None:
    found: list[Any] = []

    def take() -> None:
        with fifo.take(timeout=60) as entry:
            found.append(entry.value)

    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(numbered(LENT_MAX))
        lent = [fifo.take() for _ in range(LENT_MAX)]
        for one in lent:
            one.__enter__()
        first = threading.Thread(target=take)
        first.start()
        assert wait_until(lambda: waiters_of(fifo.changes, "items") == 1)
        second = threading.Thread(target=lambda: found.append(fifo.pop(timeout=60)))
        second.start()
        assert wait_until(lambda: waiters_of(fifo.changes, "items") == 2)
        # It is for the pop: the take in front of it may not lend one more.
        fifo.push(b"for the pop")
        second.join(60)
        assert found == [b"for the pop"]
        fifo.push(b"for the take")
        for one in lent:
            one.__exit__(None, None, None)
        first.join(60)

    assert found == [b"for the pop", b"for the take"]


def test_a_push_into_a_full_queue_looks_again_when_the_oldest_entry_expires(
    tmp_path: Path,
) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", max_entries=1, clock=clock) as fifo:
        fifo.push(b"one", ttl_seconds=7)
        steps = steps_of(Fifo.push, fifo, b"two", timeout=60)
        news = run_to(News, steps)
        clock.pass_time(7_000)
        steps.send(None).settle()
        end_of(steps)

        assert news.look_in == pytest.approx(7)
        assert fifo.pop() == b"two"


def test_a_push_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", max_entries=1, clock=clock) as fifo:
        fifo.push(b"one")
        steps = steps_of(Fifo.push, fifo, b"two", timeout=3)
        news = run_to(News, steps)
        clock.pass_time(3_000)

        assert news.give_up_in == pytest.approx(3)
        with pytest.raises(Full, match="no room for 35 bytes in time; nothing was written"):
            steps.send(None)


def sized(values: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@pytest.mark.parametrize("sync", SYNCS)
def test_encoded_entries_are_those_of_push_many(tmp_path: Path, sync: SyncPolicy) -> None:
    values = [b"", b"one", b"x" * 3_000, *numbered(50)]
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        fifo.push(b"first")
        last = fifo.push_encoded(bytearray(sized(values)), len(values), ttl_seconds=60)
        nothing = fifo.push_encoded(b"", 0)
        with FifoReader(tmp_path / "q") as reader:
            entries = list(reader)

        assert [entry.value for entry in entries] == [b"first", *values]
        assert ([entry.ttl_seconds for entry in entries][1:], nothing) == ([60] * 53, None)
        assert last == entries[-1].id
        assert fifo.pop_many(99) == [b"first", *values]


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (b"", 1),
        (b"\0\0\0", 1),
        (b"\2\0\0\0x", 1),
        (b"\1\0\0\0xy", 1),
        (b"\1\0\0\0x", 0),
        (b"\1\0\0\0x", 2),
        (b"\0\0\0\0", -1),
        (b"\xff\xff\xff\xff", 1),
    ],
)
def test_encoded_entries_that_do_not_fill_the_buffer_are_refused(
    tmp_path: Path, records: bytes, count: int
) -> None:
    with open_fifo(tmp_path / "q", max_bytes=2_000) as fifo:
        with pytest.raises(InvalidOption, match=r"not -?[0-9]+ entries, each after its size"):
            fifo.push_encoded(records, count)
        with pytest.raises(RecordTooLarge):
            fifo.push_encoded(sized([b"x" * 1_990]), 1)
        with pytest.raises(Full):
            fifo.push_encoded(sized([b"x" * 1_900]) * 2, 2, timeout=0)

        assert len(fifo) == 0


def test_the_kernel_of_encoded_entries_writes_what_that_of_values_writes() -> None:
    values = [b"", b"one", b"x" * 70_000]
    records = sized(values)
    size = sum(map(len, values)) + 32 * len(values)
    buffers = bytearray(size), bytearray(size)
    rest = (65_534, 5, 7, 60, VERSION)

    assert measure_sized(records, 3) == (70_003, 70_000)
    assert encode(values, 0, 3, buffers[0], *rest) == encode_sized(records, 3, buffers[1], *rest)
    assert buffers[0] == buffers[1]
    with pytest.raises(ValueError, match="were changed"):
        encode_sized(sized([b"longer", b"one", b"x" * 70_000]), 3, buffers[1], *rest)
    with pytest.raises(ValueError, match="were changed"):
        encode_sized(sized([b"", b"one"]), 2, buffers[1], *rest)


def test_a_queue_without_a_timeout_says_that_it_is_empty(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        assert (fifo.pop(), fifo.pop_many(3)) == (None, [])
        with pytest.raises(Empty, match="no entry in 0 s"), fifo.take():
            pass
        with pytest.raises(Empty):
            fifo.pop_many(3, timeout=0)
