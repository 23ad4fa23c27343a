"""Where a read begins and ends in a queue: from the options to offsets, and what counts as loss."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from forebay.errors import DataLoss, InvalidOption
from forebay.queues.reader import LogReader
from forebay.spark import paths
from forebay.spark.options import Bound, SourceOptions

_logger = logging.getLogger(__name__)
_CONSUMER = "consumer:"


def first_offset(reader: LogReader, options: SourceOptions, otherwise: str) -> int:
    """Gives the offset at which a read begins; `otherwise` says where if the options do not."""
    if options.start_ms is not None:
        return reader.resolve(datetime.fromtimestamp(options.start_ms / 1000, UTC))
    bound = _of_path(options.start if options.start is not None else otherwise, reader.path)
    if bound is None:
        bound = otherwise
    if isinstance(bound, str) and bound.startswith(_CONSUMER):
        bound = _place_of(reader, bound.removeprefix(_CONSUMER))
    if bound == "earliest":
        return reader.begin
    if bound == "latest":
        return reader.durable
    start = int(bound)
    if start < reader.begin:
        lose(options, f"{reader.path} begins at offset {reader.begin}: {start} was trimmed")
        return reader.begin
    if start > reader.end:
        lose(options, f"{reader.path} ends at offset {reader.end}, before {start}")
        return reader.end
    return start


def end_offset(reader: LogReader, options: SourceOptions) -> int:
    """Gives the offset at which a batch read ends."""
    bound = _of_path(options.end, reader.path)
    if bound is None or isinstance(bound, str):
        return reader.end
    if bound > reader.end:
        lose(options, f"{reader.path} ends at offset {reader.end}, before {bound}")
    return min(bound, reader.end)


def lose(options: SourceOptions, what: str) -> None:
    """Raises `DataLoss`, or only logs it if the user said so."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}; to go on with what is there, set failOnDataLoss to false")
    _logger.warning("%s; goes on, because failOnDataLoss is false", what)


def _of_path(bound: Bound, path: str) -> str | int | None:
    if not isinstance(bound, dict):
        return bound
    return {paths.absolute(name): offset for name, offset in bound.items()}.get(path)


def _place_of(reader: LogReader, name: str) -> int:
    places = reader.cursors() | reader.consumers()
    if name not in places:
        known = ", ".join(sorted(places)) or "none"
        raise InvalidOption(
            f"startingOffsets: {reader.path} has no consumer {name!r}; has: {known}"
        )
    return places[name]
