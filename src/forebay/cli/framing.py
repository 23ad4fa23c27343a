"""How records are delimited in a stream: by newlines, by NUL bytes, or by a length prefix.

Splitters take chunks as they come from a pipe and keep at most one unfinished record. No I/O.
"""

from __future__ import annotations

import struct
from typing import Protocol

_LENGTH = struct.Struct(">I")
_DELIMITERS = {"lines": b"\n", "nul": b"\0"}

OUTPUT_FRAMINGS = ("lines", "nul", "length")
INPUT_FRAMINGS = (*OUTPUT_FRAMINGS, "files")


class BadInput(Exception):
    """The stream does not match its framing; the message says why."""


class Splitter(Protocol):
    """Splits a stream into records."""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes; returns the records that they complete."""
        ...

    def finish(self) -> list[bytes]:
        """Takes the end of the stream; returns the last record, if any."""
        ...


def make_splitter(framing: str, record_bytes_max: int) -> Splitter:
    """Returns the splitter of a framing; it rejects a record that exceeds the bound."""
    if framing == "files":
        return _WholeSplitter(record_bytes_max)
    if framing == "length":
        return _LengthSplitter(record_bytes_max)
    return _DelimiterSplitter(_DELIMITERS[framing], record_bytes_max)


def join(values: list[bytes], framing: str) -> bytes:
    """Joins records into a stream that the same framing splits into them again."""
    if not values:
        return b""
    if framing == "length":
        return b"".join(part for value in values for part in (_LENGTH.pack(len(value)), value))
    delimiter = _DELIMITERS[framing]
    return delimiter.join(values) + delimiter


class _Unfinished:
    """The parts of a record that is not complete yet."""

    def __init__(self, record_bytes_max: int) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._max = record_bytes_max

    def add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max:
            raise BadInput(f"a record exceeds the {self._max} bytes that the queue takes")
        if data:
            self._parts.append(data)

    def take(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return whole


class _DelimiterSplitter:
    def __init__(self, delimiter: bytes, record_bytes_max: int) -> None:
        self._delimiter = delimiter
        self._unfinished = _Unfinished(record_bytes_max)

    def feed(self, data: bytes) -> list[bytes]:
        first, found, rest = data.partition(self._delimiter)
        if not found:
            self._unfinished.add(data)
            return []
        records = [self._unfinished.take() + first]
        *whole, last = rest.split(self._delimiter)
        self._unfinished.add(last)
        return records + whole

    def finish(self) -> list[bytes]:
        last = self._unfinished.take()
        return [last] if last else []


class _WholeSplitter:
    def __init__(self, record_bytes_max: int) -> None:
        self._unfinished = _Unfinished(record_bytes_max)

    def feed(self, data: bytes) -> list[bytes]:
        self._unfinished.add(data)
        return []

    def finish(self) -> list[bytes]:
        return [self._unfinished.take()]


class _LengthSplitter:
    def __init__(self, record_bytes_max: int) -> None:
        self._buffer = bytearray()
        self._max = record_bytes_max
        self._bad: BadInput | None = None

    def feed(self, data: bytes) -> list[bytes]:
        if self._bad is not None:
            raise self._bad
        self._buffer += data
        records: list[bytes] = []
        position, end = 0, len(self._buffer)
        while end - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, position)
            if size > self._max:
                # The records before it are complete: return them first, and raise the error next.
                self._bad = BadInput(f"a record claims {size} bytes; the queue takes {self._max}")
                break
            start = position + _LENGTH.size
            if size > end - start:
                break
            records.append(bytes(self._buffer[start : start + size]))
            position = start + size
        del self._buffer[:position]
        return records

    def finish(self) -> list[bytes]:
        if self._bad is not None:
            raise self._bad
        if self._buffer:
            raise BadInput(f"the input ends inside a record, {len(self._buffer)} bytes into it")
        return []
