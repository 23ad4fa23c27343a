"""The kinds of queue: one `Kind` each, for all code that works on a queue of any kind.

A `Kind` says how it is recognised by the names in a directory, which classes it has, and what it
can do. Its package has two more modules: `check` inspects a queue from outside, and `kind` scans,
puts and lends. They are imported at first use: a program that only uses logs needs neither LZ4 nor
AES nor CBOR.

`describe`, `segments`, `check`, `recover` and `convert` work on a queue of any kind, without its
lock.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from forebay.damage import Damage
from forebay.errors import InvalidOption, NotAQueue
from forebay.formats.beats.versions import LAYOUTS
from forebay.queues.archive.store import ArchiveStore, is_archive, open_store
from forebay.queues.beats.names import is_beats_queue
from forebay.queues.deadline.names import is_deadline_queue, original_names
from forebay.queues.fifo.names import is_fifo
from forebay.queues.shared import names
from forebay.queues.shared.names import Names
from forebay.queues.shared.reports import (
    CopyReport,
    Progress,
    QueueInfo,
    Report,
    SegmentFacts,
    settle,
)
from forebay.queues.shared.rows import Lent, Limits, Rows
from forebay.storage import losses
from forebay.storage.filesystem import Directory, DiskFilesystem, real_path
from forebay.storage.objects import is_address, plain_path, shown

_Path = str | os.PathLike[str]
# The file that marks a root, which is not a queue: see `root.py`.
ROOT = "root-definitions"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue.

    `title` is how a sentence names the kind, `record` is its word for a record, and `place` its
    word for what identifies one. `names` are those in its directories, by which another kind's are
    refused; a kind without them cannot be shared. `room` is its package; `queue`, `reader` and
    `options` are its classes in the modules of these names there. `loop` is the class of its queues
    in `forebay.aio`; "" if they have none. `read_options` are the options
    of its reader other than `salvage`. `versions` are those that `convert` writes.

    What it can do: `has_consumers`, records stay and are read by named consumers; `leases`, items
    are leased by token; `deadlines`, items have a due time; `drops_oldest`, it may drop the oldest
    records when it is full; `lines`, its records are printed and put as lines of JSON.
    """

    name: str
    title: str
    fits: Callable[[list[str]], bool]
    room: str
    queue: str
    reader: str
    options: str
    loop: str = ""
    record: str = "record"
    file: str = "segment"
    place: str = "offset"
    read_options: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    has_consumers: bool = False
    leases: bool = False
    deadlines: bool = False
    drops_oldest: bool = True
    lines: bool = False
    names: Names | None = None

    def open_queue(self, path: _Path, **options: Any) -> Any:
        """Opens a queue as its owner."""
        self.refuse_foreign(path)
        _refuse_archive(path)
        return self.queue_class(path, **options)

    def open_reader(self, path: _Path, **options: Any) -> Any:
        """Opens a queue without owning it."""
        self.refuse_foreign(path)
        return self.reader_class(path, **options)

    def refuse_foreign(self, path: _Path) -> None:
        """Raises `NotAQueue` for a kind that can only be copied, not opened."""
        if not self.queue:
            raise NotAQueue(f'{path} is {self.title}: "forebay recover" brings them into a queue')

    @property
    def queue_class(self) -> Any:
        """The class of its queues."""
        return _load(f"{self.room}.queue", self.queue)

    @property
    def loop_class(self) -> Any:
        """The class of its queues for asyncio."""
        return _load("forebay.aio", self.loop)

    @property
    def reader_class(self) -> Any:
        """The class of its readers."""
        return _load(f"{self.room}.reader", self.reader)

    @property
    def options_class(self) -> Any:
        """The class of the options of its queues."""
        return _load(f"{self.room}.options", self.options)

    @property
    def checks(self) -> Checks:
        """The functions that inspect a queue from outside."""
        return cast(Checks, importlib.import_module(f"{self.room}.check"))

    @property
    def records(self) -> Records:
        """The functions that scan, put and lend."""
        return cast(Records, importlib.import_module(f"{self.room}.kind"))


class Checks(Protocol):
    """What the module `check` of a kind offers; `options` are the kind's `read_options`."""

    def check(self, path: str, progress: Progress, **options: Any) -> Report:
        """Verifies every byte."""
        ...

    def describe(self, path: str, **options: Any) -> QueueInfo:
        """Returns the state of a queue."""
        ...

    def segments(self, path: str, **options: Any) -> Iterable[SegmentFacts]:
        """Describes the files of a queue."""
        ...

    def copy(self, path: str, target: str, progress: Progress, **options: Any) -> CopyReport:
        """Copies all that can be read into a new queue."""
        ...

    def convert(
        self,
        path: str,
        target: str,
        progress: Progress,
        *,
        version: str,
        salvage: bool,
        **options: Any,
    ) -> CopyReport:
        """Copies a queue into another version; only for kinds that have `versions`."""
        ...


