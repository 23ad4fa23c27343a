"""A fifo as its user sees it: order, sizes, waiting, lending, peeking, reopening."""

from __future__ import annotations

import contextlib
import queue
import threading
from pathlib import Path

import pytest

import forebay
from forebay import Closed, Empty, Fifo, Full, InvalidOption, Locked, NotAQueue, RecordTooLarge
from forebay.queues.fifo.head import LENT_MAX
from tests.formats.entry_independent import read_tape
from tests.queues.fifo_helpers import open_fifo, peek_all, tape_files
from tests.queues.helpers import SYNCS, numbered, run_python, run_threads, wait_until
from tests.support.inside import sync_together, writer_of


@pytest.mark.parametrize("sync", SYNCS)
def test_entries_come_out_in_the_order_they_went_in(tmp_path: Path, sync: str) -> None:
    values = numbered(40)
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        ids = [fifo.push(value) for value in values[:20]]
        fifo.push_many(values[20:])

        popped = [fifo.pop() for _ in range(25)] + fifo.pop_many(100)

        assert popped == values
        assert ids == sorted(set(ids))
        assert fifo.pop() is None
        assert fifo.pop_many(3) == []


@pytest.mark.parametrize("sync", SYNCS)
def test_a_reopened_fifo_goes_on_where_it_was(tmp_path: Path, sync: str) -> None:
    values = numbered(30)
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        last = fifo.push_many(values[:20])
        fifo.pop_many(7)

    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        size = len(fifo)
        later = fifo.push(values[20])
        rest = fifo.pop_many(100)

    assert size == 13
    assert rest == values[7:21]
    assert last is not None
    assert later > last


def test_an_independent_decoder_reads_what_was_written_across_files(tmp_path: Path) -> None:
    values = [bytes([number]) * size for number, size in enumerate((0, 1, 967, 968, 969, 4_000, 3))]
    with open_fifo(tmp_path / "q") as fifo:
        ids = [fifo.push(value, ttl_seconds=number) for number, value in enumerate(values)]

    read = list(read_tape(tmp_path / "q"))

    assert read == list(zip(ids, range(len(values)), values, strict=True))
    assert len(tape_files(tmp_path / "q")) == 8
    assert {file.stat().st_size for file in tape_files(tmp_path / "q")} == {1_000}


@pytest.mark.parametrize("sync", SYNCS)
def test_entries_larger_than_three_files_work(tmp_path: Path, sync: str) -> None:
    values = [b"a" * 3_500, b"b", b"c" * 10_000, b"", b"d" * 999]
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        for value in values:
            fifo.push(value)
        first = fifo.pop()
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        rest = fifo.pop_many(10)

    assert [first, *rest] == values


