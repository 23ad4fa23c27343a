"""`forebay pipeline`: loads queues into tables with Spark and proves that nothing is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from forebay.cli import exits, pipeline_report
from forebay.cli.arguments import json_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own warnings would drown the messages of the verbs.
_SPARK_SETTINGS = {"spark.log.level": "ERROR"}


def master_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --master."""
    return click.option(
        "--master", metavar="URL", help="Where Spark runs: local[2], spark://…, sc://… [local[*]]"
    )(command)


@click.group("pipeline")
def command() -> None:
    """Load queues into tables with Spark, exactly once, and prove it."""


@command.command("ingest")
@click.argument("file", type=click.Path())
@click.option("--backfill", metavar="A..B", help="Rebuild the batches of these offsets or times.")
@master_option
@json_option
def ingest_command(file: str, backfill: str | None, master: str | None, as_json: bool) -> int:
    """Load the records of queues into tables, as described in FILE (TOML; see docs/pipelines.md).

    Continues where the last run ended, no matter how it ended. Without a trigger in FILE it
    processes what is there and stops; with one it runs until Ctrl-C.
    """
    from forebay.pipelines import plan, read_settings

    settings = read_settings(file)
    if backfill is not None:
        settings["backfill"] = backfill
        settings.pop("trigger", None)
    # Plan before Spark starts, which takes a while: most mistakes are found without it.
    job = plan(**settings)
    with _spark(master) as spark, _Stop() as stop, pipeline_report.Meter(as_json=as_json) as meter:
        result = job.run(spark, meter.update, stop.event)
    pipeline_report.write_result(result, as_json=as_json)
    # With a trigger, Ctrl-C is the normal way to stop.
    return exits.OK if "trigger" in settings else stop.code


@command.command("reconcile")
@click.argument("paths", metavar="FILE|OUT...", nargs=-1, required=True, type=click.Path())
@master_option
@json_option
def reconcile_command(paths: tuple[str, ...], master: str | None, as_json: bool) -> int:
    """Prove that every record of the queues is in the tables exactly once, or report where not.

    Takes the TOML files of ingests, or the directories of their tables. Changes nothing, and may
    run during an ingest. Exit code 4 if something does not add up.
    """
    from forebay.pipelines import read_settings, reconcile
    from forebay.pipelines.ingest.output import Output

    outs = [path if os.path.isdir(path) else read_settings(path)["out"] for path in paths]
    for out in outs:
        # Raises if there are no tables, before Spark starts.
        Output.at(out).current()
    proven = True
    with _spark(master) as spark:
        for out in outs:
            found = reconcile(out, spark=spark)
            pipeline_report.write_proof(found, as_json=as_json)
            proven = proven and found.proven
    return exits.OK if proven else exits.DAMAGE


class _Stop:
    """Turns Ctrl-C and SIGTERM into an event, so that a batch being published is completed."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.code = exits.OK
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.code = 128 + number
        self.event.set()


@contextlib.contextmanager
def _spark(master: str | None) -> Iterator[SparkSession]:
    """Starts Spark, and stops it if it was not running before; its errors become one line."""
    from forebay.spark.session import session

    spark = session(master, **_SPARK_SETTINGS)
    from pyspark.errors import PySparkException

    try:
        yield spark
    except PySparkException as error:
        raise exits.Failure(pipeline_report.cause_of(str(error))) from error
