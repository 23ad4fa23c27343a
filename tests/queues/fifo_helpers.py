"""What the tests of the fifo share: a clock with two hands, and a small queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.formats.entry import parse_file_name
from forebay.kernels.entry import Entry
from forebay.queues.fifo.queue import Fifo

FILE_BYTES = 1_000
DAY_MS = 86_400_000


class TwoClocks:
    """Wall time and the time that the machine has run, moved by the test alone."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self.wall_ms = start_ms
        self.run_ms = 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.run_ms

    def monotonic(self) -> float:
        return self.run_ms / 1000

    def pass_time(self, ms: int) -> None:
        """Lets time go by."""
        self.wall_ms += ms
        self.run_ms += ms

    def set_wall(self, ms: int) -> None:
        """Sets the wall clock by so much, forth or back."""
        self.wall_ms += ms


def open_fifo(path: Path, **options: Any) -> Fifo:
    """Opens a fifo with small files and no thread."""
    settings = {"file_bytes": FILE_BYTES, "background": False, **options}
    return Fifo(path, **settings)


def tape_files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if parse_file_name(file.name) is not None)


def peek_all(fifo: Fifo) -> list[Entry]:
    """Goes over the queue without changing it."""
    entries: list[Entry] = []
    entry = fifo.peek()
    while entry is not None:
        entries.append(entry)
        entry = fifo.peek(after=entry.id)
    return entries
