"""What the source needs from a kind of queue, and the module of each kind.

A kind may have a module here, named after the kind, which exports it as `KIND`. It is imported at
first use: a task that reads logs needs neither LZ4 nor AES nor CBOR. Spark reads the other kinds
through their entry in `KINDS` alone (`plain.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow

from forebay.damage import Damage
from forebay.errors import (
    Damaged,
    DataLoss,
    InvalidOption,
    NotAQueue,
    UndecodableEvent,
    UnsupportedVersion,
    WrongKey,
)
from forebay.queues.archive.store import Archives, is_archive
from forebay.queues.kinds import KINDS, kind_of
from forebay.spark import paths
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, ReadRequest, Unreadable, check_paths
from forebay.spark.rows import Contents, RangeRows
from forebay.spark.watch import Live
from forebay.storage.objects import shown

# Errors that keep one queue from being read and do not concern the others.
UNREADABLE = (OSError, Damaged, UndecodableEvent, UnsupportedVersion, WrongKey)
_Item = TypeVar("_Item")
_logger = logging.getLogger(__name__)
Place = dict[str, Any]


class Kind(ABC):
    """How Spark reads a kind of queue. `reader` is the result of its `open_reader`."""

    name: str
    # With its article, for messages.
    label: str
    # The columns that records of this kind have in addition to the common ones.
    columns: pyarrow.Schema = pyarrow.schema([])
    # Those of them that are JSON text, and that a user's schema may declare as structs.
    documents: tuple[str, ...] = ()
    # Whether ranges are ordered by offset, so that a bound on offsets narrows them.
    by_offset = True
    # The error message for the table of consumers, if there are none.
    no_consumers = ""
    # Why no stream reads such a queue, and what to use instead.
    no_stream = ""
    # Whether an ingest lands snapshots of such a queue instead of a stream.
    lands_snapshots = False
    # Whether a stream holds a cursor in the queue.
    has_cursors = False
    # Whether the sink writes to such a queue.
    is_written = False

    @abstractmethod
    def open_reader(self, path: str, options: SourceOptions) -> Any:
        """Opens a queue without owning it; raises `NotAQueue`."""

    def queue_id(self, reader: Any) -> str:
        """Returns an id that differs from that of another queue at the same path; may be empty."""
        return "" if reader.tail is None else reader.tail.queue_id.hex()

    @abstractmethod
    def bounds(self, reader: Any, options: SourceOptions) -> tuple[int, int]:
        """Returns the offsets at which a batch read starts and ends."""

    @abstractmethod
    def plan(self, reader: Any, start: int, end: int, wanted: ReadRequest) -> Iterator[Range]:
        """Returns the ranges of a queue from offset `start` to `end`."""

    @abstractmethod
    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a queue to read ranges of it."""

    def consumer_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Returns a row for each saved position."""
        return iter(())

    @abstractmethod
    def segment_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Returns a row for each segment, from headers only."""


class StreamedKind(Kind):
    """How Spark reads a kind of queue that a stream can follow."""

    @abstractmethod
    def begin(self, reader: Any) -> int:
        """Returns the offset of the earliest record."""

    @abstractmethod
    def gone(self, reader: Any) -> str | None:
        """Describes what the queue once had and can no longer be read; None if nothing."""

    @abstractmethod
    def first_offset(self, reader: Any, options: SourceOptions) -> int:
        """Returns the offset at which a stream starts; by default the latest."""

    @abstractmethod
    def follow(self, path: str, options: SourceOptions) -> Live:
        """Opens a queue for a stream that polls it."""

    @abstractmethod
    def holds(self, reader: Any, incarnation: int, end: int) -> bool:
        """Returns whether a queue still has what it had up to `end` in an incarnation."""

    @abstractmethod
    def resume(
        self, reader: Any, first: int, before: Place, place: Place, options: SourceOptions
    ) -> Iterator[Range]:
        """Returns the ranges of a stream's batch, from offset `first` up to `place`.

        `before` is the place after the previous batch. Anything that is gone by now is data loss.
        """


