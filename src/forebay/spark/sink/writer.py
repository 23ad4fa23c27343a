"""The sink: `df.write.format("forebay")` and `writeStream`, into a log.

Tasks write parts (`parts.py`), the driver's commit publishes them as one batch, and the owner of
the queue adopts it; if no process owns the queue, the commit itself adopts it. A stream is
idempotent by its query and batch, a batch write by `txnAppId` and `txnVersion`, if they are given.

Spark creates the writer on the driver, and sends one copy to each task and another to commit or
abort: the writer keeps no state in between. The driver checks options and columns before any task
runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from forebay.clock import SystemClock
from forebay.errors import ForebayError, InvalidOption, Locked
from forebay.queues.log.options import LogOptions
from forebay.queues.log.queue import Log
from forebay.queues.shared.names import LOG
from forebay.spark.kinds import kind_at
from forebay.spark.paths import directory, is_pattern
from forebay.spark.sink.parts import PartWriter, discard_parts, publish_batch, waiting_manifests
from forebay.storage import inbox
from forebay.storage.filesystem import DiskDirectory, DiskFilesystem

if TYPE_CHECKING:
    from pyarrow import RecordBatch


VALUE = "value"
# Columns that the source adds to the value: ignored, so that a queue can be copied as it is read.
_IGNORED = ("queue", "queue_id", "kind", "offset", "timestamp", "segment", "position")
_OPTIONS = ("path", "segmentBytes", "txnAppId", "txnVersion")
# Options that Spark itself adds for a stream.
_OF_SPARK = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write, and as which writer.

    `segment_bytes` is the largest size of a part, and so of a segment of the queue. `transaction`
    is the writer and the batch that `txnAppId` and `txnVersion` name.
    """

    path: str
    segment_bytes: int
    transaction: tuple[str, int] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parses Spark's options; raises `InvalidOption`."""
        given = {name.lower(): value for name, value in options.items()}
        known = [name.lower() for name in _OPTIONS]
        for name in given:
            if name not in (*known, *_OF_SPARK):
                names = ", ".join(_OPTIONS)
                raise InvalidOption(f"option {name!r} is unknown to the sink; it takes: {names}")
        return cls(
            _path(given.get("path")),
            _segment_bytes(given.get("segmentbytes")),
            _transaction(given.get("txnappid"), given.get("txnversion")),
        )


def check_columns(schema: StructType) -> None:
    """Rejects a schema without a usable `value`, and columns that a queue cannot store."""
    known = (VALUE, *_IGNORED)
    for field in schema.fields:
        if field.name not in known:
            raise InvalidOption(
                f"column {field.name!r} has no place in a queue, which takes {', '.join(known)}: "
                "select a value that contains it"
            )
        if field.name == VALUE and not isinstance(field.dataType, BinaryType | StringType):
            found = field.dataType.simpleString()
            raise InvalidOption(f"column 'value' has type {found}: must be binary or string")
    names = schema.fieldNames()
    if names.count(VALUE) != 1:
        raise InvalidOption(f"a column 'value' is required; there are: {', '.join(names)}")


def _path(given: str | None) -> str:
    if not given:
        raise InvalidOption("path is missing: give save() or start() the directory of a queue")
    path = directory(given)
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
        raise InvalidOption("txnAppId and txnVersion belong together: give both or neither")
    if not version.isdecimal():
        raise InvalidOption(f"txnVersion = {version!r}: must be a whole number, 0 or more")
    return f"txn:{app}", int(version)


