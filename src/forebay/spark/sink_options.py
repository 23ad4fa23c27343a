"""The options and the columns of the sink, checked on the driver before any task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, StringType, StructType

from forebay.errors import InvalidOption
from forebay.queues.shared.options import LogOptions
from forebay.spark.paths import absolute, is_pattern

VALUE = "value"
# What the source gives beside the value: a queue can be copied into another as it was read.
_IGNORED = ("queue", "queue_id", "kind", "offset", "timestamp", "segment", "position")
_OPTIONS = ("path", "segmentBytes", "txnAppId", "txnVersion")
# What Spark itself puts among the options of a stream.
_OF_SPARK = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write, and as whom.

    `segment_bytes` is the most that a part takes, and with it a segment of the queue.
    `transaction` is the writer and the batch that `txnAppId` and `txnVersion` name.
    """

    path: str
    segment_bytes: int
    transaction: tuple[str, int] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Reads Spark's options; raises `InvalidOption`."""
        given = {name.lower(): value for name, value in options.items()}
        known = [name.lower() for name in _OPTIONS]
        for name in given:
            if name not in (*known, *_OF_SPARK):
                names = ", ".join(_OPTIONS)
                raise InvalidOption(f"option {name!r} is unknown to the sink; there are: {names}")
        return cls(
            _path(given.get("path")),
            _segment_bytes(given.get("segmentbytes")),
            _transaction(given.get("txnappid"), given.get("txnversion")),
        )


def check_columns(schema: StructType) -> None:
    """Refuses what is not a `value`, or has no place beside it, by name."""
    known = (VALUE, *_IGNORED)
    for field in schema.fields:
        if field.name not in known:
            raise InvalidOption(
                f"column {field.name!r} has no place in a queue; there are {', '.join(known)}: "
                "select a value that holds it"
            )
        if field.name == VALUE and not isinstance(field.dataType, BinaryType | StringType):
            found = field.dataType.simpleString()
            raise InvalidOption(f"column 'value' is of type {found}: must be binary or string")
    names = schema.fieldNames()
    if names.count(VALUE) != 1:
        raise InvalidOption(f"one column 'value' is wanted; there are: {', '.join(names)}")


def _path(given: str | None) -> str:
    if not given:
        raise InvalidOption("path is missing: give save() or start() the directory of a queue")
    path = absolute(given)
    if is_pattern(path):
        raise InvalidOption(f"path = {given!r}: must be one directory, not a pattern")
    return path


def _segment_bytes(given: str | None) -> int:
    if given is None:
        return LogOptions().segment_bytes
    try:
        return LogOptions(segment_bytes=int(given)).segment_bytes
    except ValueError:
        raise InvalidOption(
            f"segmentBytes = {given!r}: must be a whole number, 1000 to 2147483647"
        ) from None


def _transaction(app: str | None, version: str | None) -> tuple[str, int] | None:
    if app is None and version is None:
        return None
    if not app or not version:
        raise InvalidOption("txnAppId and txnVersion belong together: give both or none")
    if not version.isdecimal():
        raise InvalidOption(f"txnVersion = {version!r}: must be a whole number from 0 on")
    return f"txn:{app}", int(version)