def test_space_comes_back_by_whole_files(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(numbered(100))
        before = len(tape_files(tmp_path / "q"))
        fifo.pop_many(90)
        fifo.pop()
        after = len(tape_files(tmp_path / "q"))

    assert (before, after) == (14, 3)


def test_peek_goes_over_the_queue_and_takes_nothing(tmp_path: Path) -> None:
    values = numbered(300)
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(values[:290])
        for value in values[290:]:
            fifo.push(value)

        entries = peek_all(fifo)
        again = fifo.peek(after=entries[100].id)

        assert [entry.value for entry in entries] == values
        assert again == entries[101]
        assert len(fifo) == 300
        fifo.pop_many(150)
        assert fifo.peek(after=entries[100].id) == entries[150]
        assert fifo.peek(after=entries[-1].id) is None


def test_take_removes_on_success_and_gives_back_on_an_exception(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many([b"one", b"two", b"three"])

        with fifo.take() as entry:
            assert (entry.value, len(fifo)) == (b"one", 2)
        with contextlib.suppress(KeyError), fifo.take() as entry:
            assert entry.value == b"two"
            raise KeyError("failed")

        assert len(fifo) == 2
        assert fifo.peek(after=0) is not None
        assert fifo.pop_many(5) == [b"two", b"three"]
        with pytest.raises(Empty, match="no entry"), fifo.take():
            pass


@pytest.mark.slow
def test_entries_that_were_lent_out_when_the_process_ended_come_back_first(tmp_path: Path) -> None:
    program = """
import os, sys
from forebay import Fifo
fifo = Fifo(sys.argv[1], sync=sys.argv[2], file_bytes=1000)
fifo.push_many([b"one", b"two", b"three", b"four"])
first, second = fifo.take(), fifo.take()
first.__enter__()
with fifo.take() as done:
    assert done.value == b"two"
assert second.__enter__().value == b"three"
os._exit(1)
"""
    for sync in SYNCS:
        path = tmp_path / sync
        assert run_python(program, path, sync).returncode == 1

        with forebay.read(path, kind="fifo") as reader:
            seen = list(reader.values())
        with open_fifo(path, sync=sync) as fifo:
            assert fifo.peek() is not None
            assert (seen, fifo.pop_many(9)) == ([b"one", b"three", b"four"],) * 2


def test_takes_by_many_threads_lose_and_double_nothing(tmp_path: Path) -> None:
    done: list[bytes] = []
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(numbered(200))

        def work(number: int) -> None:
            for turn in range(1_000):
                try:
                    with fifo.take() as entry:
                        if (turn + number) % 5 == 0:
                            raise KeyError
                        done.append(entry.value)
                except KeyError:
                    continue
                except Empty:
                    return

        run_threads(4, work)

        assert sorted(done) == numbered(200)
        assert (len(fifo), fifo.info().taken) == (0, 0)


def test_a_take_waits_while_too_many_entries_are_lent_out(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(numbered(LENT_MAX + 1, 1))
        taken = [fifo.take() for _ in range(LENT_MAX)]
        for one in taken:
            one.__enter__()
        found: list[bytes] = []

        def take() -> None:
            with fifo.take() as entry:
                found.append(entry.value)

        with pytest.raises(Empty), fifo.take(timeout=0.01):
            pass
        waiting = threading.Thread(target=take)
        waiting.start()
        assert wait_until(lambda: fifo.changes.is_watched)
        before = list(found)
        taken[5].__exit__(None, None, None)
        waiting.join(60)

        assert (before, found) == ([], [b"00000128"])
        for one in [*taken[:5], *taken[6:]]:
            one.__exit__(None, None, None)
        assert len(fifo) == 0


def test_a_fifo_stands_where_a_queue_stood(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", max_bytes=2_000) as fifo:
        fifo.put(b"one")
        fifo.put_nowait(b"two")

        assert (fifo.qsize(), fifo.empty(), fifo.full()) == (2, False, False)
        assert (fifo.get(), fifo.get_nowait()) == (b"one", b"two")
        with pytest.raises(queue.Empty):
            fifo.get_nowait()
        with pytest.raises(queue.Empty):
            fifo.get(timeout=0.01)
        fifo.put(b"x" * 1_950)
        assert fifo.full()
        with pytest.raises(queue.Full):
            fifo.put_nowait(b"")
        with pytest.raises(queue.Full):
            fifo.put(b"", timeout=0.01)


def test_a_pop_that_waits_is_woken_by_a_push(tmp_path: Path) -> None:
    found: list[bytes | None] = []
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        waiting = threading.Thread(target=lambda: found.append(fifo.pop(timeout=120)))
        waiting.start()
        assert wait_until(lambda: fifo.changes.is_watched)
        fifo.push(b"at last")
        waiting.join()

        assert found == [b"at last"]
        with pytest.raises(Empty, match=r"no entry in 0\.01 s"):
            fifo.pop(timeout=0.01)


def test_a_push_into_a_full_queue_waits_for_a_pop(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os", max_bytes=2_000) as fifo:
        fifo.push(b"x" * 1_900)
        waiting = threading.Thread(target=lambda: fifo.push(b"y" * 1_000))
        waiting.start()
        assert wait_until(lambda: fifo.changes.is_watched)
        before = len(fifo)
        fifo.pop()
        waiting.join()

        assert (before, len(fifo)) == (1, 1)


@pytest.mark.parametrize("sync", SYNCS)
def test_an_empty_queue_takes_as_many_entries_as_its_capacity_says(
    tmp_path: Path, sync: str
) -> None:
    with open_fifo(tmp_path / "q", sync=sync, max_bytes=5_000, when_full="reject") as fifo:
        capacity = fifo.capacity_for(68)
        for _ in range(3):
            for number in range(capacity or 0):
                fifo.push(b"%068d" % number)
            with pytest.raises(Full, match="5000 bytes of max_bytes = 5000"):
                fifo.push(b"%068d" % 1)
            fifo.pop_many(1_000)

        assert (fifo.capacity_bytes, fifo.capacity, capacity) == (5_000, None, 50)


@pytest.mark.parametrize("sync", SYNCS)
def test_drop_oldest_drops_whole_files_and_counts_them(tmp_path: Path, sync: str) -> None:
    values = numbered(60)
    with open_fifo(tmp_path / "q", sync=sync, max_bytes=3_000, when_full="drop_oldest") as fifo:
        for value in values:
            fifo.push(value)
        dropped = fifo.info().dropped
        left = fifo.pop_many(100)

        assert dropped == 60 - len(left) > 30
        assert left == values[-len(left) :]


def test_bad_options_and_values_are_named_and_change_nothing(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", max_bytes=2_000) as fifo:
        for ttl in (-1, 2**32, 1.5, "60", True):
            with pytest.raises(
                InvalidOption, match=r"ttl_seconds = .*0 \(for ever\) to 4294967295"
            ):
                fifo.push(b"x", ttl_seconds=ttl)  # type: ignore[arg-type]
        with pytest.raises(RecordTooLarge, match="at most 1968"):
            fifo.push(b"x" * 1_969)
        with pytest.raises(TypeError, match="an entry is bytes, not str"):
            fifo.push("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an entry is bytes, not int"):
            fifo.push_many([b"good", 5])  # type: ignore[list-item]
        with pytest.raises(InvalidOption, match="count = 0"):
            fifo.pop_many(0)

        assert len(fifo) == 0
        assert fifo.push_many([]) is None
        fifo.push(bytearray(b"mutable"))
        fifo.push(memoryview(b"viewed"))
        assert fifo.pop_many(2) == [b"mutable", b"viewed"]
    with pytest.raises(InvalidOption, match=r"file_bytes = 2000: .* has files of 1000 bytes"):
        Fifo(tmp_path / "q", file_bytes=2_000)
    with pytest.raises(TypeError, match="unexpected keyword argument 'file_byte'"):
        Fifo(tmp_path / "q", file_byte=2_000)  # type: ignore[call-arg]  # that is what is tested
    with pytest.raises(InvalidOption, match="max_bytes = 1500: must be a whole number, 2000 to"):
        Fifo(tmp_path / "q", file_bytes=1_000, max_bytes=1_500)


def test_the_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    forebay.Log(tmp_path / "log").close()
    forebay.BeatsQueue(tmp_path / "events").close()
    open_fifo(tmp_path / "fifo", sync="os").close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")

    for name in ("log", "events", "other"):
        with pytest.raises(NotAQueue, match="not a fifo"):
            Fifo(tmp_path / name)
    with pytest.raises(NotAQueue, match="is a fifo, not a log"):
        forebay.Log(tmp_path / "fifo")
    with pytest.raises(NotAQueue):
        forebay.BeatsQueue(tmp_path / "fifo")
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_a_second_owner_is_refused_and_a_closed_handle_says_so(tmp_path: Path) -> None:
    fifo = open_fifo(tmp_path / "q")
    fifo.push(b"x")
    with pytest.raises(Locked):
        open_fifo(tmp_path / "q")
    fifo.close()
    fifo.close()

    for call in (fifo.pop, fifo.peek, fifo.sync, fifo.info, lambda: fifo.push(b"y")):
        with pytest.raises(Closed):
            call()
    assert repr(fifo).endswith("closed>")


def test_forebay_opens_and_reads_a_fifo_by_what_is_there(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push(b"staged")
        with forebay.read(tmp_path / "q", kind="fifo") as reader:
            live = list(reader)
        assert [entry.value for entry in live] == [b"staged"]
        assert live[0] == fifo.peek()

    with forebay.open(tmp_path / "q") as again:
        assert isinstance(again, Fifo)
        assert again.pop() == b"staged"


def test_pushes_and_pops_of_many_threads_lose_and_double_nothing(tmp_path: Path) -> None:
    popped: list[bytes] = []
    with Fifo(tmp_path / "q", sync="os", file_bytes=64_000) as fifo:

        def work(number: int) -> None:
            if number < 2:
                for value in numbered(5_000, 30, first=number * 5_000):
                    fifo.push(value)
                return
            while len(popped) < 10_000:
                one = fifo.pop()
                if one is not None:
                    popped.append(one)
                popped.extend(fifo.pop_many(3))

        run_threads(4, work)

        assert sorted(popped) == numbered(10_000, 30)
        assert len(fifo) == 0


def test_durable_pushes_of_many_threads_share_syncs(tmp_path: Path) -> None:
    with Fifo(tmp_path / "q", file_bytes=1_000_000) as fifo:
        sync_together(writer_of(fifo).commit, 16)
        run_threads(16, lambda number: [fifo.push(b"%d" % number) for _ in range(20)])

        assert (len(fifo), fifo.info().syncs) == (320, 20)


def test_the_background_thread_drains_and_syncs(tmp_path: Path) -> None:
    with Fifo(
        tmp_path / "q", sync="interval", sync_interval_seconds=0.02, file_bytes=10_000
    ) as fifo:
        fifo.push(b"soon durable")

        assert wait_until(lambda: fifo.info().durable == 1)


def test_files_are_half_the_bound_where_nothing_else_is_said(tmp_path: Path) -> None:
    with Fifo(tmp_path / "q", max_bytes=4_000) as fifo:
        assert fifo.file_bytes == 2_000

    with pytest.raises(InvalidOption, match=r"max_bytes = 3000: .* files of 2000 bytes; at least"):
        Fifo(tmp_path / "q", max_bytes=3_000)
