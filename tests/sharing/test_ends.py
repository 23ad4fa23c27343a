"""How servers and clients end, and what the others see of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Closed, Empty, ServerGone
from forebay.client.finding import IDLE_VARIABLE
from tests.kinds import KINDS, POLICIES, Kind
from tests.support.clients import peers
from tests.support.servers import is_locked, server_pid
from tests.support.values import numbered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# What a peer holds from one call to the next.
held: dict[str, Any] = {}


def kill_server(path: Path) -> None:
    pid = server_pid(path / "server.log")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_locked(path / "server.log"))


@EACH_KIND
@pytest.mark.parametrize("sync", POLICIES)
def test_the_next_call_starts_a_server_that_was_killed(
    tmp_path: Path, kind: Kind, sync: str
) -> None:
    values = numbered(30)
    with kind.queue(tmp_path / "q", shared=True, sync=sync) as queue:
        for round in range(3):
            for value in values[round * 10 : round * 10 + 10]:
                kind.put(queue, value)
            kill_server(tmp_path / "q")
        assert queue.options.sync == sync
        found = kind.drain(queue)

    assert found == values


def test_a_call_that_waits_as_its_server_is_killed_raises(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def wait(fifo: forebay.Fifo) -> None:
        try:
            fifo.pop(timeout=60)
        except ServerGone as error:
            raised.append(error)

    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        waiters = [threading.Thread(target=wait, args=[fifo]) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        time.sleep(0.2)
        kill_server(tmp_path / "q")
        for waiter in waiters:
            waiter.join(30)
        fifo.push(b"x")
        found = fifo.pop()

    assert len(raised) == 3
    assert "the next call starts another server" in str(raised[0])
    assert found == b"x"


def test_a_consumer_goes_on_where_it_was_after_its_server_was_killed(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q", shared=True) as log:
        log.append_many(numbered(10))
        with log.consumer("c") as consumer:
            first = consumer.read(3)
            consumer.commit()
            second = consumer.read(3)
            kill_server(tmp_path / "q")
            third = consumer.read(10)
            consumer.commit()
            saved = consumer.committed

    assert [record.value for record in first + second + third] == numbered(10)
    assert saved == 10


def test_options_survive_the_kill_of_a_server(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, sync="interval", max_bytes=50_000) as fifo:
        kill_server(tmp_path / "q")
        with pytest.raises(forebay.InvalidOption, match="max_bytes"):
            forebay.Fifo(tmp_path / "q", shared=True, max_bytes=60_000)
        fifo.push(b"x")
        assert fifo.options.max_bytes == 50_000


def test_a_server_without_clients_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IDLE_VARIABLE, "0.2")
    with peers(1) as [peer]:
        peer.do(partial(push, tmp_path / "q", b"x"))
        assert is_locked(tmp_path / "q" / "server.log")
    wait_until(lambda: not is_locked(tmp_path / "q" / "server.log"))

    assert not (tmp_path / "q" / "server.sock").exists()
    with forebay.Fifo(tmp_path / "q") as fifo:
        assert fifo.pop() == b"x"


def push(path: Path, value: bytes) -> None:
    with forebay.Fifo(path, shared=True) as fifo:
        fifo.push(value)


def take_entry(path: Path) -> bytes:
    fifo = held["queue"] = forebay.Fifo(path, shared=True)
    lending = held["lending"] = fifo.take(timeout=10)
    return lending.__enter__().value


def dequeue_item(path: Path) -> bytes:
    queue = held["queue"] = forebay.DeadlineQueue(path, shared=True)
    item = queue.dequeue(timeout=10)
    assert item is not None
    return item.value


def read_event(path: Path) -> bytes:
    queue = held["queue"] = forebay.BeatsQueue(path, shared=True)
    batch = held["batch"] = queue.read(1, timeout=10)
    value: bytes = batch.events[0].fields["value"]
    return value


def read_record(path: Path) -> bytes:
    log = held["queue"] = forebay.Log(path, shared=True)
    consumer = held["consumer"] = log.consumer("default")
    return consumer.read(1, timeout=10)[0].value


HOLDING = {
    "fifo": take_entry,
    "deadline": dequeue_item,
    "beats": read_event,
    "log": read_record,
}


@pytest.mark.parametrize("name", HOLDING)
def test_what_a_killed_client_held_comes_back(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    with kind.queue(tmp_path / "q", shared=True) as queue, peers(1) as [peer]:
        kind.put_many(queue, numbered(3))
        had = peer.do(partial(HOLDING[name], tmp_path / "q"))
        peer.kill()
        found: list[bytes] = []

        def drained() -> bool:
            found.extend(kind.drain(queue))
            return len(found) >= 3

        wait_until(drained)

    assert had == numbered(3)[0]
    assert sorted(found) == numbered(3)


def test_a_client_that_is_stopped_holds_nobody_up(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo, peers(1) as [stopped]:
        stopped.begin(partial(push_for_ever, tmp_path / "q"))
        wait_until(lambda: len(fifo) > 10)
        os.kill(stopped.pid, signal.SIGSTOP)
        began = time.monotonic()
        for number in range(200):
            fifo.push(b"mine %d" % number)
        took = time.monotonic() - began
        os.kill(stopped.pid, signal.SIGKILL)

    # It waits for no one: seconds would mean that a client can stop the others.
    assert took < 20


def push_for_ever(path: Path) -> None:
    with forebay.Fifo(path, shared=True, sync="always") as fifo:
        for number in range(10_000_000):
            fifo.push(b"%d" % number)


def push_and_note(path: Path, name: str, notes: Path) -> tuple[int, int]:
    """Pushes until told to stop; gives how many were acknowledged, and how many may be there."""
    done = unsure = 0
    with forebay.Fifo(path, shared=True) as fifo:
        while not notes.exists():
            try:
                fifo.push(b"%s %d" % (name.encode(), done + unsure))
                done += 1
            except ServerGone:
                unsure += 1
    return done, unsure


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_server_that_ends_under_load_loses_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    with peers(3) as others:
        for each, peer in enumerate(others):
            peer.begin(partial(push_and_note, tmp_path / "q", f"p{each}", tmp_path / "stop"))
        for _ in range(3):
            end_server_at_work(tmp_path / "q", number)
        (tmp_path / "stop").touch()
        results = [peer.result() for peer in others]
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        found: list[bytes] = []
        while some := fifo.pop_many(1_000):
            found += some

    for each, (done, unsure) in enumerate(results):
        mine = [int(value.split()[1]) for value in found if value.startswith(b"p%d " % each)]
        assert done > 0
        assert mine == sorted(set(mine))
        assert done <= len(mine) <= done + unsure


def end_server_at_work(path: Path, number: signal.Signals) -> None:
    with forebay.Fifo(path, shared=True) as fifo:
        before = len(fifo)
        wait_until(lambda: len(fifo) > before + 20)
        pid = server_pid(path / "server.log")
        assert pid is not None
        os.kill(pid, number)
        wait_until(lambda: server_pid(path / "server.log") != pid)


def test_a_pop_in_vain_raises_in_time(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        began = time.monotonic()
        with pytest.raises(Empty):
            fifo.pop(timeout=0.3)
        assert time.monotonic() - began >= 0.3


def test_a_close_ends_the_calls_that_wait_on_the_handle(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def wait(queue: forebay.DeadlineQueue) -> None:
        try:
            queue.dequeue(timeout=60)
        except Closed as error:
            raised.append(error)

    with forebay.DeadlineQueue(tmp_path / "q", shared=True) as other:
        queue = forebay.DeadlineQueue(tmp_path / "q", shared=True)
        waiter = threading.Thread(target=wait, args=[queue])
        waiter.start()
        time.sleep(0.2)
        queue.close()
        waiter.join(30)
        other.enqueue(b"x")
        item = other.dequeue(timeout=10)

    assert len(raised) == 1
    assert item is not None
    assert item.value == b"x"
