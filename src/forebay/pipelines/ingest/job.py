"""Queues to tables, exactly once: the stream, its start, and its progress reports.

A TOML file may contain the same parameters by name. Relative paths in `source` and `out` are
relative to the directory of the file, so that its meaning does not depend on where the program is
started.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Required, Unpack, cast

import forebay.spark
from forebay.errors import InvalidOption
from forebay.pipelines.ingest import decoding, evolution, snapshots
from forebay.pipelines.ingest.backfill import Span, document_of, rebuild
from forebay.pipelines.ingest.building import SOURCE_COLUMNS, Builder
from forebay.pipelines.ingest.definition import (
    Decoding,
    Deduplication,
    Definition,
    DefinitionSettings,
    Format,
    Limit,
    Source,
    Starting,
    duration_ms,
)
from forebay.pipelines.ingest.micro_batches import MicroBatches
from forebay.pipelines.ingest.output import CHECKPOINT, Counts, Manifest, Output, total
from forebay.spark import paths
from forebay.spark.kinds import check_streamed
from forebay.spark.options import SourceOptions
from forebay.tables.store import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_POLL_SECONDS = 0.2


class Settings(DefinitionSettings, total=False):
    """The parameters of `ingest` that a file may contain; its docstring explains them."""

    out: Required[str | os.PathLike[str]]
    consumer_id: str | None
    key_file: str | None
    trigger: str | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | str | None
    fail_on_data_loss: bool
    max_rejected: str | int | None
    backfill: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """A published batch: its number, what became of its records, and the totals of the run."""

    batch: int
    counts: Counts
    total: Counts
    seconds: float


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of a run: the batches it published, and what became of each queue's records."""

    out: str
    batches: tuple[int, ...]
    queues: dict[str, Counts]
    seconds: float

    @property
    def counts(self) -> Counts:
        """Returns what became of the records of all queues."""
        return total(self.queues.values())


