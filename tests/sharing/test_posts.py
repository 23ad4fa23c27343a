"""Posts of real clients to a real server: kills of either side, forks, and order.

A post is on record once it has returned, by a number that survives a kill of its process. What was
posted is in the queue once and in order at the end, whoever was killed; at most the post that was
under way may be there as well.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import forebay
from forebay import ServerGone
from tests.counting import Count
from tests.kinds import KINDS, POLICIES, Kind
from tests.sharing.posting import CAMPAIGNS, files
from tests.support.campaigns import seeds
from tests.support.clients import Peer, peers
from tests.support.servers import end_server, server_pid
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("servers")]
FILED = [KINDS["log"], KINDS["fifo"]]
NAMES = {
    "server": "posting: kills of a server",
    "client": "posting: kills of a client",
    "both": "posting: kills of a server and a client at once",
    "all": "posting: kills of a server and all clients, then an owner",
}
_NUMBER = struct.Struct("<Q")


def post_on(path: Path, kind: str, sync: str, name: str, seed: int) -> None:
    """Posts numbered values until `stop` exists; has the number on record after each."""
    rng = random.Random(seed)
    record = os.open(path.parent / f"{name}.posted", os.O_RDWR | os.O_CREAT, 0o600)
    number = 0
    with KINDS[kind].queue(path, shared=True, sync=sync) as queue:
        while not (path.parent / "stop").exists():
            for _ in range(rng.randrange(200)):
                value = b"%s-%08d" % (name.encode(), number) + b"." * rng.randrange(300)
                with contextlib.suppress(ServerGone):
                    queue.post(value)
                    number += 1
                    os.pwrite(record, _NUMBER.pack(number), 0)
            if rng.random() < 0.1:
                with contextlib.suppress(ServerGone):
                    queue.flush()
            time.sleep(rng.random() * 0.01)


class Posters:
    """Processes that post; those that are killed are replaced."""

    def __init__(self, path: Path, kind: str, sync: str, count: int) -> None:
        self.path, self.kind, self.sync = path, kind, sync
        self.playing: list[Peer] = []
        self.names: list[str] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        name = f"p{len(self.names)}"
        self.names.append(name)
        peer = Peer()
        peer.begin(partial(post_on, self.path, self.kind, self.sync, name, len(self.names)))
        self.playing.append(peer)

    def kill_server(self) -> bool:
        log = self.path / "server.log"
        pid = server_pid(log) if log.exists() else None
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def act(self, what: str, rng: random.Random) -> str | None:
        """Kills; returns what it has killed, if that was there."""
        if what == "client" or (what == "both" and rng.random() < 0.5):
            self.playing.pop(rng.randrange(len(self.playing))).kill()
            if what == "both" and not self.kill_server():
                what = "client"
            self.add()
        elif what == "both":
            killed = self.kill_server()
            self.playing.pop(rng.randrange(len(self.playing))).kill()
            self.add()
            what = "both" if killed else "client"
        elif what == "server":
            return what if self.kill_server() else None
        elif what == "all":
            self.kill_all()
            KINDS[self.kind].queue(self.path, sync=self.sync).close()
            for _ in range(2):
                self.add()
        return what

    def kill_all(self) -> None:
        count = len(self.playing)
        for _ in range(count):
            self.playing.pop().kill()
        self.kill_server()
        log = self.path / "server.log"
        if log.exists():
            end_server(log)


@contextlib.contextmanager
def posters(path: Path, kind: str, sync: str, count: int) -> Iterator[Posters]:
    made = Posters(path, kind, sync, count)
    try:
        yield made
    finally:
        for peer in made.playing:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)
            peer.end()


def posted(path: Path, name: str) -> int:
    try:
        return int(_NUMBER.unpack((path.parent / f"{name}.posted").read_bytes()[:8])[0])
    except (FileNotFoundError, struct.error):
        return 0


def check(path: Path, names: list[str], left: list[bytes]) -> int:
    """Compares what is in the queue with what is on record; returns how many values there are."""
    found: dict[str, list[int]] = {name: [] for name in names}
    for value in left:
        who, number = value.rstrip(b".").split(b"-")
        found[who.decode()].append(int(number))
    for name, numbers in found.items():
        told = posted(path, name)
        assert numbers == list(range(len(numbers))), f"{name}: out of order, lost or twice"
        assert told <= len(numbers) <= told + 1, f"{name}: {told} posted, {len(numbers)} there"
    return len(left)


def drained(kind: Kind, path: Path, sync: str) -> list[bytes]:
    """Returns all that is in the queue, which nobody has now."""
    found: list[bytes] = []
    if kind.name == "log":
        with kind.queue(path, sync=sync) as log, log.consumer("c") as consumer:
            while records := consumer.read(10_000):
                found += [record.value for record in records]
        return found
    with kind.queue(path, sync=sync) as fifo:
        while values := fifo.pop_many(10_000):
            found += values
    return found


def kill_at_random(folder: Path, kind: Kind, seed: int, weights: dict[str, int]) -> Counter[str]:
    """Kills under posting clients; checks what is there at the end. Returns the kills."""
    rng = random.Random(seed)
    path, counts = folder / "q", Counter[str]()
    sync = rng.choice(POLICIES)
    plan = [what for what, count in weights.items() for _ in range(count)]
    rng.shuffle(plan)
    with posters(path, kind.name, sync, 2) as playing:
        wait_until(lambda: posted(path, "p0") > 0)
        for what in plan:
            time.sleep(rng.random() * 0.06)
            done = playing.act(what, rng)
            if done is not None:
                counts[done] += 1
        if rng.random() < 0.5:
            (folder / "stop").touch()
            for peer in playing.playing:
                peer.result()
            playing.playing, ended = [], playing.playing
            for peer in ended:
                peer.end()
            end_server(path / "server.log")
        else:
            playing.kill_all()
    counts["values"] = check(path, playing.names, drained(kind, path, sync))
    assert not files(path)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILED, ids=lambda kind: kind.name)
def test_no_kill_loses_or_doubles_what_was_posted(
    tmp_path: Path, kind: Kind, record_property: Count
) -> None:
    weights = {"client": 6, "server": 2, "both": 1, "all": 1}

    counts = kill_at_random(tmp_path, kind, 1, weights)

    assert counts["values"] > 100
    report(counts, record_property)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", FILED, ids=lambda kind: kind.name)
def test_no_kill_loses_or_doubles_what_was_posted_for_as_long_as_it_may_take(
    tmp_path: Path, kind: Kind, record_property: Count
) -> None:
    counts = Counter[str]()
    for seed in seeds("sharing", f"posts-{kind.name}", tests=CAMPAIGNS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        weights = {"client": 20, "server": 5, "both": 2, "all": 1}
        counts += kill_at_random(folder, kind, seed, weights)
        shutil.rmtree(folder)

    assert counts["values"] > 0
    report(counts, record_property)


def report(counts: Counter[str], record: Callable[[str, int], None]) -> None:
    for what, name in NAMES.items():
        record(name, counts[what])


@pytest.mark.parametrize("kind", FILED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("sync", POLICIES)
def test_posts_and_other_requests_keep_their_order(tmp_path: Path, kind: Kind, sync: str) -> None:
    with kind.queue(tmp_path / "q", shared=True, sync=sync) as queue:
        for number in range(0, 60, 3):
            queue.post(b"%02d" % number)
            queue.post(b"%02d" % (number + 1))
            kind.put(queue, b"%02d" % (number + 2))
        queue.post(b"60")

        assert len(queue) == 61
        assert kind.drain(queue) == [b"%02d" % number for number in range(61)]


@pytest.mark.parametrize("kind", FILED, ids=lambda kind: kind.name)
def test_what_does_not_go_into_the_file_is_in_its_place(tmp_path: Path, kind: Kind) -> None:
    values = [b"a", b"b" * 200_000, b"", b"c", b"d" * 500_000]
    with kind.queue(tmp_path / "q", shared=True, sync="os") as queue:
        for value in values:
            queue.post(value)
        queue.flush()

        assert kind.drain(queue) == values


@pytest.mark.parametrize("kind", FILED, ids=lambda kind: kind.name)
def test_more_than_the_file_holds_waits_for_the_server(tmp_path: Path, kind: Kind) -> None:
    values = [b"%06d" % number + b"x" * 1000 for number in range(5000)]
    with kind.queue(tmp_path / "q", shared=True, sync="os") as queue:
        tickets = [queue.post(value) for value in values]
        queue.flush(tickets[0])
        queue.flush()

        assert len(queue) == len(values)
        assert tickets == sorted(set(tickets))
    assert drained_by_client(kind, tmp_path / "q") == values


def drained_by_client(kind: Kind, path: Path) -> list[bytes]:
    found: list[bytes] = []
    with kind.queue(path, shared=True) as queue:
        while values := kind.drain(queue):
            found += values
            if kind.record.has_consumers:
                break
    return found


def test_a_full_fifo_lets_posts_wait(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, max_entries=10) as fifo:
        for number in range(30):
            fifo.post(b"%d" % number)
        found: list[bytes] = []
        while len(found) < 30:
            found += fifo.pop_many(7, timeout=20)
        fifo.flush()

        assert found == [b"%d" % number for number in range(30)]


def test_a_child_of_a_fork_posts_into_a_file_of_its_own(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.post(b"parent")
        with peers(1) as (peer,):
            peer.do(partial(post_and_flush, fifo))
        fifo.post(b"parent")
        fifo.flush()

        assert sorted(fifo.pop_many(9)) == [b"child", b"parent", b"parent"]


def post_and_flush(fifo: forebay.Fifo) -> None:
    fifo.post(b"child")
    fifo.flush()
