"""Which module of the source reads which kind of queue, and what such a module offers.

`logs.py`, `events.py`, `fifos.py` and `deadlines.py` are such modules. They are imported at first
use: a task that reads logs needs neither LZ4 nor AES nor CBOR.
"""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from forebay.errors import NotAQueue
from forebay.frames import Damage
from forebay.queues.kinds import kind_of
from forebay.spark import paths
from forebay.spark.bounds import check_paths
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Wanted
from forebay.spark.watch import Live

_MODULES = {
    "log": "forebay.spark.logs",
    "beats": "forebay.spark.events",
    "fifo": "forebay.spark.fifos",
    "deadline": "forebay.spark.deadlines",
}
_logger = logging.getLogger(__name__)
Place = dict[str, Any]


class Kind(Protocol):
    """What the module of a kind offers. `reader` is what its `open_reader` gives.

    Where records have no order by offset, nothing behind `segment_rows` is there but `follow`,
    which raises: no stream reads such a queue.
    """

    # Whether ranges go by offsets, and a bound on offsets narrows them.
    BY_OFFSET: bool

    def open_reader(self, path: str, options: SourceOptions) -> Any:
        """Opens a queue without owning it; raises `NotAQueue`."""
        ...

    def queue_id(self, reader: Any) -> str:
        """Returns what tells a queue from another one at the same path; empty if nothing does."""
        ...

    def bounds(self, reader: Any, options: SourceOptions) -> tuple[int, int]:
        """Gives the offsets at which a batch read begins and ends."""
        ...

    def plan(self, reader: Any, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
        """Gives the ranges of a queue from offset `start` to `end`."""
        ...

    def read(self, wanted: Wanted, parts: Sequence[Range]) -> Iterator[Any]:
        """Gives the records of ranges as Arrow record batches."""
        ...

    def read_damage(self, wanted: Wanted, part: Range) -> Iterator[Damage]:
        """Gives what does not verify in a range."""
        ...

    def consumer_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Gives a row for each saved place."""
        ...

    def segment_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Gives a row for each segment, from headers only."""
        ...

    def begin(self, reader: Any) -> int:
        """Gives the offset of the earliest record."""
        ...

    def gone(self, reader: Any) -> str | None:
        """Says what the queue once had and no reader can get any more; None if nothing."""
        ...

    def first_offset(self, reader: Any, options: SourceOptions) -> int:
        """Gives the offset at which a stream begins: the latest, if the options do not say."""
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
        """Gives the ranges of a stream's batch, from offset `first` up to `place`.

        `before` is the place behind the batch before. What is gone by now is data loss.
        """
        ...


def kind_named(name: str) -> Kind:
    """Gives the module of a kind; raises NotAQueue if Spark reads none of that kind."""
    if name not in _MODULES:
        raise NotAQueue(f"a {name} is no queue that Spark reads; it reads {', '.join(_MODULES)}")
    return cast(Kind, importlib.import_module(_MODULES[name]))


def open_queue(path: str, options: SourceOptions) -> tuple[Kind, Any]:
    """Opens one queue; raises `NotAQueue` or `FileNotFoundError`."""
    kind = kind_named(kind_of(path).name)
    return kind, kind.open_reader(path, options)


def open_queues(options: SourceOptions) -> Iterator[tuple[Kind, Any]]:
    """Opens the queues that paths and patterns name, one after the other.

    A directory that is no queue is an error if it was named, and passed over if a pattern met it.
    """
    named = {path for path in options.paths if not paths.is_pattern(path)}
    found = 0
    matched = paths.expand(options.paths)
    check_paths(options, matched)
    for path in matched:
        try:
            kind, reader = open_queue(path, options)
        except NotAQueue:
            if path in named:
                raise
            _logger.info("%s is not a queue; passed over", path)
            continue
        found += 1
        with reader:
            yield kind, reader
    if not found:
        raise NotAQueue(f"path: no queue matches {', '.join(options.paths)}")


def kinds_of(given: Sequence[str]) -> set[str]:
    """Tells which kinds of queue there are at paths, as far as they are there yet."""
    return {kind_of(path).name for path in paths.find(given)}


def read(wanted: Wanted, parts: Sequence[Range]) -> Iterator[Any]:
    """Gives the records of ranges as Arrow record batches, whatever kind they are of."""
    for name, some in itertools.groupby(parts, key=lambda part: part.kind):
        yield from kind_named(name).read(wanted, tuple(some))
