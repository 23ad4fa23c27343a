"""The two messages: a request and its answer. No I/O.

A request calls a verb of a target: 0 is the server itself, other numbers stand for what an earlier
answer has named. Every request is answered once, in any order. A request of number 0 has no answer:
`close`; `cancel`, which names a request that is then answered as cancelled, or as if nobody had
cancelled it, and what that took goes back; and `settled`, which says that the answer to a request
has come, so that it will not be cancelled any more.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from forebay.errors import ProtocolError

# The versions of the protocol that this program speaks.
PROTOCOLS = (1, 1)
SERVER = 0
# The sizes of integers in MessagePack with their first byte, by that byte; others take one byte.
_INT_BYTES = {0xCC: 2, 0xD0: 2, 0xCD: 3, 0xD1: 3, 0xCE: 5, 0xD2: 5, 0xCF: 9, 0xD3: 9}
# Results that need no memory to speak of.
_SMALL = (int, float, type(None))
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


class Status(IntEnum):
    """How a request ended."""

    DONE = 0
    FAILED = 1
    CANCELLED = 2


class Request(msgspec.Struct, array_like=True, gc=False):
    """A call: number, target, verb, positional arguments, keyword arguments."""

    id: int
    target: int
    verb: str
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}


class Answer(msgspec.Struct, array_like=True, gc=False):
    """The answer to the request of that number: the result, or the error."""

    id: int
    status: int
    result: Any = None


def batch_count(data: bytes) -> int:
    """Returns how many values the first argument of a request is said to have; 0 if it is no list.

    Reads only what stands in front of them: number, target, verb, and how many arguments there are.
    What is no request has 0; decoding it tells what is wrong.
    """
    try:
        at = 1
        for _ in range(2):
            at += _INT_BYTES.get(data[at], 1)
        at += 1 + (data[at] & 0x1F) if data[at] >> 5 == 5 else 2 + data[at + 1]
        at += 1
        if data[at] == _ARRAY_16:
            return int.from_bytes(data[at + 1 : at + 3], "big")
        if data[at] == _ARRAY_32:
            return int.from_bytes(data[at + 1 : at + 5], "big")
    except IndexError:
        pass
    return 0


class Codec:
    """Turns messages into bytes and back, with the values of a `Vocabulary`."""

    def __init__(self, unpack: Any) -> None:
        """`unpack(code, data)` makes a value from an extension type."""
        self._encoder = msgspec.msgpack.Encoder()
        self._requests = msgspec.msgpack.Decoder(Request, ext_hook=unpack)
        self._answers = msgspec.msgpack.Decoder(Answer, ext_hook=unpack)

    def encode(self, message: Request | Answer) -> bytes | bytearray:
        """Returns the bytes of a message whose values are packed."""
        if isinstance(message, Answer) and not isinstance(message.result, _SMALL):
            # Without memory, `encode` would end the server.
            data = bytearray()
            self._encoder.encode_into(message, data)
            return data
        return self._encoder.encode(message)

    def decode_request(self, data: bytes) -> Request:
        """Reads a request; raises `ProtocolError`."""
        try:
            return self._requests.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"not a request: {error}") from None

    def decode_answer(self, data: bytes) -> Answer:
        """Reads an answer; raises `ProtocolError`."""
        try:
            return self._answers.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"not an answer: {error}") from None
