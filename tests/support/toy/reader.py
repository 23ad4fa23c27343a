"""Reads a toy without owning it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forebay.damage import Damage
from forebay.queues.shared.reader import DirectoryReader


class ToyReader(DirectoryReader):
    """The lines of a toy; one with a `?` in it is damaged."""

    def refresh(self) -> None:
        self.lines = (Path(self.path) / "toy.txt").read_bytes().splitlines()

    def scan(self) -> Iterator[bytes | Damage]:
        for number, line in enumerate(self.lines):
            if b"?" in line:
                yield Damage(f"{self.path}/toy.txt", 0, len(line), "a question", False, number, 1)
            else:
                yield line
