"""Every kind of queue that is forwarded, and how its place moves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue, BeatsReader, DeadlineQueue, Fifo, Log, OutputManager
from forebay.clock import SystemClock
from forebay.errors import InvalidOption, ServerGone
from forebay.forward.config import config_of
from forebay.forward.forwarder import Forwarder
from forebay.forward.function import FunctionOutput
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import Again, Batch
from forebay.forward.sources import BeatsFiles
from forebay.forward.state import State
from tests.support.clocks import FakeClock
from tests.support.forwarding import FAST, POISON, Taker, check_holds, forward_all
from tests.support.servers import server_pid
from tests.support.values import numbered
from tests.support.waiting import wait_until


def events(count: int) -> list[dict[str, Any]]:
    return [{"timestamp_ns": number, "fields": {"n": number}} for number in range(count)]


def numbers_of(taker: Taker) -> list[int]:
    return [json.loads(value)["n"] for value in taker.values]


def forward_files(queue: Path, state: Path, taker: Taker, **options: Any) -> Forwarder:
    """Forwards a Beats queue by its files only."""
    source, clock = BeatsFiles(str(queue)), SystemClock()
    held = State(str(state), clock)
    forwarder = Forwarder(
        *(source, FunctionOutput(taker), held, ForwardOptions(**{**FAST, **options}), clock)
    )
    try:
        forwarder.run(until_empty=True)
    finally:
        source.close()
        held.close()
    return forwarder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_a_fifo_is_forwarded_by_lending(tmp_path: Path) -> None:
    values = numbered(300)
    values[123] += POISON
    taker = Taker()

    with Fifo(tmp_path / "q") as fifo:
        fifo.push_many(values)
        manager = forward_all(fifo, taker)
        left = len(fifo)

    assert taker.values == [value for value in values if POISON not in value]
    assert (manager.settled.delivered, manager.settled.set_aside, left) == (299, 1, 0)
    assert check_holds(tmp_path / "q").waiting == 0


def test_entries_that_were_not_taken_are_in_the_fifo_again(tmp_path: Path) -> None:
    with Fifo(tmp_path / "q") as fifo:
        fifo.push_many(numbered(100))
        with OutputManager(fifo, Taker(answers=[Again("away")] * 10**6), **FAST):
            pass
        left = len(fifo)
        proof = check_holds(tmp_path / "q")
        taker = Taker()
        forward_all(fifo, taker)

    assert left == proof.waiting == 100
    assert taker.values == numbered(100)


def test_expired_entries_are_counted_and_told(tmp_path: Path) -> None:
    clock = FakeClock()
    gaps: list[Batch] = []
    taker = Taker()

    with Fifo(tmp_path / "q", clock=clock, background=False, ttl_seconds=10) as fifo:
        output = FunctionOutput(taker, on_gap=gaps.append)
        forward_all(fifo, output, clock=clock)
        fifo.push_many(numbered(5))
        clock.ms += 60_000
        fifo.push_many([b"young"])
        manager = forward_all(fifo, output, clock=clock)

    assert taker.values == [b"young"]
    assert manager.settled.dropped == 5
    assert [batch.gap.count for batch in gaps if batch.gap] == [5]


def test_a_fifo_that_counts_attempts_is_refused(tmp_path: Path) -> None:
    with (
        Fifo(tmp_path / "q", max_attempts=3) as fifo,
        pytest.raises(InvalidOption, match="every restart would count"),
    ):
        forward_all(fifo, Taker())


def test_a_deadline_queue_is_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        DeadlineQueue(tmp_path / "q") as later,
        pytest.raises(InvalidOption, match="their leases end during an outage"),
    ):
        forward_all(later, Taker())
    with (
        pytest.raises(InvalidOption, match="deadline queue, which cannot be forwarded"),
        config_of("f", {"queue": str(tmp_path / "q"), "to": "http://localhost/"}).open(),
    ):
        pass


def test_events_are_acknowledged_by_their_owner(tmp_path: Path) -> None:
    taker = Taker()

    with BeatsQueue(tmp_path / "q", segment_bytes=2000) as queue:
        queue.put_many(events(300))
        forward_all(queue, taker, state=tmp_path / "s")
        left = len(queue)

    assert numbers_of(taker) == list(range(300))
    assert left == 0
    assert check_holds(tmp_path / "q", tmp_path / "s").waiting == 0


def test_an_event_names_its_place_whichever_way_it_is_read(tmp_path: Path) -> None:
    by_files, by_owner = Taker(), Taker()

    with BeatsQueue(tmp_path / "q", segment_bytes=2000) as queue:
        queue.put_many(events(100))
        forward_files(tmp_path / "q", tmp_path / "s", by_files)
        forward_all(queue, by_owner, state=tmp_path / "t")

    read = [[r for batch in taker.batches for r in batch.records] for taker in (by_files, by_owner)]
    assert read[0] == read[1]


def test_a_directory_that_is_not_ours_is_read_and_not_changed(tmp_path: Path) -> None:
    with BeatsQueue(tmp_path / "q", segment_bytes=2000) as queue:
        queue.put_many(events(250))
        queue.read(30).ack()
    before = snapshot(tmp_path / "q")
    taker = Taker()

    forwarder = forward_files(tmp_path / "q", tmp_path / "s", taker)

    assert numbers_of(taker) == list(range(30, 250))
    assert forwarder.settled.delivered == 220
    assert snapshot(tmp_path / "q") == before
    assert check_holds(tmp_path / "q", tmp_path / "s").records == 220


def test_reading_goes_on_at_the_place_of_the_state(tmp_path: Path) -> None:
    first, second = Taker(), Taker()

    with BeatsQueue(tmp_path / "q", segment_bytes=2000) as queue:
        queue.put_many(events(100))
        forward_files(tmp_path / "q", tmp_path / "s", first)
        queue.put_many(events(150)[100:])
        forward_files(tmp_path / "q", tmp_path / "s", second)

    assert numbers_of(first) == list(range(100))
    assert numbers_of(second) == list(range(100, 150))
    assert check_holds(tmp_path / "q", tmp_path / "s").records == 150


def test_a_damaged_event_is_a_gap_and_its_neighbours_arrive(tmp_path: Path) -> None:
    with BeatsQueue(tmp_path / "q") as queue:
        queue.put_many(events(60))
    segment = next((tmp_path / "q").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    taker = Taker()

    forwarder = forward_files(tmp_path / "q", tmp_path / "s", taker)

    with BeatsReader(tmp_path / "q", salvage=True) as reader:
        there = [event.fields["n"] for event in reader]
    assert numbers_of(taker) == there
    assert forwarder.settled.damaged == 60 - len(there) > 0
    assert check_holds(tmp_path / "q", tmp_path / "s").records == 60


MAKE: dict[str, Callable[[Path], Any]] = {
    "log": lambda path: Log(path, shared=True),
    "fifo": lambda path: Fifo(path, shared=True),
}


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("kind", MAKE)
def test_a_shared_queue_is_forwarded_past_the_end_of_its_server(tmp_path: Path, kind: str) -> None:
    taker = Taker()

    with MAKE[kind](tmp_path / "q") as queue, OutputManager(queue, taker, **FAST) as manager:
        queue.put_many(numbered(100))
        assert manager.wait_until_empty(60)
        pid = server_pid(tmp_path / "q" / "server.log")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: server_pid(tmp_path / "q" / "server.log") != pid)
        with contextlib.suppress(ServerGone):
            # One call of this process learns of it.
            len(queue)
        queue.put_many([b"after"] * 10)
        assert manager.wait_until_empty(60)
        settled = manager.settled

    assert taker.values == numbered(100) + [b"after"] * 10
    assert settled.delivered == 110
