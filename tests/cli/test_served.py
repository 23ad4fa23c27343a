"""The verbs of the command line on a queue that a server has: as on one that nobody owns."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import forebay
from tests.cli.helpers import run
from tests.kinds import KINDS, Kind
from tests.support.servers import is_locked
from tests.support.values import numbered

pytestmark = pytest.mark.usefixtures("servers")
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def consumer_of(kind: Kind) -> list[str]:
    return ["--consumer", "c"] if kind.record.has_consumers else []


@EACH_KIND
def test_what_is_put_and_taken_on_the_command_line_goes_through_the_server(
    tmp_path: Path, kind: Kind
) -> None:
    path = tmp_path / "q"
    lines = b"".join(b'{"fields":{"value":"%s"}}\n' % value for value in numbered(3))
    with kind.queue(path, shared=True) as queue:
        kind.put(queue, b"of the client")
        put = run("put", path, "--json", stdin=lines)
        info = run("info", path, "--json")
        taken = run("take", path, "--count", 2, *consumer_of(kind))
        left = kind.drain(queue)

    assert (put.exit_code, json.loads(put.stdout)["count"]) == (0, 3)
    assert (info.exit_code, json.loads(info.stdout)["records"]) == (0, 4)
    assert (taken.exit_code, taken.stdout.count("\n")) == (0, 2)
    # Of a log, another consumer has all of them.
    assert len(left) == (4 if kind.record.has_consumers else 2)
    assert is_locked(path / "server.log")


@pytest.mark.slow
def test_a_take_that_waits_gets_what_a_client_puts(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        late = threading.Timer(0.5, fifo.push, [b"late"])
        late.start()
        began = time.monotonic()
        taken = run("take", tmp_path / "q", "--timeout", 60)
        took = time.monotonic() - began
        late.join()

    assert (taken.exit_code, taken.stdout) == (0, "late\n")
    assert took < 30


@pytest.mark.slow
def test_leases_are_kept_by_token(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with forebay.DeadlineQueue(path, shared=True) as queue:
        queue.enqueue(b"x")
        leased = run("take", path, "--lease", 60, "--json")
        token = json.loads(leased.stdout)["token"]
        assert queue.dequeue() is None
        released = run("release", path, token)
        assert (released.exit_code, len(queue)) == (0, 0)


@pytest.mark.slow
def test_a_buried_item_is_kicked(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with forebay.DeadlineQueue(path, shared=True) as queue:
        queue.enqueue(b"x")
        item = queue.dequeue()
        assert item is not None
        queue.bury(item, "bad")
        kicked = run("kick", path, item.id)
        again = queue.dequeue(timeout=10)

    assert kicked.exit_code == 0
    assert again is not None
    assert again.value == b"x"


@pytest.mark.slow
def test_a_log_is_trimmed_and_forgets_a_consumer(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with forebay.Log(path, shared=True, segment_bytes=1_000) as log:
        log.append_many(numbered(200))
        for name in ("c", "d"):
            with log.consumer(name) as consumer:
                consumer.read(150)
                if name == "c":
                    consumer.commit()
        forgotten = run("consumers", path, "--forget", "d")
        trimmed = run("trim", path, "--json")
        begin = log.begin

    assert forgotten.exit_code == 0
    assert trimmed.exit_code == 0
    assert 100 < begin <= 150


@pytest.mark.slow
def test_an_option_that_differs_is_refused_with_both_values(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, sync="os"):
        refused = run("put", tmp_path / "q", "--sync", "interval", stdin=b"x\n")

    assert refused.exit_code != 0
    assert "'interval'" in refused.stderr
    assert "'os'" in refused.stderr
