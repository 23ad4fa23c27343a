"""The limits of a server, each just within and just beyond; and users other than its own.

One server with small limits serves most cases, with no more address space than it has idle and 256
MiB: what is refused is refused before it is allocated.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import forebay
from forebay import InvalidOption, ProtocolError
from forebay.client import queues as client
from forebay.serve.access import Access
from forebay.serve.limits import HELLO_BYTES_MAX
from forebay.wire.messages import Request, Status, batch_count
from tests.support.memory import scratch
from tests.support.raw_clients import RawClient, request, sized
from tests.support.servers import Service, address_space, limit_address_space, serving
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]

CLIENTS, FRAME_BYTES, BATCH, RECEIVED_BYTES, REQUESTS, HELD = 6, 100_000, 100, 250_000, 20, 10
HELLO_SECONDS, STALLED_SECONDS = 0.5, 1.0
CONFIG = f"""
[limits]
clients = {CLIENTS}
clients_of_a_user = 2
frame_bytes = {FRAME_BYTES}
batch_records = {BATCH}
received_bytes = {RECEIVED_BYTES}
requests = {REQUESTS}
held = {HELD}
hello_seconds = {HELLO_SECONDS}
stalled_seconds = {STALLED_SECONDS}

[queues.jobs]
kind = "fifo"
sync = "os"
"""
OTHER = 65_534
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "forebay.toml").write_text(CONFIG)
    with serving(folder / "root", "--config", str(folder / "forebay.toml")) as service:
        limit_address_space(service.pid, address_space(service.pid))
        yield service


@pytest.fixture
def queue(service: Service) -> Iterator[Path]:
    """Lends a queue with its server; looks whether it serves afterwards, and has lost nothing."""
    yield service.root / "jobs"
    with RawClient(service.root) as good:
        number = good.open(path=service.root / "jobs")
        good.ask("push", b"after", target=number)
        assert good.pop(number) == b"after"


def connected(queue: Path, *, greets: bool = True) -> RawClient:
    return RawClient(queue.parent, greets=greets)


def opened(client: RawClient, queue: Path) -> int:
    return client.open(path=queue)


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "one more"])
def test_a_message_has_a_size(queue: Path, extra: int) -> None:
    with connected(queue) as bad:
        number = opened(bad, queue)
        rest = len(request("push", b"x" * FRAME_BYTES, number=9, target=number)) - 4 - FRAME_BYTES
        data = request("push", b"x" * (FRAME_BYTES - rest + extra), number=9, target=number)
        assert len(data) == 4 + FRAME_BYTES + extra
        bad.send(data)
        if not extra:
            bad.result(9)
            assert len(bad.pop(number)) == FRAME_BYTES - rest
            return
        said = bad.ended_with()

    assert said is not None
    assert f"{FRAME_BYTES + 1} bytes: at most {FRAME_BYTES}" in str(said.result)


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "one more"])
def test_the_first_message_is_short(queue: Path, extra: int) -> None:
    with connected(queue, greets=False) as bad:
        bad.send(sized(b"\x00" * (HELLO_BYTES_MAX + extra)))
        said = bad.ended_with()

    assert said is not None
    assert ("at most 4096" in str(said.result)) == bool(extra)


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "one more"])
@pytest.mark.parametrize("verb", ["push_many", "put_many"])
def test_a_batch_has_a_number_of_records(queue: Path, verb: str, extra: int) -> None:
    with connected(queue) as bad:
        number = opened(bad, queue)
        batch = [b"x"] * (BATCH + extra)
        if not extra:
            bad.ask(verb, batch, target=number)
            popped = bad.ask("popping", BATCH, 1, target=number)
            bad.ask("finish", target=popped.number)
            assert len(popped.value[1]) == BATCH
            return
        bad.send(request(verb, batch, number=9, target=number))
        said = bad.ended_with()

    assert said is not None
    assert f"{BATCH + 1} records: at most {BATCH}" in str(said.result)


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "one more"])
def test_a_client_has_a_number_of_requests_under_way(queue: Path, extra: int) -> None:
    with connected(queue) as busy:
        number = opened(busy, queue)
        waiting = [busy.begin("popping", 1, 60, target=number) for _ in range(REQUESTS - 1 + extra)]
        last = busy.begin("size", target=number)
        if extra:
            with pytest.raises(InvalidOption, match=f"{REQUESTS} requests at a time"):
                busy.result(last)
        else:
            assert busy.result(last) == 0
        for each in waiting:
            busy.tell("cancel", each)


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "one more"])
def test_a_client_holds_a_number_of_things(queue: Path, extra: int) -> None:
    with connected(queue) as greedy:
        number = opened(greedy, queue)
        for _ in range(HELD - 1):
            greedy.ask("__iter__", target=number)
        if extra:
            with pytest.raises(InvalidOption, match=f"hold {HELD} things"):
                greedy.ask("__iter__", target=number)
        # What it holds it can give back, and then have more.
        greedy.ask("close", 2)
        greedy.ask("__iter__", target=number)


def test_clients_have_a_number(queue: Path) -> None:
    with contextlib.ExitStack() as stack:
        there = [stack.enter_context(connected(queue)) for _ in range(CLIENTS)]
        with connected(queue, greets=False) as extra:
            said = extra.ended_with()
        assert said is not None
        assert f"{CLIENTS} clients, which is its limit" in str(said.result)
        there.pop().hang_up()

        def is_served() -> bool:
            with connected(queue, greets=False) as extra:
                extra.send(request("hello", 1, 1, "0"))
                with contextlib.suppress(ConnectionError, ProtocolError):
                    return bool(extra.result(1))
            return False

        assert wait_until(is_served)


def test_what_clients_have_not_finished_has_a_size(queue: Path) -> None:
    part = sized(b"x" * (FRAME_BYTES - 10), FRAME_BYTES)
    with contextlib.ExitStack() as stack:
        within = [stack.enter_context(connected(queue)) for _ in range(2)]
        for each in within:
            each.send(part)
        last = stack.enter_context(connected(queue))
        last.send(part)
        said = last.ended_with()
        assert said is not None
        assert f"more than {RECEIVED_BYTES} bytes" in str(said.result)
        # The others may still finish theirs, which are no requests.
        for each in within:
            each.send(b"x" * 10)
            said = each.ended_with()
            assert said is not None
            assert "not a request" in str(said.result)


# How a client stops in the middle of something.
STOPS: dict[str, Callable[[RawClient, Path], None]] = {
    "within a size": lambda client, queue: client.send(b"\x10\x00"),
    "within a message": lambda client, queue: client.send(sized(b"\x95\x01", 1_000)),
    "within the last byte": lambda client, queue: client.send(request("size", target=1)[:-1]),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_client_that_stops_within_a_message_is_cut_off(queue: Path, name: str) -> None:
    with connected(queue) as bad:
        STOPS[name](bad, queue)
        began = time.monotonic()
        said = bad.ended_with()

    assert said is None
    assert time.monotonic() - began >= STALLED_SECONDS * 0.8


@pytest.mark.parametrize("data", [b"", b"\x13", request("hello", 1, 1, "0")[:-1]], ids=len)
def test_a_client_that_does_not_say_hello_is_cut_off(queue: Path, data: bytes) -> None:
    with connected(queue, greets=False) as bad:
        bad.send(data)
        began = time.monotonic()
        said = bad.ended_with()

    assert said is not None
    assert "no hello within 0.5 seconds" in str(said.result)
    assert time.monotonic() - began >= HELLO_SECONDS * 0.8


def test_a_client_that_drips_is_served_and_one_that_rests_is_left_alone(queue: Path) -> None:
    with connected(queue) as slow:
        number = opened(slow, queue)
        # Longer than either limit, with nothing under way and then byte by byte.
        time.sleep(STALLED_SECONDS * 1.3)
        data = request("size", number=99, target=number)
        for at in range(0, len(data), 4):
            slow.send(data[at : at + 4])
            time.sleep(STALLED_SECONDS / 5)
        assert slow.result(99) == 0


def test_what_a_reader_that_never_reads_had_taken_comes_back(queue: Path) -> None:
    value = b"x" * 90_000
    with connected(queue) as good, connected(queue) as deaf:
        mine, its = opened(good, queue), opened(deaf, queue)
        good.ask("push", b"taken", target=mine)
        lent = deaf.ask("take", 1, target=its)
        good.ask("push", value, target=mine)
        deaf.send(b"".join(request("peek", number=each, target=its) for each in range(50, 69)))
        assert wait_until(lambda: good.ask("peek", target=mine).value == b"taken")
        assert lent.value.value == b"taken"
        assert good.pop(mine) == b"taken"
        assert good.pop(mine) == value


HOSTILE = {
    "nothing, many times": b"\x95\x09\x00\xa1x\x91\xdd" + (99_000).to_bytes(4, "big"),
    "a list that nests": b"\x95\x09\x00\xa1x" + b"\x91" * 90_000,
    "a map that is long": b"\x95\x09\x00\xa1x\x90\xdf" + (49_000).to_bytes(4, "big"),
    "a verb that is long": b"\x95\x09\x00\xdb" + (90_000).to_bytes(4, "big"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_request_costs_no_memory(service: Service, queue: Path, name: str) -> None:
    body = HOSTILE[name].ljust(FRAME_BYTES - 100, b"\xc0")
    before = memory_bytes(service.pid)
    for _ in range(30):
        with connected(queue) as bad:
            bad.send(sized(body))
            said = bad.ended_with()
            assert said is not None
            assert said.status == Status.FAILED

    assert memory_bytes(service.pid) - before < 16 << 20


def memory_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


BATCHES = {
    "a small one": (Request(1, 0, "push_many", [[b"x"] * 3]), 0),
    "one of 16 bits": (Request(1, 0, "push_many", [[b"x"] * 20]), 20),
    "one of 32 bits": (Request(1, 0, "push_many", [[b"x"] * 70_000]), 70_000),
    "after long numbers": (Request(2**40, 2**20, "push_many", [[1] * 300, 5]), 300),
    "after negative numbers": (Request(-5, -(2**40), "put", [[1] * 16]), 16),
    "after a long verb": (Request(1, 0, "v" * 40, [[1] * 16]), 16),
    "no arguments": (Request(1, 0, "size"), 0),
    "no list": (Request(1, 0, "push", [b"x" * 70_000]), 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_counted_before_it_is_read(name: str) -> None:
    made, expected = BATCHES[name]

    assert batch_count(msgspec.msgpack.encode(made)) == expected


@pytest.mark.parametrize("data", [b"", b"\x95", b"\x95\x01", b"\x95\x01\x00\xa9pu", b"\xc1" * 9])
def test_what_is_no_request_has_no_batch(data: bytes) -> None:
    assert batch_count(data) == 0


@pytest.fixture(scope="module")
def users() -> Iterator[Service]:
    """Runs a server that another user may use in part."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    config = f"""
