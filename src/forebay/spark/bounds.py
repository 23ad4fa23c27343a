"""Where a read begins and ends in a queue: from the options to offsets, and what counts as loss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from forebay.errors import DataLoss, InvalidOption
from forebay.spark import paths
from forebay.spark.options import Bound, SourceOptions
from forebay.storage.tail import Tail

_logger = logging.getLogger(__name__)
_CONSUMER = "consumer:"


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a queue: where it begins, how far it is durable, where it ends.

    `places` gives the saved places of its readers by name.
    """

    path: str
    begin: int
    durable: int
    end: int
    places: Callable[[], dict[str, int]]


def first_offset(queue: Extent, options: SourceOptions, otherwise: str) -> int:
    """Returns the offset at which a read begins; `otherwise` says where if the options do not."""
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
    """Refuses a bound of a queue that is not read: a misspelt path would go unnoticed."""
    for option, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        for name in bound if isinstance(bound, dict) else ():
            if paths.absolute(name) not in found:
                raise InvalidOption(f"{option}: {name} is not among the queues that are read")


def still_meant(tail: Tail, place: dict[str, Any], end: int) -> int:
    """Returns the offset up to which records are still those that a place of a stream meant.

    What comes after it the stream will read when it goes on: it must not land twice.
    """
    if place["id"] not in ("", tail.queue_id.hex()):
        return 0
    passed = tail.incarnation - place["incarnation"]
    return min([end, *tail.starts[: max(0, passed)]])


def lose(options: SourceOptions, what: str) -> None:
    """Raises `DataLoss`, or only logs it if the user said so."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}; to go on with what is there, set failOnDataLoss to false")
    _logger.warning("%s; goes on, because failOnDataLoss is false", what)


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