class Records(Protocol):
    """What the module `kind` of a kind's package offers; the options differ by kind."""

    def scan(self, path: str, **options: Any) -> Iterator[Rows | Damage]:
        """Yields all records, and damage where it occurs between them."""
        ...

    def is_file(self, path: str) -> bool:
        """Says whether `scan` accepts a path that is a file; only for the original's files."""
        ...

    def peek(self, path: str, **options: Any) -> Iterator[Rows | Damage]:
        """Yields the next records without removing them."""
        ...

    def next_ms(self, path: str, **options: Any) -> int | None:
        """Returns when the next record can be taken, 0 for now; None if there is none."""
        ...

    def limits(self, queue: Any) -> Limits:
        """Returns the limits of what a queue accepts."""
        ...

    def put(self, queue: Any, values: list[bytes], **options: Any) -> tuple[int | None, int | None]:
        """Puts records with one commit; returns the places of the first and the last, if known."""
        ...

    def parse(self, line: bytes) -> bytes | None:
        """Returns the record of a line as `put` takes it; only for kinds that have `lines`."""
        ...

    def lender(self, queue: Any, **options: Any) -> Callable[[int], AbstractContextManager[Lent]]:
        """Returns a function that lends the next records: they are gone when the block ends.

        After an error in the block, the next owner gets them again.
        """
        ...

    def lease(self, queue: Any, count: int, *, seconds: float) -> Lent:
        """Leases records, which come back after some time; only for kinds that have `leases`."""
        ...

    def kick(self, queue: Any, id: int | None = None, *, count: int | None = None) -> int:
        """Brings back records that were set aside; only for kinds that set records aside."""
        ...

    def tail(self, path: str, *, count: int, follow: bool = False) -> Iterator[Rows | Damage | int]:
        """Yields the last records and goes on; only for kinds whose records stay."""
        ...


# The last one fits any directory that no other kind fits: its reader says what is wrong.
KINDS = [
    Kind(
        "beats",
        "a Beats queue",
        is_beats_queue,
        *("forebay.queues.beats", "BeatsQueue", "BeatsReader", "BeatsOptions"),
        loop="BeatsQueue",
        record="event",
        read_options=("key_file",),
        versions=tuple(name for name, row in LAYOUTS.items() if row.writable),
        lines=True,
        names=names.BEATS,
    ),
    Kind(
        "fifo",
        "a fifo",
        is_fifo,
        *("forebay.queues.fifo", "Fifo", "FifoReader", "FifoOptions"),
        loop="Fifo",
        record="entry",
        file="file",
        place="id",
        names=names.FIFO,
    ),
    Kind(
        "deadline",
        "a deadline queue",
        is_deadline_queue,
        *(
            "forebay.queues.deadline",
            "DeadlineQueue",
            "DeadlineReader",
            "DeadlineOptions",
        ),
        loop="DeadlineQueue",
        record="item",
        file="file",
        place="id",
        versions=("1",),
        leases=True,
        deadlines=True,
        drops_oldest=False,
        names=names.DEADLINE,
    ),
    Kind(
        "log",
        "a log",
        lambda names: True,
        *("forebay.queues.log", "Log", "LogReader", "LogOptions"),
        loop="Log",
        has_consumers=True,
        names=names.LOG,
    ),
]
# Not a queue of ours, but it can be scanned, checked and copied.
ORIGINAL = Kind(
    "original",
    "a folder of the original deadline queue's files",
    lambda names: bool(original_names(names)),
    *("forebay.queues.deadline.original", "", "", ""),
    record="item",
    file="file",
    place="id",
)


def kind_of(path: _Path) -> Kind:
    """Returns the kind of queue that a directory holds."""
    _, store = open_store(os.fspath(path))
    try:
        if isinstance(store, ArchiveStore):
            return kind_named(store.manifest.kind)
        names = store.names()
    finally:
        store.close()
    if ROOT in names:
        raise NotAQueue(f'{store.path} is a root of queues: "forebay ls" lists them')
    *others, last = KINDS
    return next((kind for kind in (*others, ORIGINAL) if kind.fits(names)), last)


def sure_kind_of(path: _Path) -> Kind:
    """Returns the same as `kind_of`; raises `NotAQueue` if the directory holds no queue."""
    kind = kind_of(path)
    if kind is KINDS[-1]:
        kind.open_reader(path).close()
    return kind


