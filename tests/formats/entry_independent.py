"""A second decoder of the entry format, written from its page alone, one byte after the other.

Knows nothing of ours: no kernel, no codec, no side file but the name pattern and the size of files.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from pathlib import Path


class Tape:
    """The bytes of a directory's tape, by position."""

    def __init__(self, directory: Path) -> None:
        names = sorted(path.name for path in directory.iterdir())
        found = [re.fullmatch(r"([0-9a-f]{10,})\.tape", name) for name in names]
        self.files = {int(match[1], 16): directory / match[0] for match in found if match}
        (self.file_bytes,) = {path.stat().st_size for path in self.files.values()}
        self._data = {number: path.read_bytes() for number, path in self.files.items()}

    def byte(self, position: int) -> int | None:
        file, at = divmod(position, self.file_bytes)
        return self._data[file][at] if file in self._data else None

    def take(self, position: int, size: int) -> bytes | None:
        values = [self.byte(position + index) for index in range(size)]
        return None if None in values else bytes(value for value in values if value is not None)


def number_of(data: bytes) -> int:
    return sum(byte << 8 * index for index, byte in enumerate(data))


def read_tape(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yields (id, ttl, data) of all entries from the first file's first byte on."""
    tape = Tape(directory)
    if not tape.files:
        return
    position = min(tape.files) * tape.file_bytes
    version = None
    while True:
        head = tape.take(position, 32)
        if head is not None and number_of(head[:4]) == binascii.crc32(head[4:]):
            # One for the whole queue.
            version = version or head[4:12]
            assert head[4:12] == version
            assert version[:4] == b"FBE2"
            data = tape.take(position + 32, number_of(head[12:16]))
            assert data is not None
            assert number_of(head[28:32]) == binascii.crc32(data)
            yield number_of(head[20:28]), number_of(head[16:20]), data
            position += 32 + len(data)
            continue
        file = position // tape.file_bytes
        rest = tape.take(position, (file + 1) * tape.file_bytes - position)
        assert rest is None or not any(rest), f"neither an entry nor zeros at {position}"
        following = [number for number in tape.files if number > file]
        if not following:
            return
        position = min(following) * tape.file_bytes
