"""Starts, hears and kills the owner of `owner.py`."""

from __future__ import annotations

from pathlib import Path

from tests.support.killing import Program
from tests.support.waiting import wait_until


class Owner(Program):
    """A process that owns a queue; `acknowledged` are the records that it is sure of."""

    def __init__(self, path: Path, first: int = 0, window: str = "") -> None:
        output = path.parent / f"owner-from-{first}"
        super().__init__("tests.spark.owner", path, first, window, output=output)

    @property
    def acknowledged(self) -> list[bytes]:
        return [line for line in self._lines() if line.startswith(b"own")]

    def has_said(self, word: str) -> bool:
        """Says whether a line came that begins with a word."""
        return any(line.split()[0] == word.encode() for line in self._lines())

    def wait_for(self, word: str) -> bool:
        """Waits for a line that begins with a word; says whether it came."""
        return wait_until(lambda: self.has_said(word))

    def _lines(self) -> list[bytes]:
        """Returns what it has told: whole lines."""
        return self.output.read_bytes().split(b"\n")[:-1]
