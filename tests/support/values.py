"""Values that tests put, and bytes that they flip."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Protocol


class HasValue(Protocol):
    """A record of any kind of queue."""

    @property
    def value(self) -> bytes: ...


def numbered(count: int, size: int = 100, first: int = 0) -> list[bytes]:
    """Makes values that can be told apart."""
    return [(b"%08d" % number).ljust(size, b".") for number in range(first, first + count)]


def value_at(number: int) -> bytes:
    """Makes the value of a number: 8 to 808 bytes that nothing else gives."""
    start = blake2b(number.to_bytes(8, "big"), digest_size=8).digest()
    return start * (1 + start[0] % 101)


def values_of(records: Iterable[HasValue]) -> list[bytes]:
    return [record.value for record in records]


def flip(file: Path, *positions: int) -> None:
    """Flips all bits of some bytes, in place: the file may be open."""
    with file.open("r+b") as handle:
        for position in positions:
            handle.seek(position)
            byte = handle.read(1)[0]
            handle.seek(position)
            handle.write(bytes([byte ^ 0xFF]))


def flipped(data: bytes, bit: int) -> bytes:
    """Returns bytes with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
