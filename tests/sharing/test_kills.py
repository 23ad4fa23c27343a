"""Servers and clients are killed and stopped at random under load; what each did is on record.

A record that a producer was told to be in the queue is taken once, by a consumer that finished it,
or it is there at the end. Only what a consumer was about to finish when it or the server was killed
may be in either place.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Empty, Locked, ServerGone
from tests.counting import Count
from tests.kinds import KINDS, POLICIES, Kind
from tests.sharing.posting import CAMPAIGNS
from tests.support.campaigns import FULL, seeds
from tests.support.clients import Peer
from tests.support.servers import server_pid
from tests.support.waiting import wait_until

KILLS = 6
NAMES = {
    "server": "kills of a server",
    "client": "kills of a client",
    "both": "kills of a server and a client at once",
    "pause": "clients stopped for a while",
}
# How often each comes: clients end more often than servers.
OFTEN = {"server": 5, "client": 20, "both": 2, "pause": 3}
# A consumer that waits looks this often whether it is to stop.
_PATIENCE = 0.05


def noting(path: Path) -> Callable[[str, bytes], None]:
    """Returns a function that writes a line which survives a kill of this process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda what, value: _whole(os.write(descriptor, b"%s %s\n" % (what.encode(), value)))


def _whole(count: int) -> None:
    assert count > 0


def produce(path: Path, kind: str, sync: str, name: str, stop: Path) -> None:
    """Puts numbered values; notes each before and after."""
    note = noting(path.parent / f"{name}.history")
    number = 0
    with KINDS[kind].queue(path, shared=True, sync=sync) as queue:
        while not stop.exists():
            value = b"%s-%06d" % (name.encode(), number)
            number += 1
            note("try", value)
            with contextlib.suppress(ServerGone):
                KINDS[kind].put(queue, value)
                note("put", value)


def consume(path: Path, kind: str, sync: str, name: str, stop: Path) -> None:
    """Takes records; notes what it got, what it has done, and what is gone for good."""
    note = noting(path.parent / f"{name}.history")
    with KINDS[kind].queue(path, shared=True, sync=sync) as queue:
        while not stop.exists():
            with contextlib.suppress(ServerGone, Empty, Locked), lender(queue) as lending:
                while not stop.exists():
                    with lending.take(timeout=_PATIENCE) as record:
                        value = KINDS[kind].unwrap(record)
                        note("got", value)
                        note("done", value)
                    note("gone", value)


def pop(path: Path, kind: str, sync: str, name: str, stop: Path) -> None:
    """Pops values; notes each that it was given."""
    note = noting(path.parent / f"{name}.history")
    with forebay.Fifo(path, shared=True, sync=sync) as fifo:  # type: ignore[arg-type]
        while not stop.exists():
            with contextlib.suppress(ServerGone):
                for value in fifo.pop_many(3):
                    note("gone", value)


def lender(queue: Any) -> AbstractContextManager[Any]:
    if isinstance(queue, forebay.Log):
        consumer: AbstractContextManager[Any] = queue.consumer("c")
        return consumer
    return contextlib.nullcontext(queue)


@dataclass
class Players:
    """Processes that use a queue, each with what it does; those that are killed are replaced."""

    path: Path
    kind: str
    sync: str
    stop: Path
    playing: list[tuple[Callable[..., None], Peer]] = field(default_factory=list)
    count: int = 0

    def add(self, play: Callable[..., None]) -> None:
        name = f"{play.__name__}{self.count}"
        self.count += 1
        peer = Peer()
        peer.begin(partial(play, self.path, self.kind, self.sync, name, self.stop))
        self.playing.append((play, peer))

    def kill(self, rng: random.Random) -> None:
        play, peer = self.playing.pop(rng.randrange(len(self.playing)))
        peer.kill()
        self.add(play)

    def pause(self, rng: random.Random) -> None:
        _, peer = rng.choice(self.playing)
        os.kill(peer.pid, signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(peer.pid, signal.SIGCONT)

    def kill_server(self) -> None:
        log = self.path / "server.log"
        pid = server_pid(log) if log.exists() else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self.stop.touch()
        for _, peer in self.playing:
            peer.result()


@contextlib.contextmanager
def players(
    path: Path, kind: str, sync: str, plays: list[Callable[..., None]]
) -> Iterator[Players]:
    made = Players(path, kind, sync, path.parent / "stop")
    try:
        for play in plays:
            made.add(play)
        yield made
    finally:
        for _, peer in made.playing:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)
            peer.end()