def ingest(
    *,
    source: Source,
    out: str | os.PathLike[str],
    decode: Decoding = "json",
    schema: str | None = None,
    sql: str | None = None,
    deduplicate: Deduplication | None = None,
    format: Format = "parquet",
    partition_by: str | None = None,
    catalog: str | None = None,
    starting: Starting = "earliest",
    consumer_id: str | None = None,
    key_file: str | None = None,
    trigger: str | None = None,
    max_offsets_per_trigger: int | None = None,
    max_bytes_per_trigger: int | str | None = None,
    fail_on_data_loss: bool = True,
    max_rejected: str | int | None = None,
    backfill: str | None = None,
    spark: forebay.spark.SparkSession | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> IngestResult:
    """Loads the records of queues into tables, each exactly once, even if processes are killed.

    What is published when it returns or is killed is durable. The same call continues from there.

    These define the tables; changing one for an existing `out` is an error, except that `source`
    and `schema` may grow:

    - `source`: a queue directory, a glob, or several; all executors must see them.
    - `decode`: how values become columns: "json", "cbor" (in Python, several times slower than
      JSON), "text" (one column `text`, UTF-8), "raw" (one column `value`).
    - `schema`: the columns as DDL, for "json" and "cbor". Other fields go to `_rescued`, which
      costs a second, quick check of every record.
    - `sql`: a query over the view `records`: queue, offset, timestamp and the decoded columns. It
      may drop records, which costs a second decoding and a join in each batch where it does. It
      must keep queue and offset. None: all rows and columns.
    - `deduplicate`: `{"key": column or columns of decoded, "within": "1h"}`. Costs a sort of the
      keys of the batch and of the batches within reach, and 24 bytes on disk for each key.
    - `format`: of the tables: "parquet", "delta" or "iceberg".
    - `partition_by`: "day", which adds a column `day` to `decoded`, or a column of `decoded`: the
      files then have the rows of one value each. Costs a file for each value in each batch.
    - `catalog`: "NAME.NAMESPACE" of Iceberg, with NAME in the configuration of pyiceberg. None: a
      catalog in SQLite beside the tables.
    - `starting`: where new tables begin: "earliest", "latest", an offset, or a time. A queue that
      appears later is read from its earliest record.

    These control a run and may change from run to run:

    - `out`: the directory of the tables, created if it is missing; for Delta and Iceberg also an
      address in an object store, such as "s3://bucket/events".
    - `consumer_id`: keeps a cursor with that name in each queue, so that trimming follows the
      tables and never overtakes them. None: trimming does not wait. Only logs have cursors.
    - `key_file`: the key of encrypted Beats queues, in a file that every executor can read.
    - `trigger`: None processes what is there and returns; "10s" runs until stopped, with a batch
      every 10 s, or later if there is nothing. Even a small batch costs about a second.
    - `max_offsets_per_trigger`, `max_bytes_per_trigger`: the most that goes into a batch; None:
      everything. Batches of about 100 MB cost the least per record.
    - `fail_on_data_loss`: True stops if unread records are gone; False continues and counts them
      as trimmed.
    - `max_rejected`: the most records of a batch that may be rejected, as "1%" or a number; with
      more the run ends with `TooManyRejected`, and nothing of the batch is published. None: any.
    - `backfill`: "A..B" rebuilds the batches that hold offsets, or times, from A up to B, and
      returns. The definition may then differ from the old one, and replaces it. See
      docs/pipelines.md.
    - `spark`: the session; None: `forebay.spark.session()`.
    - `on_progress`: called after each batch.
    - `stop`: an event that ends a run with a `trigger`.

    Raises `InvalidOption`, `Locked` if another process writes to `out`, and Spark's errors.
    """
    job = plan(
        source=source,
        out=out,
        decode=decode,
        schema=schema,
        sql=sql,
        deduplicate=deduplicate,
        format=format,
        partition_by=partition_by,
        catalog=catalog,
        starting=starting,
        consumer_id=consumer_id,
        key_file=key_file,
        trigger=trigger,
        max_offsets_per_trigger=max_offsets_per_trigger,
        max_bytes_per_trigger=max_bytes_per_trigger,
        fail_on_data_loss=fail_on_data_loss,
        max_rejected=max_rejected,
        backfill=backfill,
    )
    if spark is None:
        from forebay.spark.session import session

        spark = session()
    return job.run(spark, on_progress, stop)


def plan(
    *,
    out: str | os.PathLike[str],
    consumer_id: str | None = None,
    key_file: str | None = None,
    trigger: str | None = None,
    max_offsets_per_trigger: int | None = None,
    max_bytes_per_trigger: int | str | None = None,
    fail_on_data_loss: bool = True,
    max_rejected: str | int | None = None,
    backfill: str | None = None,
    **definition: Unpack[DefinitionSettings],
) -> Job:
    """Checks the parameters of `ingest` and the output, as far as that works without Spark."""
    if backfill is not None and trigger is not None:
        raise InvalidOption("backfill and trigger exclude each other; give only one")
    made = Definition.make(**definition)
    if snapshots.are_wanted(made.source):
        limits = {
            "trigger": trigger,
            "consumer_id": consumer_id,
            "max_offsets_per_trigger": max_offsets_per_trigger,
            "max_bytes_per_trigger": max_bytes_per_trigger,
        }
        made = snapshots.define(made, limits)
    else:
        for path in paths.find(made.source):
            check_streamed(path)
    options = _source_options(
        consumer_id, key_file, max_offsets_per_trigger, max_bytes_per_trigger, fail_on_data_loss
    )
    job = Job(
        definition=made,
        output=Output.at(out),
        options=options,
        trigger_ms=None if trigger is None else duration_ms("trigger", trigger),
        span=None if backfill is None else Span.parse(backfill),
        max_rejected=None if max_rejected is None else Limit.parse("max_rejected", max_rejected),
    )
    job.check()
    return job


@dataclass(frozen=True, slots=True)
class Job:
    """An ingest that is ready to run."""

    definition: Definition
    output: Output
    options: dict[str, str]
    trigger_ms: int | None
    span: Span | None
    max_rejected: Limit | None = None

    def check(self) -> None:
        """Raises if the existing tables were made with another definition, as far as texts tell."""
        if self.span is not None:
            # Raises if there is nothing to rebuild.
            self.output.document()
        elif self.output.exists:
            evolution.check_without_spark(self.output, self.definition)

    def run(
        self,
        spark: SparkSession,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> IngestResult:
        """Runs until it is done or stopped."""
        told = _Reporter(self.output, on_progress)
        key_file = self.options.get("keyFile")
        with self.output.locked():
            # Another process may have created or changed the output in the meantime.
            self.check()
            columns = decoding.check_columns(spark, self.definition).json()
            builder = Builder(self.definition, columns, self.max_rejected)
            if self.span is None and self.output.exists:
                # What is half committed has the old columns.
                self.output.clean()
                builder = evolution.evolve(self.output, builder)
            if self.span is not None:
                self.output.clean()
                for manifest in rebuild(spark, self.output, builder, self.span, key_file):
                    told.add(manifest)
            elif self.definition.snapshots:
                _prepare(self.output, builder, key_file)
                for manifest in snapshots.land(spark, self.output, builder):
                    told.add(manifest)
            else:
                _prepare(self.output, builder, key_file)
                self._stream(spark, builder, told, stop or threading.Event())
        return told.result()

    def _stream(
        self, spark: SparkSession, builder: Builder, told: _Reporter, stop: threading.Event
    ) -> None:
        told.pass_over_what_is_there()
        with _checkpoint(self.output) as checkpoint:
            query = self._start(spark, builder, checkpoint)
            try:
                while query.isActive and not stop.wait(_POLL_SECONDS):
                    told.tell()
                if not query.isActive:
                    # Raises the error that ended the query, if any.
                    query.awaitTermination()
            finally:
                query.stop()
        told.tell()

    def _start(self, spark: SparkSession, builder: Builder, checkpoint: str) -> StreamingQuery:
        options = dict(self.options)
        starts: dict[str, int] = self.output.document()["starts"]
        last = max(self.output.batches(), default=-1)
        places = self.output.manifest(last).places if last >= 0 else {}
        if places:
            options["resumeFrom"] = json.dumps({"v": 1, "queues": places})
        else:
            # A queue that is gone by now needs no start.
            there = {path: start for path, start in starts.items() if os.path.isdir(path)}
            options["startingOffsets"] = json.dumps(there) if there else "earliest"
        options["paths"] = json.dumps(list(self.definition.source))
        raw = spark.readStream.format("forebay").options(**options).load()
        writer = raw.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
            MicroBatches(self.output, builder, checkpoint, last + 1, places, starts)
        )
        if self.trigger_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.trigger_ms} milliseconds")
        return writer.start()