def kind_named(name: str) -> Kind:
    """Returns a kind; raises `NotAQueue` if Spark reads none of that name."""
    record = next((record for record in KINDS if record.name == name), None)
    if record is None:
        names = ", ".join(record.name for record in KINDS)
        raise NotAQueue(f"Spark cannot read a {name}; it reads {names}")
    if importlib.util.find_spec(f"{__name__}.{name}") is None:
        from forebay.spark.kinds.plain import PlainKind

        return PlainKind(record)
    kind = importlib.import_module(f"{__name__}.{name}").KIND
    assert isinstance(kind, Kind)
    return kind


def kind_at(path: str) -> Kind:
    """Returns the kind of the queue at a path; raises `NotAQueue` or `FileNotFoundError`."""
    return kind_named(kind_of(path).name)


def all_kinds() -> Iterator[Kind]:
    """Yields the kinds that Spark reads, each imported when it is requested.

    The one with the most to import comes last.
    """
    return (kind_named(record.name) for record in reversed(KINDS))


def open_queue(path: str, options: SourceOptions) -> tuple[Kind, Any]:
    """Opens one queue; raises `NotAQueue` or `FileNotFoundError`."""
    kind = kind_at(path)
    return kind, kind.open_reader(path, options)


def _archives_of(given: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns the archives among paths: the address by kind and queue id."""
    found = {}
    for path in given:
        if is_archive(path):
            # One that cannot be read is reported where it is opened.
            with contextlib.suppress(NotAQueue, *UNREADABLE):
                archive = Archives().open_directory(path)
                archive.close()
                found[archive.manifest.kind, archive.manifest.queue_id] = path
    return found


def open_streamed(path: str, options: SourceOptions) -> tuple[StreamedKind, Any]:
    """Opens one queue as `open_queue` does; raises `InvalidOption` if no stream reads its kind."""
    kind = check_streamed(path)
    return kind, kind.open_reader(path, options)


def check_streamed(path: str) -> StreamedKind:
    """Returns the kind of a queue; raises `InvalidOption` if no stream reads that kind."""
    kind = kind_at(path)
    if is_archive(path):
        raise InvalidOption(f"{path} is an archive: a stream reads queues, spark.read archives")
    if not isinstance(kind, StreamedKind):
        raise InvalidOption(f"{path} is {kind.label}, {kind.no_stream}")
    return kind


def open_queues(
    options: SourceOptions,
    unreadable: Callable[[Unreadable], None] | None = None,
    *,
    joined: bool = True,
) -> Iterator[tuple[Kind, Any]]:
    """Opens the queues that paths and patterns name, one after another.

    A queue that is there on its host and in an archive is one, unless `joined` is false. The id of
    the queue tells that, not a name.

    A directory that is not a queue is an error if it was named, and is skipped if a pattern matched
    it. An unreadable queue is an error too, unless `unreadable` is given: then it is called.
    """
    named = {path for path in options.paths if not paths.is_pattern(path)}
    found = 0
    have_hosts: set[str] = set()
    matched = paths.expand(options.paths)
    check_paths(options, matched)
    archives = _archives_of(matched) if joined else {}
    # Hosts first, as the archives that they have need not be read again.
    for path in sorted(matched, key=is_archive) if archives else matched:
        if path in archives.values() and path in have_hosts:
            continue
        try:
            kind, reader = open_queue(path, options)
            address = archives.get((kind.name, kind.queue_id(reader)))
            if address is not None and address != path:
                have_hosts.add(address)
                reader.close()
                kind, reader = open_queue(path, replace(options, archive=address))
        except (NotAQueue, *UNREADABLE) as error:
            if not isinstance(error, NotAQueue) or _is_about_a_file(error, path):
                if unreadable is None:
                    raise
                found += 1
                unreadable(unreadable_of(path, error))
            elif path in named:
                raise
            else:
                _logger.info("%s is not a queue; skipped", path)
            continue
        found += 1
        with reader:
            yield kind, reader
    if not found:
        raise NotAQueue(f"path: no queue matches {', '.join(options.paths)}")


def _is_about_a_file(error: NotAQueue, path: str) -> bool:
    """Returns whether a directory was rejected because of one of its files: a link or directory."""
    return str(error).startswith(f"{path}/")


def kinds_of(given: Sequence[str]) -> list[Kind]:
    """Returns the kinds of the queues at the paths, as far as they can be read."""
    found = set()
    for path in paths.find(given):
        with contextlib.suppress(NotAQueue, *UNREADABLE):
            found.add(kind_of(path).name)
    return [kind_named(name) for name in sorted(found)]


def unreadable_of(path: str, error: Exception, part: Range | None = None) -> Unreadable:
    """Returns a range that represents an unreadable part, with the reason."""
    if isinstance(error, Damaged):
        damage = error.damage
    else:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = getattr(error, "filename", None)
        where = where if isinstance(where, str) and where.startswith("/") else shown(path)
        damage = Damage(where, 0, 0, f"cannot be read: {reason}")
    if part is None:
        return Unreadable("", shown(path), 0, 0, damage=damage)
    if damage.offset is None:
        damage = replace(damage, offset=part.start)
    return Unreadable(part.kind, path, part.start, part.end, queue_id=part.queue_id, damage=damage)


def planned(parts: Iterator[Range], path: str, *, tolerant: bool) -> Iterator[Range]:
    """Yields the ranges of a queue; if planning fails, those planned so far and the reason."""
    try:
        yield from parts
    except (NotAQueue, *UNREADABLE) as error:
        if not tolerant:
            raise
        yield unreadable_of(path, error)


def read(wanted: ReadRequest, parts: Sequence[Range]) -> Iterator[Any]:
    """Yields the records of ranges of any kind as Arrow record batches."""

    def look(contents: Contents, part: Range) -> Iterator[Any]:
        return contents.read(wanted, part)

    yield from _by_queue(wanted, parts, look, _damage_row)


def read_damage(wanted: ReadRequest, parts: Sequence[Range]) -> Iterator[tuple[Range, Damage]]:
    """Yields what does not verify in ranges, and what cannot be read."""

    def look(contents: Contents, part: Range) -> Iterator[tuple[Range, Damage]]:
        return ((part, damage) for damage in contents.read_damage(part))

    def tell(_: ReadRequest, part: Unreadable) -> Iterator[tuple[Range, Damage]]:
        assert part.damage is not None
        yield part, part.damage

    yield from _by_queue(replace(wanted, mode="PERMISSIVE"), parts, look, tell)


def _by_queue(
    wanted: ReadRequest,
    parts: Sequence[Range],
    look: Callable[[Contents, Range], Iterator[_Item]],
    tell: Callable[[ReadRequest, Unreadable], Iterator[_Item]],
) -> Iterator[_Item]:
    """Reads ranges, those of one queue together; `tell` reports what cannot be read."""
    for (name, queue, archive), some in itertools.groupby(parts, key=_place_of):
        wanted = replace(wanted, archive=archive)
        waiting = deque(some)
        while waiting:
            part = waiting[0]
            if isinstance(part, Unreadable):
                waiting.popleft()
                yield from tell(wanted, part)
                continue
            try:
                with kind_named(name).open_contents(queue, wanted) as contents:
                    while waiting and not isinstance(waiting[0], Unreadable):
                        part = waiting.popleft()
                        yield from look(contents, part)
            except (*UNREADABLE, NotAQueue, DataLoss) as error:
                if not _may_pass(wanted, error):
                    raise
                if waiting and waiting[0] is part:
                    # The queue itself could not be opened.
                    waiting.popleft()
                # The ranges after the failing one are still waiting.
                yield from tell(wanted, unreadable_of(queue, error, part))


def _place_of(part: Range) -> tuple[str, str, str]:
    return part.kind, part.queue, part.archive


def _may_pass(wanted: ReadRequest, error: Exception) -> bool:
    """Returns whether to read the other ranges in spite of an error in one."""
    if isinstance(error, DataLoss):
        # A directory that is entirely gone counts as unreadable.
        return wanted.tolerant and not wanted.fail_on_data_loss
    gone = isinstance(error, FileNotFoundError | NotAQueue)
    return wanted.tolerant and not (gone and wanted.stream)


def _damage_row(wanted: ReadRequest, part: Unreadable) -> Iterator[Any]:
    assert part.damage is not None
    if wanted.shows_damage:
        yield RangeRows(wanted.schema, part).of_damage(part.damage)
    else:
        _logger.warning("%s: %s", part.damage.path, part.damage.reason)
