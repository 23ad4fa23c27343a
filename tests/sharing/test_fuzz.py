"""Frames that are wrong in some place: nothing but `ProtocolError` comes of them, and no harm."""

from __future__ import annotations

import contextlib
import random
import resource
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import ProtocolError
from forebay.exchange import CODEC, VOCABULARY
from forebay.serve.loop import Loop
from forebay.wire.frames import FrameReader
from tests.support.raw_clients import RawClient, request, sized
from tests.support.servers import server_pid
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
FULL = [pytest.mark.full]
# What a server may take beyond what it takes when it is idle.
ROOM_BYTES = 256 << 20
ODD_BYTES = bytes(
    [0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC7, 0xC9, 0xCF, 0xD4, 0xDC, 0xDD, 0xDF, 0xFF]
)
VALUES: list[Any] = [
    *(b"value", "text", 1, -(2**63), 1.5, None, True, [1, [2]], {"a": {"b": 1}}, (1, (2,))),
    *("\ud800", datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=1, microseconds=5)),
    *(ValueError("x"), OSError(2, "no"), KeyError(("a", b"b"))),
    forebay.Event(5, fields={"a": 1}),
]
REQUESTS = [
    request("hello", 1, 1, "0"),
    request("open", "/q", "fifo", {"sync": "os", "max_bytes": 1 << 20}, create=True),
    request("cancel", 7, number=0),
    *(request("push", value, number=2**40, target=1, timeout=5) for value in VALUES),
    request("push_many", VALUES, target=1),
    request("popping", 1, 5, target=1),
    request("take", 0.5, target=1),
    request("__iter__", target=1),
    request("peek", target=1, after=5),
]


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Returns a frame with some bytes changed, cut, repeated, moved or put in."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0:
                found[at : at + 1] = chance.randbytes(1)
            case 1:
                found[at : at + 1] = bytes([chance.choice(ODD_BYTES)])
            case 2:
                del found[at : at + chance.randint(1, 8)]
            case 3:
                found[at:at] = found[at : at + chance.randint(1, 16)] * chance.randint(1, 4)
            case 4:
                found[at:at] = chance.choice(REQUESTS)[4:][: chance.randint(1, 32)]
            case _:
                found[at:at] = b"\x91" * chance.choice([1, 10, 2_000])
    return bytes(found)


def frames(count: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(count):
        data = mutated(chance, chance.choice(REQUESTS))
        # The size is right, mostly: else nothing after it would be read.
        yield data if chance.random() < 0.1 else sized(mutated(chance, data[4:]))


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=FULL)])
def test_only_a_protocol_error_comes_of_a_wrong_frame(count: int) -> None:
    understood = refused = 0
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in frames(count, seed=count):
        reader = FrameReader()
        try:
            reader.feed(data)
            body = reader.next()
            if body is not None:
                CODEC.decode_request(body)
            understood += 1
        except ProtocolError:
            refused += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert understood > count / 100
    assert refused > count / 10
    # In KiB.
    assert peak - peak_before < 32 << 10


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=FULL)])
def test_only_a_protocol_error_comes_of_a_wrong_extension(count: int) -> None:
    chance = random.Random(count)
    made = refused = 0
    for _ in range(count):
        packed = VOCABULARY.pack(chance.choice(VALUES))
        data = getattr(packed, "data", b"\x93\xa5Entry\x91\x01\x80")
        code = chance.choice([getattr(packed, "code", 1), chance.randint(-128, 127)])
        try:
            VOCABULARY.unpack(code, memoryview(mutated(chance, data)))
            made += 1
        except ProtocolError:
            refused += 1

    assert made > 0
    assert refused > count / 10


def memory_limited(pid: int) -> None:
    """Lets a process take little more address space than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("count", [1_000, pytest.param(50_000, marks=FULL)])
def test_a_server_with_little_memory_outlives_wrong_frames(tmp_path: Path, count: int) -> None:
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.push(b"kept")
        pid = server_pid(tmp_path / "q" / "server.log")
        assert pid is not None
        memory_limited(pid)
        for data in frames(count, seed=count + 1):
            bad = RawClient(tmp_path / "q")
            with bad, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                assert bad.open() == 1
                bad.send(data)
        found: list[bytes] = []

        def is_back() -> bool:
            found.extend(fifo.pop_many(1_000))
            return b"kept" in found

        # The last client may have held it.
        wait_until(is_back)
        found += fifo.pop_many(10 * count)
        assert server_pid(tmp_path / "q" / "server.log") == pid

    assert found.count(b"kept") == 1


@pytest.mark.usefixtures("servers")
def test_a_frame_that_takes_more_memory_than_there_is_ends_its_client(tmp_path: Path) -> None:
    count = 32 << 20
    lists = b"\x95\x01\x00\xa1x\x91\xdd" + count.to_bytes(4, "big") + b"\x90" * count + b"\x80"
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.push(b"kept")
        pid = server_pid(tmp_path / "q" / "server.log")
        assert pid is not None
        memory_limited(pid)
        with RawClient(tmp_path / "q") as bad:
            bad.send(sized(lists))
            said = bad.ended_with()
        assert fifo.pop() == b"kept"
        assert server_pid(tmp_path / "q" / "server.log") == pid

    assert said is None or isinstance(said.result, BaseException)


def test_timers_that_are_cancelled_take_no_memory() -> None:
    loop = Loop()
    tracemalloc.start()
    try:
        for _ in range(50_000):
            loop.later(3600, loop.stop).cancel()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        loop.close()

    assert left < 1 << 20