def kind_named(name: str) -> Kind:
    """Returns the kind with a given name."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    there = ", ".join(repr(kind.name) for kind in KINDS)
    raise InvalidOption(f"kind = {name!r}: must be one of {there}")


def describe(path: _Path, *, key_file: _Path | None = None) -> QueueInfo:
    """Returns the state of a queue, as its `info` does, without its lock, in use or not.

    `key_file` holds the key of an encrypted Beats queue.
    """
    kind, options = _kind_and_options(path, key_file)
    kind.refuse_foreign(path)
    return kind.checks.describe(os.fspath(path), **options)


def segments(path: _Path, *, key_file: _Path | None = None) -> list[SegmentFacts]:
    """Describes the files that hold the records of a queue, without its lock.

    `key_file` holds the key of an encrypted Beats queue.
    """
    kind, options = _kind_and_options(path, key_file)
    kind.refuse_foreign(path)
    return list(kind.checks.segments(os.fspath(path), **options))


def check(
    path: _Path, *, key_file: _Path | None = None, progress: Progress | None = None
) -> Report:
    """Verifies a queue from its first byte to its last; changes nothing and takes no lock.

    The report holds each damage and what it costs, earlier losses that have not been accepted (see
    `accept_losses`), unfinished ends that a crash left, and names that do not belong there.
    `key_file` holds the key of an encrypted Beats queue. `progress` is called with the number of
    records read and, if it is known, the number of all records; it may raise to stop.
    """
    kind, options = _kind_and_options(path, key_file)
    report = kind.checks.check(os.fspath(path), progress or _no_progress, **options)
    _, store = open_store(os.fspath(path))
    try:
        return settle(report, cast(Directory, store))
    finally:
        store.close()


def recover(
    path: _Path, to: _Path, *, key_file: _Path | None = None, progress: Progress | None = None
) -> CopyReport:
    """Copies all that can be read of a queue into a new one at `to`; the old one stays unchanged.

    `to` must not exist, or must be empty. Values, order and times stay the same; the module `check`
    of each kind says what else does. The copy is durable on return; a copy that an error stopped is
    incomplete and should be removed. `key_file` and `progress` are those of `check`.
    """
    kind, options = _kind_and_options(path, key_file)
    check_target(path, to)
    return kind.checks.copy(os.fspath(path), os.fspath(to), progress or _no_progress, **options)


def convert(
    path: _Path,
    to: _Path,
    version: str,
    *,
    salvage: bool = False,
    key_file: _Path | None = None,
    progress: Progress | None = None,
) -> CopyReport:
    """Copies a queue into files of another version at `to`, which must be empty or not exist.

    For a Beats queue: "v1", "v2" and so on; `key_file` is the key file of both queues. For a
    deadline queue: "1", a run that the original program reads, without buried items. Damage raises
    `Damaged`; with `salvage` it is skipped and listed in the report.
    """
    kind, options = _kind_and_options(path, key_file)
    if version not in kind.versions:
        there = ", ".join(kind.versions)
        only = f"give one of {there}" if there else "only Beats and deadline queues are converted"
        raise InvalidOption(f"version = {version!r}: {os.fspath(path)} is {kind.title}; {only}")
    check_target(path, to)
    return kind.checks.convert(
        os.fspath(path),
        os.fspath(to),
        progress or _no_progress,
        version=version,
        salvage=salvage,
        **options,
    )


def check_target(path: _Path, to: _Path) -> None:
    """Raises `NotAQueue` if the target of a copy is not empty or lies within the queue."""
    source, target = plain_path(os.fspath(path)), real_path(os.fspath(to))
    source = source if is_address(source) else real_path(source)
    if not is_address(source) and os.path.commonpath([target, source]) == source:
        raise NotAQueue(
            f"{os.fspath(to)} is in {os.fspath(path)}; give a directory outside of the queue"
        )
    try:
        directory = DiskFilesystem().open_directory(target)
    except FileNotFoundError:
        return
    try:
        if directory.names():
            raise NotAQueue(f"{os.fspath(to)} exists and is not empty; give a new directory")
    finally:
        directory.close()


def accept_losses(path: _Path, found: Iterable[Damage] = ()) -> int:
    """Marks the losses of a queue as seen; returns how many were not marked before.

    `forebay fsck` no longer reports them, and no handle raises `Damaged` for them. `found` are
    losses that need not be on record yet. Durable on return; raises `Locked` while the queue is in
    use.
    """
    _refuse_archive(path)
    directory = DiskFilesystem().open_directory(os.fspath(path))
    try:
        directory.lock()
        return losses.accept(directory, found)
    finally:
        directory.close()


def _refuse_archive(path: _Path) -> None:
    """Raises `NotAQueue` for an archive, which nobody owns."""
    name = os.fspath(path)
    if is_archive(name):
        raise NotAQueue(f'{shown(name)} is an archive: read it, or "forebay recover" makes a queue')


def _kind_and_options(path: _Path, key_file: _Path | None) -> tuple[Kind, dict[str, Any]]:
    kind = kind_of(path)
    if key_file is None:
        return kind, {}
    if "key_file" not in kind.read_options:
        raise InvalidOption(f"key_file has no meaning for {kind.title}")
    return kind, {"key_file": os.fspath(key_file)}


def _no_progress(done: int, total: int | None) -> None:
    """Does nothing: the caller gave no `progress`."""


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