[limits]
clients_of_a_user = 2
[queues]
written = {{ kind = "fifo", allow = {{ write = [{OTHER}] }} }}
taken = {{ kind = "fifo", allow = {{ take = [{OTHER}] }} }}
run = {{ kind = "log", allow = {{ admin = [{OTHER}] }} }}
closed = {{ kind = "fifo" }}
"""
    with scratch("users") as folder:
        (folder / "forebay.toml").write_text(config)
        with serving(folder / "root", "--config", str(folder / "forebay.toml")) as service:
            yield service


def push(path: Path, value: bytes) -> int:
    with forebay.open(path, kind="fifo", shared=True) as fifo:
        return fifo.push(value)


def pop(path: Path) -> bytes | None:
    with forebay.open(path, kind="fifo", shared=True) as fifo:
        return fifo.pop()


def size(path: Path) -> int:
    with forebay.open(path, kind="fifo", shared=True) as fifo:
        return len(fifo)


def trim(path: Path) -> int:
    with forebay.open(path, kind="log", shared=True) as log:
        return log.trim()


def append(path: Path) -> int:
    with forebay.open(path, kind="log", shared=True) as log:
        return log.append(b"x")


def make(path: Path) -> None:
    forebay.Fifo(path, shared=True).close()


def connections(root: Path, count: int) -> int:
    return len([RawClient(root) for _ in range(count)])


ALLOWED: dict[str, Callable[[Path], object]] = {
    "to write": lambda root: push(root / "written", b"of the other"),
    "to look at what it writes": lambda root: size(root / "written"),
    "to take": lambda root: pop(root / "taken"),
    "to look at what it takes": lambda root: size(root / "taken"),
    "to administer": lambda root: trim(root / "run"),
    "two connections": lambda root: connections(root, 2),
}
FORBIDDEN: dict[str, Callable[[Path], object]] = {
    "to take what it writes": lambda root: pop(root / "written"),
    "to write what it takes": lambda root: push(root / "taken", b"x"),
    "to write what it administers": lambda root: append(root / "run"),
    "a queue that has no others": lambda root: size(root / "closed"),
    "a queue that is not there": lambda root: size(root / "nothing"),
    "to make a queue": lambda root: make(root / "new"),
    "to end the server": lambda root: client.retire(str(root)),
    "to list the root": os.listdir,
    "to read a file of a queue": lambda root: (root / "written" / "fifo-head").read_bytes(),
}


def as_user(user: int, do: Callable[[Path], object], root: Path) -> str:
    """Does something as another user, in a process of its own; returns what came of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = "failed"
        try:
            client.disconnect()
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            outcome = f"did {do(root)!r}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, outcome.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        outcome = file.read()
    os.waitpid(child, 0)
    return outcome