@contextlib.contextmanager
def _checkpoint(output: Output) -> Iterator[str]:
    """Returns a directory for Spark's checkpoint of one run; the driver alone uses it."""
    if is_remote(output.path):
        with tempfile.TemporaryDirectory(prefix="forebay-", ignore_cleanup_errors=True) as path:
            yield path
    else:
        # Whatever a killed run leaves is removed at the start of the next one.
        yield output.store.path(CHECKPOINT)
        output.store.remove(CHECKPOINT)


class _Reporter:
    """Finds batches that were published in the meantime, and reports each once."""

    def __init__(self, output: Output, on_progress: Callable[[Progress], None] | None) -> None:
        self._output = output
        self._on_progress = on_progress
        self._started = time.monotonic()
        self._next = 0
        self._batches: list[int] = []
        self._queues: dict[str, Counts] = {}
        self._total = Counts()

    def pass_over_what_is_there(self) -> None:
        """Reports only batches published from now on."""
        self._next = max(self._output.batches(), default=-1) + 1

    def tell(self) -> None:
        """Reports the batches published since the last call."""
        while self._output.has(self._next):
            self.add(self._output.manifest(self._next))
            self._next += 1

    def add(self, manifest: Manifest) -> None:
        """Reports one batch."""
        self._batches.append(manifest.batch)
        for queue, share in manifest.queues.items():
            self._queues[queue] = self._queues.get(queue, Counts()) + share.counts
        self._total += manifest.counts
        if self._on_progress is not None:
            seconds = time.monotonic() - self._started
            progress = Progress(manifest.batch, manifest.counts, self._total, seconds)
            self._on_progress(progress)

    def result(self) -> IngestResult:
        """Returns the sum of all reports."""
        seconds = time.monotonic() - self._started
        queues = dict(sorted(self._queues.items()))
        return IngestResult(self._output.path, tuple(self._batches), queues, seconds)


