"""A fifth kind of queue, as small as it can be: a file with a line of text for each record.

It shows what a kind needs to be one: its record, and the five modules of a room, all in this file.
A line with a `?` in it is damaged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

from forebay.damage import Damage
from forebay.errors import Closed, Full, NotAQueue, RecordTooLarge
from forebay.queues.kinds import Kind
from forebay.queues.shared.handle import Closing
from forebay.queues.shared.options import QueueOptions
from forebay.queues.shared.reader import DirectoryReader
from forebay.queues.shared.reports import Findings, Progress, QueueInfo, Report
from forebay.queues.shared.rows import Lent, Limits, Rows, value_json
from forebay.storage.atomic import TEMPORARY, read_small, replace
from forebay.storage.filesystem import DiskFilesystem, lock_owner

NAME = "toy.txt"
TOY = Kind(
    *("toy", "a toy", lambda names: NAME in names),
    *(__name__, "Toy", "ToyReader", "QueueOptions"),
    record="line",
    file="file",
    drops_oldest=False,
)
for part in ("options", "queue", "reader", "check", "kind"):
    sys.modules[f"{__name__}.{part}"] = sys.modules[__name__]


class Toy(Closing):
    """Lines of text that are put at the end and taken from the front. Any thread may use it."""

    def __init__(self, path: Any, filesystem: Any = None, **options: Any) -> None:
        self.options = QueueOptions(**options)
        self._mutex = threading.Lock()
        disk = filesystem or DiskFilesystem()
        self._directory = disk.open_directory(os.fspath(path), create=True)
        self._owner = os.getpid()
        try:
            self._directory.lock()
            if strange := set(self._directory.names()) - {NAME, NAME + TEMPORARY}:
                raise NotAQueue(f"{path} is not a toy: it holds {min(strange)!r}")
            self._replace((read_small(self._directory, NAME) or b"").splitlines())
        except BaseException:
            self.close()
            raise

    def put(self, value: bytes) -> None:
        self.put_many([value])

    def put_many(self, values: list[bytes]) -> None:
        with self._mutex:
            self._replace([*self.lines, *values])

    def take(self, count: int) -> list[bytes]:
        with self._mutex:
            taken = self.lines[:count]
            self._replace(self.lines[count:])
            return taken

    def sync(self) -> None:
        if self._owner != os.getpid():
            raise Closed("the toy is closed, or its owner is another process")

    def close(self) -> None:
        self._owner = 0
        self._directory.close()

    def _replace(self, lines: list[bytes]) -> None:
        self.sync()
        data = b"".join(line + b"\n" for line in lines)
        if len(data) > (self.options.max_bytes or 1 << 30):
            raise (Full if len(lines) > 1 else RecordTooLarge)(f"lines of {len(data)} bytes")
        replace(self._directory, NAME, data)
        self.lines = lines


class ToyReader(DirectoryReader):
    """The lines of a toy."""

    def refresh(self) -> None:
        self.lines = (read_small(self._directory, NAME) or b"").splitlines()

    def scan(self) -> Generator[bytes | Damage, None, None]:
        for number, line in enumerate(self.lines):
            bad = Damage(f"{self.path}/{NAME}", 0, len(line), "a question", False, number, 1)
            yield bad if b"?" in line else line

    def __iter__(self) -> Iterator[bytes]:
        return self._sound(self.scan())

    def facts(self, lost: int = 0) -> dict[str, Any]:
        state = "closed" if lock_owner(self.path) is None else "open"
        counts = {"records": len(self.lines) - lost, "segments": 1, "bytes": self.size_of(NAME)}
        return {"kind": TOY.name, "path": self.path, "state": state, **counts}


def check(path: str, progress: Progress) -> Report:
    with ToyReader(path) as reader:
        found = Findings([item for item in reader.scan() if isinstance(item, Damage)])
        return Report(**reader.facts(len(found.found)), **found.as_fields())


def describe(path: str) -> QueueInfo:
    with ToyReader(path) as reader:
        return QueueInfo(**reader.facts(), owner=lock_owner(path))


def scan(path: str) -> Iterator[Rows | Damage]:
    with ToyReader(path) as reader:
        for item in reader.scan():
            yield item if isinstance(item, Damage) else rows_of([item])


def next_ms(path: str) -> int | None:
    with ToyReader(path) as reader:
        return 0 if reader.lines else None


def limits(toy: Toy) -> Limits:
    return Limits(1_000)


def put(toy: Toy, values: list[bytes]) -> tuple[int | None, int | None]:
    toy.put_many(values)
    return None, None


def lender(toy: Toy) -> Callable[[int], AbstractContextManager[Lent]]:
    @contextlib.contextmanager
    def lend(count: int) -> Iterator[Lent]:
        yield Lent(rows_of(toy.lines[:count]))
        toy.take(count)

    return lend


def rows_of(lines: list[bytes]) -> Rows:
    return Rows(lines, lambda index: b'{"kind":"toy",%b}\n' % value_json(lines[index]))
