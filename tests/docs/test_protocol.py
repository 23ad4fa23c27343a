"""The worked examples of docs/protocol.md are what clients and servers send."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import msgspec
import pytest

from forebay.exchange import CODEC, VOCABULARY
from forebay.kernels.buffers import PostedRecords, crc32, gather
from forebay.storage import posted
from forebay.wire.frames import FRAME_BYTES_MAX, FrameReader, frame
from forebay.wire.messages import Answer, Request, Status
from forebay.wire.values import DURATION, ERROR, HANDLE, OBJECT, TEXT, TIME, TUPLE
from tests.docs.pages import ROOT, hex_bytes, only_block

PAGE = "docs/protocol.md"
REQUESTS = {
    "hello": Request(1, 0, "hello", [1, 1, "0.1.0"]),
    "push": Request(2, 1, "push", [b"x"]),
    "cancel": Request(0, 0, "cancel", [3]),
}


def example(name: str) -> bytes:
    return hex_bytes(only_block(PAGE, f"hex {name}"))


def body(data: bytes) -> bytes:
    frames = FrameReader()
    frames.feed(data)
    found = frames.next()
    assert found is not None
    assert frames.next() is None
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_what_a_client_sends_and_a_server_reads(name: str) -> None:
    assert frame(CODEC.encode(REQUESTS[name])) == example(name)
    assert CODEC.decode_request(body(example(name))) == REQUESTS[name]


def test_an_answer_is_what_a_server_sends_and_a_client_reads() -> None:
    answer = Answer(2, Status.DONE, 7)
    assert frame(CODEC.encode(answer)) == example("pushed")
    assert CODEC.decode_answer(body(example("pushed"))) == answer


def test_a_posted_record_is_what_a_client_puts_and_an_owner_finds() -> None:
    buffer, salt = bytearray(64 + 1024), bytes(8)
    records = PostedRecords(threading.Lock(), lambda: None)
    records.use(buffer, 64, 0, 128, crc32(salt))
    records.put(b"x", 0)
    data = example("posted")

    assert buffer[64 : 64 + len(data)] == data
    assert gather(data, 0, 1, crc32(salt), 128, 9, bytearray(64), 0)[0] == 1
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for at in (posted.HEADER_AT, posted.ASLEEP_AT, posted.DATA_AT):
        assert f"\n| {at} | " in text


def test_a_time_is_an_extension_type() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    data = example("time")
    assert msgspec.msgpack.encode(VOCABULARY.pack(time)) == data
    assert msgspec.msgpack.decode(data, ext_hook=VOCABULARY.unpack) == time


def test_the_page_tells_the_codes_and_the_limit() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for code in (OBJECT, ERROR, TUPLE, TIME, DURATION, TEXT, HANDLE):
        assert f"\n| {code} | " in text
    assert f"{FRAME_BYTES_MAX:,}" in text
