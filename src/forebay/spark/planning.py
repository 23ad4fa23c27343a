"""Divides queues into Spark tasks: what each task reads, in pieces of about the same size.

Planning reads only the headers of segments. Small segments are packed together. Large ones are cut
at bytes: a task starts at the first certain frame after its cut and ends where the next task
starts, and both find that place from the segment alone (`queues/log/scanner.py`).

It also derives from the options where a read starts and ends in a queue, and what counts as loss.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from forebay.damage import Damage
from forebay.errors import DataLoss, InvalidOption
from forebay.spark import paths
from forebay.spark.options import Bound, SourceOptions
from forebay.storage.tail import Tail

# The cost of opening one more file, in bytes that could be read in that time.
_OPEN_BYTES = 256 << 10
_SMALLEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one queue, by offset: in one segment, or wherever they are when read."""

    kind: str
    queue: str
    start: int
    end: int
    segment: str = ""
    base: int = 0
    # Where they are in the segment, approximately; exact where the range is cut.
    first_byte: int = 0
    last_byte: int = 0
    cut_first: bool = False
    cut_last: bool = False
    can_be_cut: bool = False
    # Distinguishes the queue from another one at the same path; set only if the column is wanted.
    queue_id: str = ""
    # Where in the segment the first record is, if that is known and its offset does not determine
    # it.
    position: int = 0
    # The address of the archive of the queue, if there is one: what is not on the host is there.
    archive: str = ""

    @property
    def size(self) -> int:
        """Returns roughly how many bytes have to be read."""
        return self.last_byte - self.first_byte

    def cut(self, size: int) -> tuple[Range, Range]:
        """Cuts the range after about that many bytes."""
        place = self.first_byte + size
        return (
            replace(self, last_byte=place, cut_last=True),
            replace(self, first_byte=place, cut_first=True),
        )


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a task returns: which columns, which times, and how it treats damage."""

    schema: Any
    mode: str = "FAILFAST"
    fail_on_data_loss: bool = True
    start_ms: int | None = None
    end_ms: int | None = None
    key_file: str | None = None
    # The times come from filters alone, which a record without a time never passes.
    times_are_filters: bool = False
    # A stream has already told Spark what a batch holds: anything that disappears is data loss.
    stream: bool = False
    # That of the range being read.
    archive: str = ""

    @property
    def tolerant(self) -> bool:
        """Returns whether unreadable data is left out."""
        return self.mode != "FAILFAST"

    @property
    def wants_values(self) -> bool:
        """Returns whether the payloads are wanted."""
        return self.schema is not None and "value" in self.schema.names

    @property
    def shows_damage(self) -> bool:
        """Returns whether damage has rows of its own."""
        return self.mode == "PERMISSIVE" and "damage" in self.schema.names


def with_queue_id(ranges: Iterable[Range], wanted: ReadRequest, queue_id: str) -> Iterator[Range]:
    """Returns the ranges with the id of their queue, if that column is wanted."""
    if wanted.schema is None or "queue_id" not in wanted.schema.names:
        yield from ranges
        return
    for part in ranges:
        yield replace(part, queue_id=queue_id)


def with_archive(ranges: Iterable[Range], reader: Any) -> Iterator[Range]:
    """Returns the ranges of a reader with the address of the archive that it reads, if any."""
    address = archive_of(reader)
    return (replace(part, archive=address) for part in ranges) if address else iter(ranges)


def archive_of(reader: Any) -> str:
    """Returns the address of the archive that a reader reads; "" if it reads none."""
    address: str = getattr(getattr(reader, "directory", None), "address", "")
    return address


@dataclass(frozen=True, slots=True)
class Unreadable(Range):
    """An unreadable part of a queue, and why; it has no records."""

    damage: Damage | None = None


class Task(InputPartition):
    """The ranges that one Spark task reads, in this order."""

    def __init__(self, ranges: tuple[Any, ...]) -> None:
        super().__init__(ranges)


def pack(
    ranges: Iterable[Range], partition_bytes: int, partitions_min: int = 1
) -> list[InputPartition]:
    """Groups ranges into tasks of at most about that many bytes, in their order.

    The number of tasks is a multiple of the cores, so that no core idles at the end. There are at
    least about `partitions_min`, if the ranges can be cut into so many.
    """
    waiting = list(ranges)
    total = sum(part.size + _OPEN_BYTES for part in waiting)
    cores = os.cpu_count() or 1
    tasks = math.ceil(math.ceil(total / partition_bytes) / cores) * cores
    target = max(total // max(tasks, 1), min(_SMALLEST_BYTES, partition_bytes)) + 1
    if partitions_min > tasks:
        target = min(target, total // partitions_min + 1)
    packed: list[InputPartition] = []
    held: list[Range] = []
    room = target
    for whole in waiting:
        part = whole
        while part.can_be_cut and part.size > room + target // 8 and part.size > 1:
            head, part = part.cut(max(1, min(room, part.size - 1)))
            packed.append(Task((*held, head)))
            held, room = [], target
        if held and part.size > room + target // 8:
            packed.append(Task(tuple(held)))
            held, room = [], target
        held.append(part)
        room -= part.size + _OPEN_BYTES
        if room <= target // 8:
            packed.append(Task(tuple(held)))
            held, room = [], target
    if held:
        packed.append(Task(tuple(held)))
    return packed


_logger = logging.getLogger(__name__)
_CONSUMER = "consumer:"


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a queue: where it begins, how far it is durable, where it ends.

    `places` returns the saved positions of its readers by name.
    """

    path: str
    begin: int
    durable: int
    end: int
    places: Callable[[], dict[str, int]]