Messages = Sequence[WriterCommitMessage | None]
_logger = logging.getLogger(__name__)
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task left in the inbox, and the partition and query it belongs to."""

    partition: int
    query: str | None
    parts: list[inbox.Part]


class _Sink:
    """What the two writers share: the checks on the driver, and the work of a task."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        if overwrite:
            raise InvalidOption(
                "a queue is only appended to: overwrite is not possible, nor is the output mode "
                '"complete"; write with mode("append")'
            )
        self.options = SinkOptions.parse(options)
        _check_queue(self.options.path)
        check_columns(schema)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Writes the rows of a partition as parts; they count once the driver has committed."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        with _open_queue(self.options.path, create=True) as queue:
            work = queue.directory(inbox.DIRECTORY, create=True)
            parts = PartWriter(
                DiskFilesystem(),
                work,
                SystemClock(),
                segment_bytes=self.options.segment_bytes,
                partition=partition,
            )
            try:
                for batch in iterator:
                    parts.append(batch.column(VALUE))
                return Written(partition, query, parts.finish())
            except BaseException:
                parts.discard()
                raise
            finally:
                work.close()

    def _publish(self, writer: str, batch: int, messages: Messages) -> None:
        """Publishes the batch, once and durably, and adopts it if no process owns the queue."""
        if None in messages:
            raise InvalidOption("a task sent no message; nothing was published")
        parts = _parts(messages)
        if parts:
            with _open_queue(self.options.path) as queue:
                publish_batch(queue, writer, batch, parts, SystemClock().now_ms())
        _adopt(self.options.path)

    def _discard(self, messages: Messages) -> None:
        """Removes what the tasks left, unless it is published."""
        made_by_tasks = False
        # If no task has started to write, there may be no directory.
        with contextlib.suppress(FileNotFoundError), _open_queue(self.options.path) as queue:
            discard_parts(queue, _parts(messages))
            made_by_tasks = set(queue.names()) == {inbox.DIRECTORY}
        if made_by_tasks:
            # The directory is not a queue but would look like one. It stays if it is not empty.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.options.path, inbox.DIRECTORY))
                os.rmdir(self.options.path)


class ForebayWriter(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame into a queue as one batch, whole or not at all."""

    def commit(self, messages: Messages) -> None:
        """Publishes the batch; durable on return, and readable if no process owns the queue."""
        # Batches are adopted in the order of their numbers; a one-time writer uses the time as the
        # number.
        once = f"{inbox.ONE_TIME}{uuid.uuid4()}", SystemClock().now_ms()
        self._publish(*(self.options.transaction or once), messages)

    def abort(self, messages: Messages) -> None:
        """Removes what the tasks left, unless it is published."""
        self._discard(messages)


class ForebayStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream into a queue, each once."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        super().__init__(options, schema, overwrite)
        if self.options.transaction is not None:
            raise InvalidOption(
                "txnAppId and txnVersion are for batch writes: a stream writes each of its "
                "batches once without them"
            )

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publishes the micro-batch, if it is not there yet; durable on return."""
        for query in {message.query for message in messages if isinstance(message, Written)}:
            if query is None:
                # If two queries shared a name, the batches of one would look like replays.
                raise InvalidOption(f"Spark passed no {_QUERY_ID} to its tasks; write by batches")
            self._publish(f"query:{query}", batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Removes what the tasks left, unless it is published."""
        self._discard(messages)


def _parts(messages: Messages) -> list[inbox.Part]:
    """Returns the parts in the order of the partitions; a failed task has no message."""
    written = [message for message in messages if isinstance(message, Written)]
    written.sort(key=lambda message: message.partition)
    return [part for message in written for part in message.parts]


def _check_queue(path: str) -> None:
    """Rejects a directory that is not a log, before anything is written to it."""
    with contextlib.suppress(FileNotFoundError), _open_queue(path) as queue:
        kind = kind_at(path)
        if not kind.is_written:
            raise InvalidOption(
                f"{path} is {kind.label}, but Spark writes only to a log. Write to a log, or put "
                "the values with foreachPartition, from one partition at a time"
            )
        LOG.refuse_foreign(queue, queue.names())


@contextlib.contextmanager
def _open_queue(path: str, *, create: bool = False) -> Iterator[DiskDirectory]:
    queue = DiskFilesystem().open_directory(
        path, create=create, group_readable=_is_group_readable(path)
    )
    try:
        yield queue
    finally:
        queue.close()


def _is_group_readable(path: str) -> bool:
    """Returns whether the owner lets its group read: new segments must then be readable too."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IRGRP)
    except FileNotFoundError:
        return False


def _adopt(path: str) -> None:
    """Adopts what is published if no process owns the queue; a running owner adopts it itself.

    The batch is already committed: an error here must not make the caller write it again.
    """
    before: set[str] = set()
    try:
        while True:
            # A log adopts published batches when it is opened.
            Log(path, background=False, group_readable=_is_group_readable(path)).close()
            with _open_queue(path) as queue:
                waiting = waiting_manifests(queue)
            # A process that published while this one held the lock could not adopt its batch.
            if waiting <= before:
                return
            before = waiting
    except Locked:
        return
    except (OSError, ForebayError) as error:
        _logger.warning("%s: a batch is published, but could not be adopted: %s", path, error)
