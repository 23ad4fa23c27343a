"""Processes that share a queue: any number, however they were started."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import InvalidOption, Locked
from forebay.client import queues as client
from tests.kinds import KINDS, Kind
from tests.sources import ROOT
from tests.support.clients import peers
from tests.support.servers import server_pid
from tests.support.values import numbered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
COUNT = 40

WORKER = """
import sys
import forebay

with forebay.Fifo(sys.argv[1], shared=True, sync="os") as fifo:
    for number in range(int(sys.argv[3])):
        fifo.push(f"{sys.argv[2]} {number}".encode())
"""

POOL = """
import multiprocessing
import sys
import forebay

if __name__ == "__main__":
    path, method, count = sys.argv[1:]
    with forebay.Fifo(path, shared=True, sync="os") as fifo:
        fifo.push(b"of the parent")
        with multiprocessing.get_context(method).Pool(3) as pool:
            pool.map(fifo.push, [b"%d" % number for number in range(int(count))])
"""


def put(path: Path, kind: str, values: list[bytes]) -> int:
    """What a client does: opens the queue, puts, closes; gives its process."""
    with KINDS[kind].queue(path, shared=True) as queue:
        for value in values:
            KINDS[kind].put(queue, value)
    return os.getpid()


def pop_all(path: Path) -> list[bytes]:
    with forebay.Fifo(path, shared=True) as fifo:
        return fifo.pop_many(1_000)


def run_worker(path: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, str(path), name, str(count)]
    return subprocess.Popen(command, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@EACH_KIND
def test_each_process_puts_and_one_takes_all(tmp_path: Path, kind: Kind) -> None:
    values = numbered(COUNT * 3)
    with kind.queue(tmp_path / "q", shared=True) as queue, peers(3) as others:
        for number, peer in enumerate(others):
            peer.begin(partial(put, tmp_path / "q", kind.name, values[number::3]))
        pids = [peer.result() for peer in others]
        found = kind.drain(queue)

    assert len(set(pids)) == 3
    assert sorted(found) == sorted(values)


def test_ten_processes_that_start_a_server_at_once_get_one(tmp_path: Path) -> None:
    workers = [run_worker(tmp_path / "q", f"w{number}", COUNT) for number in range(10)]
    codes = [worker.wait(timeout=120) for worker in workers]
    found: list[bytes] = []
    while some := pop_all(tmp_path / "q"):
        found += some

    assert codes == [0] * 10
    assert len(found) == len(set(found)) == 10 * COUNT
    for number in range(10):
        mine = [value for value in found if value.startswith(b"w%d " % number)]
        assert mine == [b"w%d %d" % (number, each) for each in range(COUNT)]
    # Each server tells that it begins.
    assert (tmp_path / "q" / "server.log").read_text().count("serving") == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_may_use_a_handle(tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(POOL)
    command = [sys.executable, "program.py", "q", method, str(COUNT)]
    subprocess.run(command, env=environment(), cwd=tmp_path, check=True, timeout=100)
    found = pop_all(tmp_path / "q")

    assert found[0] == b"of the parent"
    assert sorted(found[1:]) == sorted(b"%d" % number for number in range(COUNT))


def test_an_executor_of_processes_may_use_a_handle(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, sync="os") as fifo:
        with concurrent.futures.ProcessPoolExecutor(3) as executor:
            list(executor.map(fifo.push, [b"%d" % number for number in range(COUNT)]))
        found = fifo.pop_many(100)

    assert sorted(found) == sorted(b"%d" % number for number in range(COUNT))


@EACH_KIND
def test_the_child_of_a_fork_connects_anew(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "q", shared=True) as queue:
        kind.put(queue, b"before")
        child = os.fork()
        if child == 0:
            kind.put(queue, b"of the child")
            os._exit(7)
        _, status = os.waitpid(child, 0)
        kind.put(queue, b"after")
        found = kind.drain(queue)

    assert os.waitstatus_to_exitcode(status) == 7
    assert found == [b"before", b"of the child", b"after"]


def test_what_is_lent_stays_with_the_parent_of_a_fork(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.push(b"x")
        with fifo.take() as entry:
            child = os.fork()
            if child == 0:
                os._exit(0 if fifo.pop() is None else 1)
            _, status = os.waitpid(child, 0)
        left = fifo.pop()

    assert os.waitstatus_to_exitcode(status) == 0
    assert (entry.value, left) == (b"x", None)


def test_a_fork_keeps_a_consumer_with_the_parent(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q", shared=True) as log:
        log.append_many([b"a", b"b"])
        with log.consumer("c") as consumer:
            child = os.fork()
            if child == 0:
                try:
                    consumer.read(1)
                except Locked:
                    os._exit(7)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            found = consumer.read(2)

    assert os.waitstatus_to_exitcode(status) == 7
    assert [record.value for record in found] == [b"a", b"b"]


def sent(value: Any) -> Any:
    """Sends an object through a pipe, as to another process."""
    here, there = multiprocessing.Pipe()
    with here, there:
        here.send(value)
        return there.recv()


def test_a_handle_that_was_sent_is_another_one(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, max_bytes=10_000) as fifo:
        with sent(fifo) as other:
            other.push(b"x")
        found = fifo.pop()

    assert found == b"x"


def test_a_handle_that_was_sent_makes_no_queue_where_none_is_left(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.push(b"x")
    wait_until(lambda: forebay.describe(tmp_path / "q").owner is None)
    os.rename(tmp_path / "q", tmp_path / "moved")

    with pytest.raises(forebay.NotAQueue):
        sent(fifo)
    assert not (tmp_path / "q").exists()


def test_a_path_may_be_longer_than_the_address_of_a_socket(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["a-long-name-of-a-directory"] * 8, "q")
    with forebay.Fifo(path, shared=True) as fifo:
        fifo.push(b"x")
        assert fifo.pop() == b"x"


def test_a_path_is_that_of_the_time_of_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with forebay.Fifo("q", shared=True) as fifo:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        client.disconnect()
        fifo.push(b"x")

        assert fifo.path == str(tmp_path / "q")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_all_names_of_a_directory_are_one_queue(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        (tmp_path / "link").symlink_to("q")
        with forebay.Fifo(tmp_path / "link", shared=True) as other:
            other.push(b"x")
        found = fifo.pop()

    assert found == b"x"


@EACH_KIND
def test_who_does_not_share_is_told_how(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "q", shared=True):
        with pytest.raises(Locked, match="shared=True") as told:
            kind.queue(tmp_path / "q")
        serving = server_pid(tmp_path / "q" / "server.log")

    assert told.value.pid == serving


@EACH_KIND
def test_a_queue_of_a_process_that_does_not_share_stays_its_own(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "q") as queue:
        with pytest.raises(Locked) as told:
            kind.queue(tmp_path / "q", shared=True)
        kind.put(queue, b"x")
        assert kind.drain(queue) == [b"x"]

    assert told.value.pid == os.getpid()
    with kind.queue(tmp_path / "q", shared=True) as queue:
        kind.put(queue, b"y")
        assert b"y" in kind.drain(queue)


def test_the_first_one_chooses_the_options(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, sync="os", max_bytes=9_000) as fifo:
        with pytest.raises(InvalidOption, match=r"sync = 'always'.*sync = 'os'"):
            forebay.Fifo(tmp_path / "q", shared=True, sync="always")
        with forebay.Fifo(tmp_path / "q", shared=True, max_bytes=9_000) as other:
            assert other.options == fifo.options
            assert other.options.sync == "os"


def test_options_end_with_the_last_handle(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True, sync="os"):
        assert (tmp_path / "q" / "shared-options").exists()
    with forebay.Fifo(tmp_path / "q", shared=True, sync="interval") as fifo:
        assert fifo.options.sync == "interval"
    assert not (tmp_path / "q" / "shared-options").exists()


@pytest.mark.parametrize("name", ["background", "clock", "filesystem"])
def test_an_option_of_the_owning_process_is_refused(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {name: object()}
    with pytest.raises(InvalidOption, match=f"{name}.*shared"):
        forebay.Fifo(tmp_path / "q", shared=True, **given)
    assert not (tmp_path / "q").exists()


def test_a_wrong_option_makes_neither_a_directory_nor_a_server(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="max_bytes"):
        forebay.Fifo(tmp_path / "q", shared=True, max_bytes=-1)
    with pytest.raises(TypeError, match="max_byte"):
        forebay.Fifo(tmp_path / "q", shared=True, max_byte=1)  # type: ignore[call-arg]

    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_a_shared_queue_is_checked(tmp_path: Path) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True), pytest.raises(forebay.NotAQueue, match="fifo"):
        forebay.Log(tmp_path / "q", shared=True)
    with forebay.open(tmp_path / "q", shared=True) as queue:
        assert isinstance(queue, forebay.Fifo)


@EACH_KIND
def test_a_shared_queue_has_every_name_of_an_owned_one(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "owned") as queue:
        names = {name for name in {*dir(queue), *vars(queue)} if not name.startswith("_")}
    with kind.queue(tmp_path / "shared", shared=True) as queue:
        missing = {name for name in names if not hasattr(queue, name)}

    # Inside of a process only: what wakes those who wait.
    assert missing == {"changes"}