def first_offset(queue: Extent, options: SourceOptions, otherwise: str) -> int:
    """Returns the offset at which a read starts; `otherwise` is the default."""
    bound = _of_path(options.start if options.start is not None else otherwise, queue.path)
    if bound is None:
        bound = otherwise
    if isinstance(bound, str) and bound.startswith(_CONSUMER):
        bound = _place_of(queue, bound.removeprefix(_CONSUMER))
    if bound == "earliest":
        return queue.begin
    if bound == "latest":
        return queue.durable
    start = int(bound)
    if start < queue.begin:
        lose(options, f"{queue.path} begins at offset {queue.begin}: {start} was trimmed")
        return queue.begin
    if start > queue.end:
        lose(options, f"{queue.path} ends at offset {queue.end}, before {start}")
        return queue.end
    return start


def end_offset(queue: Extent, options: SourceOptions) -> int:
    """Returns the offset at which a batch read ends."""
    bound = _of_path(options.end, queue.path)
    if bound is None or isinstance(bound, str):
        return queue.end
    if bound > queue.end:
        lose(options, f"{queue.path} ends at offset {queue.end}, before {bound}")
    return min(bound, queue.end)


def check_paths(options: SourceOptions, found: Collection[str]) -> None:
    """Rejects a bound for a queue that is not read: a misspelt path would go unnoticed."""
    for option, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        for name in bound if isinstance(bound, dict) else ():
            if paths.absolute(name) not in found:
                raise InvalidOption(f"{option}: {name} is not one of the queues that are read")


def still_meant(tail: Tail, place: dict[str, Any], end: int) -> int:
    """Returns the offset up to which the records are those that a stream's place refers to.

    The stream will read what follows when it resumes; those records must not be delivered twice.
    """
    if place["id"] not in ("", tail.queue_id.hex()):
        return 0
    passed = tail.incarnation - place["incarnation"]
    return min([end, *tail.starts[: max(0, passed)]])


def lose(options: SourceOptions, what: str) -> None:
    """Raises `DataLoss`, or only logs it if the user chose that."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}; to continue with what is left, set failOnDataLoss to false")
    _logger.warning("%s; continuing, because failOnDataLoss is false", what)


def _of_path(bound: Bound | None, path: str) -> str | int | None:
    if not isinstance(bound, dict):
        return bound
    return {paths.absolute(name): offset for name, offset in bound.items()}.get(path)


def _place_of(queue: Extent, name: str) -> int:
    places = queue.places()
    if name not in places:
        known = ", ".join(sorted(places)) or "none"
        raise InvalidOption(f"startingOffsets: {queue.path} has no consumer {name!r}; has: {known}")
    return places[name]