def histories(folder: Path) -> dict[str, list[bytes]]:
    """Returns the values that are on record, by what was noted."""
    found: dict[str, list[bytes]] = {"try": [], "put": [], "got": [], "done": [], "gone": []}
    for history in folder.glob("*.history"):
        for line in history.read_bytes().splitlines():
            what, value = line.split(b" ")
            found[what.decode()].append(value)
    return found


def check(kind: Kind, noted: dict[str, list[bytes]], left: list[bytes]) -> None:
    tried, put, gone = set(noted["try"]), set(noted["put"]), Counter(noted["gone"])
    assert put, "nothing was put"
    assert (set(noted["got"]) | set(left)) <= tried, "a value that nobody put"
    lost = put - set(gone) - set(noted["done"]) - set(left)
    assert not lost, f"lost: {sorted(lost)[:5]} of {len(lost)}"
    if kind.record.has_consumers:
        assert put <= set(left)
    else:
        taken = gone + Counter(left)
        twice = [value for value, count in taken.items() if count > 1]
        assert not twice, f"twice: {twice[:5]}"
    if kind.name in ("log", "fifo"):
        for name in {value.split(b"-")[0] for value in left}:
            mine = [value for value in left if value.startswith(name + b"-")]
            assert mine == sorted(mine), "out of order"


def kill_at_random(folder: Path, kind: Kind, seed: int) -> Counter[str]:
    """Runs a queue under load with kills; returns how many of which there were."""
    rng = random.Random(seed)
    path, counts = folder / "q", Counter[str]()
    # A log has one consumer of a name. A Beats queue saves the place before the first event that is
    # not acknowledged: those after it come again when its server is killed.
    consumers = 1 if kind.name in ("log", "beats") else 2
    plays = [produce, produce, *([consume] * consumers)]
    with players(path, kind.name, rng.choice(POLICIES), plays) as playing:
        wait_until(lambda: bool(histories(folder)["put"]))
        for _ in range(KILLS):
            time.sleep(rng.uniform(0, 0.4))
            [what] = rng.choices(list(OFTEN), list(OFTEN.values()))
            counts[what] += 1
            if what == "pause":
                playing.pause(rng)
            if what in ("client", "both"):
                playing.kill(rng)
            if what in ("server", "both"):
                playing.kill_server()
        time.sleep(0.3)
        playing.end()
    with kind.queue(path, shared=True) as queue:
        left = kind.drain(queue)
        while more := ([] if kind.record.has_consumers else kind.drain(queue)):
            left += more
    check(kind, histories(folder), left)
    return counts


def has_popped(folder: Path, count: int) -> bool:
    return len(histories(folder)["gone"]) > count


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("sync", POLICIES)
def test_no_kill_of_a_server_loses_what_a_pop_was_to_return(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "q"
    with players(path, "fifo", sync, [produce, produce, pop, pop]) as playing:
        for _ in range(8 if FULL else 3):
            popped = len(histories(tmp_path)["gone"])
            wait_until(partial(has_popped, tmp_path, popped + 50))
            playing.kill_server()
        playing.end()
    with forebay.Fifo(path, shared=True) as fifo:
        left = KINDS["fifo"].drain(fifo)
    noted = histories(tmp_path)

    check(KINDS["fifo"], noted, left)
    assert len(noted["gone"]) > 150


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_kill_loses_or_doubles_a_record(
    tmp_path: Path, kind: Kind, record_property: Count
) -> None:
    counts = kill_at_random(tmp_path, kind, 0)

    assert counts.total() == KILLS
    report(counts, record_property)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_kill_loses_or_doubles_a_record_for_as_long_as_it_may_take(
    tmp_path: Path, kind: Kind, record_property: Count
) -> None:
    counts = Counter[str]()
    for seed in seeds("sharing", kind.name, tests=CAMPAIGNS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        counts += kill_at_random(folder, kind, seed)
        shutil.rmtree(folder)

    assert counts.total() >= KILLS
    report(counts, record_property)


def report(counts: Counter[str], record: Count) -> None:
    for what, count in counts.items():
        record(NAMES[what], count)
