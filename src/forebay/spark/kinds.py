"""Which module of the source reads which kind of queue, and what such a module offers.

`logs.py`, `events.py`, `fifos.py` and `deadlines.py` are such modules. They are imported at first
use: a task that reads logs needs neither LZ4 nor AES nor CBOR.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

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
from forebay.queues.kinds import kind_of
from forebay.spark import paths
from forebay.spark.bounds import check_paths
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Unreadable, Wanted
from forebay.spark.rows import Rows
from forebay.spark.watch import Live

_MODULES = {
    "log": "forebay.spark.logs",
    "beats": "forebay.spark.events",
    "fifo": "forebay.spark.fifos",
    "deadline": "forebay.spark.deadlines",
}
# What keeps one queue from being read and says nothing of the others.
UNREADABLE = (OSError, Damaged, UndecodableEvent, UnsupportedVersion, WrongKey)
_Item = TypeVar("_Item")
_logger = logging.getLogger(__name__)
Place = dict[str, Any]


class Kind(Protocol):
    """What the module of a kind offers. `reader` is what its `open_reader` gives.

    Where `NO_STREAM` says something, nothing after `segment_rows` is there.
    """

    # Whether ranges go by offsets, and a bound on offsets narrows them.
    BY_OFFSET: bool
    # Why no stream reads such a queue, and what to use instead; empty where streams read it.
    NO_STREAM: str

    def open_reader(self, path: str, options: SourceOptions) -> Any:
        """Opens a queue without owning it; raises `NotAQueue`."""
        ...

    def queue_id(self, reader: Any) -> str:
        """Returns what tells a queue from another one at the same path; empty if nothing does."""
        ...

    def bounds(self, reader: Any, options: SourceOptions) -> tuple[int, int]:
        """Returns the offsets at which a batch read begins and ends."""
        ...

    def plan(self, reader: Any, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
        """Returns the ranges of a queue from offset `start` to `end`."""
        ...

    def read(self, wanted: Wanted, parts: Iterable[Range]) -> Iterator[Any]:
        """Returns the records of ranges as Arrow record batches."""
        ...

    def read_damage(self, wanted: Wanted, part: Range) -> Iterator[Damage]:
        """Returns what does not verify in a range."""
        ...

    def consumer_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Returns a row for each saved place."""
        ...

    def segment_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Returns a row for each segment, from headers only."""
        ...

    def begin(self, reader: Any) -> int:
        """Returns the offset of the earliest record."""
        ...

    def gone(self, reader: Any) -> str | None:
        """Says what the queue once had and no reader can get any more; None if nothing."""
        ...

    def first_offset(self, reader: Any, options: SourceOptions) -> int:
        """Returns the offset at which a stream begins: the latest, if the options do not say."""
        ...

    def follow(self, path: str, options: SourceOptions) -> Live:
        """Opens a queue for a stream that looks at it again and again."""
        ...

    def holds(self, reader: Any, incarnation: int, end: int) -> bool:
        """Says whether a queue still has what it had up to `end` in an incarnation."""
        ...

    def resume(
        self, reader: Any, first: int, before: Place, place: Place, options: SourceOptions
    ) -> Iterator[Range]:
        """Returns the ranges of a stream's batch, from offset `first` up to `place`.

        `before` is the place behind the batch before. What is gone by now is data loss.
        """
        ...


def kind_named(name: str) -> Kind:
    """Returns the module of a kind; raises NotAQueue if Spark reads none of that kind."""
    if name not in _MODULES:
        raise NotAQueue(f"a {name} is no queue that Spark reads; it reads {', '.join(_MODULES)}")
    return cast(Kind, importlib.import_module(_MODULES[name]))


def open_queue(path: str, options: SourceOptions) -> tuple[Kind, Any]:
    """Opens one queue; raises `NotAQueue` or `FileNotFoundError`."""
    kind = kind_named(kind_of(path).name)
    return kind, kind.open_reader(path, options)


def check_streamed(path: str) -> Kind:
    """Returns the module of a queue's kind; raises `InvalidOption` if no stream reads that kind."""
    kind = kind_named(kind_of(path).name)
    if kind.NO_STREAM:
        raise InvalidOption(f"{path} is {kind.NO_STREAM}")
    return kind


def open_queues(
    options: SourceOptions, unreadable: Callable[[Unreadable], None] | None = None
) -> Iterator[tuple[Kind, Any]]:
    """Opens the queues that paths and patterns name, one after the other.

    A directory that is no queue is an error if it was named, and passed over if a pattern met it.
    One that cannot be read is an error too, unless `unreadable` takes it.
    """
    named = {path for path in options.paths if not paths.is_pattern(path)}
    found = 0
    matched = paths.expand(options.paths)
    check_paths(options, matched)
    for path in matched:
        try:
            kind, reader = open_queue(path, options)
        except (NotAQueue, *UNREADABLE) as error:
            if not isinstance(error, NotAQueue) or _is_about_a_file(error, path):
                if unreadable is None:
                    raise
                found += 1
                unreadable(unreadable_of(path, error))
            elif path in named:
                raise
            else:
                _logger.info("%s is not a queue; passed over", path)
            continue
        found += 1
        with reader:
            yield kind, reader
    if not found:
        raise NotAQueue(f"path: no queue matches {', '.join(options.paths)}")