def _prepare(output: Output, builder: Builder, key_file: str | None) -> None:
    """Creates the output if it does not exist."""
    if not output.exists:
        document = document_of(builder, _starts(builder.definition, key_file))
        output.make({**document, "generation": 0, "landed_from": 0})


def _starts(definition: Definition, key_file: str | None) -> dict[str, int]:
    """Returns the start offsets of queues that exist now; none for those read from the beginning.

    They are stored with the tables: "latest" must mean the same when the first batch is replayed.
    """
    from forebay.spark.kinds import open_queues

    starting = definition.starting
    if starting == "earliest":
        return {}
    options = SourceOptions(definition.source, key_file=key_file)
    if starting not in ("latest", "") and not starting.isdecimal():
        start_ms = round(datetime.fromisoformat(starting).timestamp() * 1000)
        options = replace(options, start_ms=start_ms)
    starts: dict[str, int] = {}
    for _, reader in open_queues(options):
        if starting.isdecimal():
            starts[reader.path] = int(starting)
            continue
        streamed = check_streamed(reader.path)
        live = streamed.follow(reader.path, options)
        starts[reader.path] = min(streamed.first_offset(reader, options), live.look().durable)
        live.close()
    return starts


def _source_options(
    consumer_id: str | None,
    key_file: str | None,
    max_offsets_per_trigger: int | None,
    max_bytes_per_trigger: int | str | None,
    fail_on_data_loss: bool,
) -> dict[str, str]:
    """Returns the options of the source, which checks them itself."""
    if not isinstance(fail_on_data_loss, bool):
        raise InvalidOption(f"fail_on_data_loss = {fail_on_data_loss!r}: must be true or false")
    given = {
        "consumerId": consumer_id,
        "keyFile": key_file,
        "maxOffsetsPerTrigger": max_offsets_per_trigger,
        "maxBytesPerTrigger": max_bytes_per_trigger,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "mode": "PERMISSIVE",
        "columns": SOURCE_COLUMNS,
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    SourceOptions.parse({"path": "/", **options})
    return options


# Parameters that only a program can give.


def known_settings() -> list[str]:
    """Lists the settings that a file may contain."""
    return [name for name in ingest.__annotations__ if name in Settings.__annotations__]


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Returns the arguments for `ingest` from a file; raises `InvalidOption`.

    Their names are checked here, their values by `ingest`.
    """
    try:
        with open(path, "rb") as file:
            settings = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{os.fspath(path)} is not TOML: {error}") from None
    known = known_settings()
    for name in settings:
        if name not in known:
            raise InvalidOption(
                f"{os.fspath(path)}: {name!r} is unknown; known settings: {', '.join(known)}"
            )
    for name in ("source", "out"):
        if name not in settings:
            raise InvalidOption(f"{os.fspath(path)}: {name} is missing")
        settings[name] = _beside(os.path.dirname(os.path.abspath(path)), settings[name])
    return cast(Settings, settings)


def _beside(directory: str, value: Any) -> Any:
    """Resolves relative paths against a directory; leaves other values to the checks."""
    if isinstance(value, list):
        return [_beside(directory, one) for one in value]
    if isinstance(value, str) and value and "://" not in value and not value.startswith("file:"):
        return os.path.join(directory, value)
    return value
