"""Clients of a server that need not keep to the protocol: each is a socket, and bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from forebay.exchange import CODEC, VOCABULARY
from forebay.wire.frames import FrameReader, frame
from forebay.wire.messages import PROTOCOLS, SERVER, Answer, Request, Status
from forebay.wire.values import Handle

SECONDS = 60.0


def sized(body: bytes, size: int | None = None) -> bytes:
    """Returns a body after a size, which may be wrong."""
    return struct.pack("<I", len(body) if size is None else size) + body


def message(*parts: Any) -> bytes:
    """Returns a frame that holds an array of anything."""
    return sized(msgspec.msgpack.encode(parts))


def request(
    verb: str, *arguments: Any, number: int = 1, target: int = SERVER, **named: Any
) -> bytes:
    """Returns a request as a client sends it."""
    packed = [VOCABULARY.pack(each) for each in arguments]
    keywords = {name: VOCABULARY.pack(each) for name, each in named.items()}
    return frame(CODEC.encode(Request(number, target, verb, packed, keywords)))


class RawClient:
    """A connection to the server of a queue."""

    def __init__(self, path: Path, *, greets: bool = True) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._frames = FrameReader()
        self._answers: dict[int, Answer] = {}
        # How many answers came, by the number of the request.
        self.counts = Counter[int]()
        self._last_id = 1_000_000
        # It need not be readable.
        directory = os.open(path, os.O_PATH)
        try:
            # Without a timeout it waits while others do.
            self._socket.connect(f"/proc/self/fd/{directory}/server.sock")
        finally:
            os.close(directory)
        self._socket.settimeout(SECONDS)
        if greets:
            self.ask("hello", *PROTOCOLS, "0")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes; a server that has hung up may have said why, which the next answer tells."""
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(data)

    def begin(self, verb: str, *arguments: Any, target: int = SERVER, **named: Any) -> int:
        """Sends a request; returns its number."""
        self._last_id += 1
        self.send(request(verb, *arguments, number=self._last_id, target=target, **named))
        return self._last_id

    def tell(self, verb: str, number: int) -> None:
        """Sends a request that has no answer."""
        self.send(request(verb, number, number=0))

    def ask(self, verb: str, *arguments: Any, target: int = SERVER, **named: Any) -> Any:
        """Sends a request; returns its result, or raises its error."""
        return self.result(self.begin(verb, *arguments, target=target, **named))

    def result(self, number: int) -> Any:
        """Returns what the answer to a request brings, or raises its error."""
        answer = self.answer(number)
        if answer.status == Status.FAILED:
            raise answer.result
        return answer.result

    def results(self, numbers: list[int]) -> list[Any]:
        """Returns what the answers to requests bring, or raises the first error."""
        return [self.result(each) for each in numbers]

    def refusal(
        self, verb: str, *arguments: Any, target: int = SERVER, **named: Any
    ) -> BaseException:
        """Sends a request that is refused; returns the error."""
        answer = self.answer(self.begin(verb, *arguments, target=target, **named))
        assert answer.status == Status.FAILED, answer
        assert isinstance(answer.result, BaseException)
        return answer.result

    def answer(self, number: int) -> Answer:
        """Returns the answer to a request, when it comes."""
        while number not in self._answers:
            if not self._receive():
                last = self._answers.get(0)
                if last is not None and isinstance(last.result, BaseException):
                    raise last.result
                raise ConnectionResetError(f"no answer to {number}")
        return self._answers.pop(number)

    def ended_with(self) -> Answer | None:
        """Waits until the server has hung up; returns what it said of the whole connection."""
        while self._receive():
            pass
        return self._answers.get(0)

    def open(self, kind: str = "fifo", path: Path | None = None) -> int:
        """Opens a queue; returns its number."""
        opened = self.ask("open", str(path or self.path), kind, {}, create=True)
        assert isinstance(opened, Handle)
        return opened.number

    def pop(self, queue: int) -> bytes:
        """Pops an entry, as a good client does."""
        lent = self.ask("popping", 1, 10, target=queue)
        finishing = self.begin("finish", target=lent.number)
        self.result(finishing)
        self.tell("settled", finishing)
        value: bytes = lent.value[1][0]
        return value

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(1 << 20)
        except (ConnectionResetError, BrokenPipeError):
            return False
        self._frames.feed(data)
        while (body := self._frames.next()) is not None:
            answer = CODEC.decode_answer(body)
            self._answers[answer.id] = answer
            self.counts[answer.id] += 1
        return bool(data)