def _is_about_a_file(error: NotAQueue, path: str) -> bool:
    """Says whether a directory is refused for one of its files: a link, or another directory."""
    return str(error).startswith(f"{path}/")


def kinds_of(given: Sequence[str]) -> set[str]:
    """Tells which kinds of queue there are at paths, as far as they are there and can be read."""
    found = set()
    for path in paths.find(given):
        with contextlib.suppress(NotAQueue, *UNREADABLE):
            found.add(kind_of(path).name)
    return found


def unreadable_of(path: str, error: Exception, part: Range | None = None) -> Unreadable:
    """Returns a range that stands for what cannot be read, with the reason."""
    if isinstance(error, Damaged):
        damage = error.damage
    else:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = getattr(error, "filename", None)
        where = where if isinstance(where, str) and where.startswith("/") else path
        damage = Damage(where, 0, 0, f"cannot be read: {reason}")
    if part is None:
        return Unreadable("", path, 0, 0, damage=damage)
    if damage.offset is None:
        damage = replace(damage, offset=part.start)
    return Unreadable(part.kind, path, part.start, part.end, queue_id=part.queue_id, damage=damage)


def planned(parts: Iterator[Range], path: str, *, tolerant: bool) -> Iterator[Range]:
    """Returns the ranges of a queue; if its planning fails, what is planned and the reason."""
    try:
        yield from parts
    except (NotAQueue, *UNREADABLE) as error:
        if not tolerant:
            raise
        yield unreadable_of(path, error)


def read(wanted: Wanted, parts: Sequence[Range]) -> Iterator[Any]:
    """Returns the records of ranges as Arrow record batches, whatever kind they are of."""
    yield from _by_kind(wanted, parts, lambda kind, some: kind.read(wanted, some), _damage_row)


def read_damage(wanted: Wanted, parts: Sequence[Range]) -> Iterator[tuple[Range, Damage]]:
    """Returns what does not verify in ranges, and what cannot be read of them."""

    def look(kind: Kind, some: Iterator[Range]) -> Iterator[tuple[Range, Damage]]:
        for part in some:
            for damage in kind.read_damage(wanted, part):
                yield part, damage

    def tell(_: Wanted, part: Unreadable) -> Iterator[tuple[Range, Damage]]:
        assert part.damage is not None
        yield part, part.damage

    yield from _by_kind(replace(wanted, mode="PERMISSIVE"), parts, look, tell)


def _by_kind(
    wanted: Wanted,
    parts: Sequence[Range],
    look: Callable[[Kind, Iterator[Range]], Iterator[_Item]],
    tell: Callable[[Wanted, Unreadable], Iterator[_Item]],
) -> Iterator[_Item]:
    """Looks at ranges, those of one queue together; `tell` tells of what cannot be read."""
    for (name, queue), some in itertools.groupby(parts, key=lambda part: (part.kind, part.queue)):
        waiting = deque(some)
        while waiting:
            first = waiting[0]
            if isinstance(first, Unreadable):
                waiting.popleft()
                yield from tell(wanted, first)
                continue
            taken: list[Range] = []
            try:
                yield from look(kind_named(name), _one_by_one(waiting, taken))
            except (*UNREADABLE, NotAQueue, DataLoss) as error:
                if not _may_pass(wanted, error):
                    raise
                # The ranges after the one that it came from are still waiting.
                yield from tell(wanted, unreadable_of(queue, error, taken[-1]))


def _one_by_one(waiting: deque[Range], taken: list[Range]) -> Iterator[Range]:
    """Returns ranges from the head of a list, up to one that cannot be read."""
    while waiting and not isinstance(waiting[0], Unreadable):
        taken[:] = [waiting.popleft()]
        yield taken[0]


def _may_pass(wanted: Wanted, error: Exception) -> bool:
    """Says whether the others are read in spite of an error with one range."""
    if isinstance(error, DataLoss):
        # A directory that is gone as a whole is as any that cannot be read.
        return wanted.tolerant and not wanted.fail_on_data_loss
    gone = isinstance(error, FileNotFoundError | NotAQueue)
    return wanted.tolerant and not (gone and wanted.stream)


def _damage_row(wanted: Wanted, part: Unreadable) -> Iterator[Any]:
    assert part.damage is not None
    if wanted.mode == "PERMISSIVE" and "damage" in wanted.schema.names:
        yield Rows(wanted.schema, part).of_damage(part.damage)
    else:
        _logger.warning("%s: %s", part.damage.path, part.damage.reason)