@NEEDS_ROOT
@pytest.mark.parametrize("name", ALLOWED)
def test_another_user_may(users: Service, name: str) -> None:
    outcome = as_user(OTHER, ALLOWED[name], users.root)

    assert outcome.startswith("did"), outcome


@NEEDS_ROOT
@pytest.mark.parametrize("name", FORBIDDEN)
def test_another_user_may_not(users: Service, name: str) -> None:
    names = sorted(os.listdir(users.root))
    outcome = as_user(OTHER, FORBIDDEN[name], users.root)

    assert outcome.startswith("PermissionError"), outcome
    assert sorted(os.listdir(users.root)) == names
    assert client.facts(str(users.root)) is not None


@NEEDS_ROOT
def test_a_user_has_a_number_of_connections(users: Service) -> None:
    outcome = as_user(OTHER, lambda root: connections(root, 3), users.root)

    assert outcome.startswith(f"ProtocolError: user {OTHER} has 2 connections")


@NEEDS_ROOT
def test_a_third_user_is_refused_at_the_door(users: Service) -> None:
    outcome = as_user(OTHER - 1, lambda root: size(root / "written"), users.root)

    assert outcome.startswith(f"ProtocolError: user {OTHER - 1} has no access here")


@NEEDS_ROOT
def test_what_another_user_put_and_left_is_there(users: Service) -> None:
    as_user(OTHER, lambda root: push(root / "written", b"kept"), users.root)

    assert b"kept" in iter(partial(pop, users.root / "written"), None)


def test_a_socket_is_for_its_user_alone_unless_the_file_says_otherwise(service: Service) -> None:
    mode = os.stat(service.root / "server.sock").st_mode & 0o777

    assert (mode, os.stat(service.root).st_mode & 0o777) == (0o600, 0o700)
    assert Access({}).others == frozenset()


def test_a_server_is_reached_by_no_abstract_socket(service: Service) -> None:
    inodes = {
        os.readlink(f"/proc/{service.pid}/fd/{each}").partition("[")[2].rstrip("]")
        for each in os.listdir(f"/proc/{service.pid}/fd")
    }
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = [row[7] for row in rows if row[6] in inodes and len(row) > 7]

    assert names
    assert not [name for name in names if name.startswith("@")]
