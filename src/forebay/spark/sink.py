"""The sink: `df.write.format("forebay")` and `writeStream`, into a log.

Tasks write parts (`parts.py`), the driver's commit publishes them as one batch, the owner of the
queue adopts it; where nobody owns the queue, the commit itself does. A stream is idempotent by its
query and batch, a batch write by `txnAppId` and `txnVersion`, if they are given.

Spark makes the writer on the driver, sends a copy to each task and another to commit or abort:
nothing is kept on it in between.
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
from pyspark.sql.types import StructType

from forebay.clock import SystemClock
from forebay.errors import ForebayError, InvalidOption, Locked
from forebay.queues.kinds import kind_of
from forebay.queues.log.queue import Log
from forebay.queues.shared.names import LOG
from forebay.spark.parts import PartWriter, discard_parts, publish_batch, waiting_manifests
from forebay.spark.sink_options import VALUE, SinkOptions, check_columns
from forebay.storage import inbox
from forebay.storage.filesystem import DiskDirectory, DiskFilesystem

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Messages = Sequence[WriterCommitMessage | None]
_logger = logging.getLogger(__name__)
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task left in the inbox, and for which partition of which query."""

    partition: int
    query: str | None
    parts: list[inbox.Part]


class _Sink:
    """What the two writers share: the checks on the driver, and what a task does."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        if overwrite:
            raise InvalidOption(
                "a queue is only appended to: overwrite is refused, and so is the output mode "
                '"complete"; write with mode("append")'
            )
        self.options = SinkOptions.parse(options)
        _check_queue(self.options.path)
        check_columns(schema)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Writes the rows of a partition as parts; they count when the driver has committed."""
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
        """Publishes the batch, once and durably, and has it adopted if nobody owns the queue."""
        if None in messages:
            raise InvalidOption("a task left no message; nothing was published")
        parts = _parts(messages)
        if parts:
            with _open_queue(self.options.path) as queue:
                publish_batch(queue, writer, batch, parts, SystemClock().now_ms())
        _adopt(self.options.path)

    def _discard(self, messages: Messages) -> None:
        """Removes what the tasks left, unless it is published."""
        made_by_tasks = False
        # Where no task got so far as to write, there may be no directory.
        with contextlib.suppress(FileNotFoundError), _open_queue(self.options.path) as queue:
            discard_parts(queue, _parts(messages))
            made_by_tasks = set(queue.names()) == {inbox.DIRECTORY}
        if made_by_tasks:
            # It is no queue, and would be taken for one. What is not empty stays.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.options.path, inbox.DIRECTORY))
                os.rmdir(self.options.path)


class ForebayWriter(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame into a queue as one batch, whole or not at all."""

    def commit(self, messages: Messages) -> None:
        """Publishes the batch; durable on return, and readable where nobody owns the queue."""
        # Batches are adopted in the order of their numbers; those of one-time writers, of time.
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
                # Under one name for all, the batches of two queries would pass for replays.
                raise InvalidOption(f"Spark did not tell its tasks {_QUERY_ID}; write by batches")
            self._publish(f"query:{query}", batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Removes what the tasks left, unless it is published."""
        self._discard(messages)


def _parts(messages: Messages) -> list[inbox.Part]:
    """Returns the parts in the order of the partitions; a task that failed has no message."""
    written = [message for message in messages if isinstance(message, Written)]
    written.sort(key=lambda message: message.partition)
    return [part for message in written for part in message.parts]


def _check_queue(path: str) -> None:
    """Refuses a directory that is not a log, before anything is written into it."""
    with contextlib.suppress(FileNotFoundError), _open_queue(path) as queue:
        kind = kind_of(path).name
        if kind != "log":
            raise InvalidOption(
                f"{path} is a queue of kind {kind}: Spark writes into a log only. Write into a "
                "log, or put the values by foreachPartition, from one partition at a time"
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
    """Says whether the owner lets its group read: then the new segments must be readable too."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IRGRP)
    except FileNotFoundError:
        return False


def _adopt(path: str) -> None:
    """Takes in what is published, if nobody owns the queue; a running owner does it itself.

    The batch is committed: an error here must not make anybody write it again.
    """
    before: set[str] = set()
    try:
        while True:
            # A log adopts what is published when it is opened.
            Log(path, background=False, group_readable=_is_group_readable(path)).close()
            with _open_queue(path) as queue:
                waiting = waiting_manifests(queue)
            # Who published while this process held the lock has left it to us.
            if waiting <= before:
                return
            before = waiting
    except Locked:
        return
    except (OSError, ForebayError) as error:
        _logger.warning("%s: a batch is published, but could not be adopted: %s", path, error)
