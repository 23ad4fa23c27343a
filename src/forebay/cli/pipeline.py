"""`forebay pipeline`: loads queues into tables with Spark, proves them complete, audits queues."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from forebay.cli import exits
from forebay.cli.arguments import conf_option, json_option, key_option
from forebay.cli.output import Bar, plural, say, size_text, talk, write_json, write_table
from forebay.errors import TooManyRejected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.pipelines import Audit, IngestResult, Progress, Reconciliation

# Spark's own warnings would drown the messages of the verbs.
_SPARK_SETTINGS = {"spark.log.level": "ERROR"}
_COUNTS = ("landed", "decoded", "rejected", "deduplicated", "filtered", "damaged", "trimmed")
# Matches an error of Forebay in the Python traceback that is part of Java's message.
_OURS = re.compile(r"^(?:forebay\.errors\.)\w+: (.+)$", re.MULTILINE)


def master_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --master."""
    return click.option(
        "--master", metavar="URL", help="Where Spark runs: local[2], spark://…, sc://… [local[*]]"
    )(command)


@click.group("pipeline")
def command() -> None:
    """Load queues into tables with Spark, exactly once, prove it; audit whole fleets of queues."""


@command.command("ingest")
@click.argument("file", type=click.Path())
@click.option("--backfill", metavar="A..B", help="Rebuild the batches of these offsets or times.")
@master_option
@conf_option
@json_option
def ingest_command(
    file: str, backfill: str | None, master: str | None, conf: dict[str, str], as_json: bool
) -> int:
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
    with _spark(master, conf) as spark, _Stop() as stop, Meter(as_json=as_json) as meter:
        result = job.run(spark, meter.update, stop.event)
    write_result(result, as_json=as_json)
    # With a trigger, Ctrl-C is the normal way to stop.
    return exits.OK if "trigger" in settings else stop.code


@command.command("reconcile")
@click.argument("paths", metavar="FILE|OUT...", nargs=-1, required=True, type=click.Path())
@master_option
@conf_option
@json_option
def reconcile_command(
    paths: tuple[str, ...], master: str | None, conf: dict[str, str], as_json: bool
) -> int:
    """Prove that every record of the queues is in the tables exactly once, or report where not.

    Takes the TOML files of ingests, or the directories of their tables. Changes nothing, and may
    run during an ingest. Exit code 4 if something does not add up.
    """
    from forebay.pipelines import read_settings, reconcile
    from forebay.pipelines.ingest.output import Output

    outs = [path if os.path.isdir(path) else read_settings(path)["out"] for path in paths]
    for out in outs:
        # Raises if there are no tables, before Spark starts.
        Output.at(out).document()
    proven = True
    with _spark(master, conf) as spark:
        for out in outs:
            found = reconcile(out, spark=spark)
            write_proof(found, as_json=as_json)
            proven = proven and found.proven
    return exits.OK if proven else exits.DAMAGE


@command.command("audit")
@click.argument("paths", metavar="PATH|GLOB...", nargs=-1, required=True)
@click.option("--html", "page", metavar="FILE", help="Write a page with a map of the files.")
@click.option("--tables", metavar="DIR", help="Write the result as four Parquet files into DIR.")
@key_option
@master_option
@conf_option
@json_option
def audit_command(
    paths: tuple[str, ...],
    page: str | None,
    tables: str | None,
    key_file: str | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> int:
    """Verify every checksum of every file of all queues that the paths and globs name.

    Reports damage, gaps in the offsets, bytes that no checksum protects, places of readers beyond
    the data, and queues that cannot be read. Changes nothing, takes no lock; the queues may be in
    use. Each is verified as "forebay fsck" does, on all cores or executors. Exit code 4 if
    something is wrong.
    """
    from forebay.pipelines import audit

    with _spark(master, conf) as spark, Bar("audit", hidden=as_json) as bar:

        def tell(done: int, total: int) -> None:
            bar.update(done, f"{done:,} of {plural(total, 'queue')}", total)

        found = audit(paths, spark=spark, key_file=key_file, on_progress=tell)
    if tables is not None:
        found.save(tables)
    if page is not None:
        from forebay.pipelines.maintenance.page import html

        with open(page, "w", encoding="utf-8") as file:
            file.write(html(found))
    write_audit(found, as_json=as_json)
    return exits.DAMAGE if found.wrong else exits.OK


@command.command("compact")
@click.argument("path", metavar="FILE|OUT", type=click.Path())
@json_option
def compact_command(path: str, as_json: bool) -> int:
    """Join the small files of Delta and Iceberg tables.

    Takes the TOML file of an ingest, or the directory of its tables. Not while an ingest runs. The
    old files stay for readers that have them, until vacuum removes them.
    """
    from forebay.pipelines import compact

    rows = [asdict(one) for one in compact(_out_of(path))]
    _write_rows(rows, as_json=as_json)
    return exits.OK


@command.command("vacuum")
@click.argument("path", metavar="FILE|OUT", type=click.Path())
@click.option("--hours", type=float, default=168, help="Files that went since stay.  [168]")
@click.option("--landed", metavar="AGE", help='First remove from landed what is older, as "30d".')
@json_option
def vacuum_command(path: str, hours: float, landed: str | None, as_json: bool) -> int:
    """Remove files that the tables no longer need, and old rows of landed.

    Takes the TOML file of an ingest, or the directory of its tables. Not while an ingest runs.
    """
    from forebay.pipelines import vacuum

    rows = [asdict(one) for one in vacuum(_out_of(path), hours=hours, landed=landed)]
    _write_rows(rows, as_json=as_json)
    return exits.OK


def _out_of(path: str) -> str:
    from forebay.pipelines import read_settings

    is_file = os.path.isfile(path)
    return os.fspath(read_settings(path)["out"]) if is_file else path


def _write_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            write_json(row)
    else:
        write_table(list(rows[0]), [list(row.values()) for row in rows])


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
def _spark(master: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """Starts Spark, and stops it if it was not running before; its errors become one line."""
    from forebay.spark.session import session

    spark = session(master, **{**_SPARK_SETTINGS, **conf})
    from pyspark.errors import PySparkException

    try:
        yield spark
    except PySparkException as error:
        message = str(error)
        code = exits.REJECTED if f"{TooManyRejected.__name__}: " in message else exits.ERROR
        raise exits.Failure(cause_of(message), code) from error


class Meter:
    """Reports every batch: with a bar on a terminal, as lines elsewhere, as objects with --json."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._bar = Bar("ingest", hidden=as_json)

    def update(self, progress: Progress) -> None:
        """Reports one batch."""
        counts = progress.counts
        if self._as_json:
            seconds = round(progress.seconds, 3)
            write_json({"batch": progress.batch, "seconds": seconds, "counts": asdict(counts)})
            sys.stdout.flush()
        elif sys.stderr.isatty():
            rate = progress.total.landed / max(progress.seconds, 0.001)
            note = f"batch {progress.batch}, {progress.total.landed:,} landed, {rate:,.0f}/s"
            self._bar.update(progress.total.landed, note)
        else:
            told = [
                f"{getattr(counts, name):,} {name}" for name in _COUNTS if getattr(counts, name)
            ]
            talk(f"batch {progress.batch}: {', '.join(told)}")

    def __enter__(self) -> Meter:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, traceback)


def write_result(result: IngestResult, *, as_json: bool) -> None:
    """Prints what a run did."""
    if as_json:
        write_json(
            {
                "out": result.out,
                "batches": list(result.batches),
                "seconds": round(result.seconds, 3),
                "queues": {queue: asdict(counts) for queue, counts in result.queues.items()},
            }
        )
        return
    if result.queues:
        rows = [
            [queue, *(getattr(counts, name) for name in _COUNTS)]
            for queue, counts in result.queues.items()
        ]
        write_table(["queue", *_COUNTS], rows)
    batches = f"{len(result.batches):,} batch{'' if len(result.batches) == 1 else 'es'}"
    records = plural(result.counts.landed, "record")
    talk(f"{records} in {batches}, {result.seconds:.1f} s")


def write_proof(found: Reconciliation, *, as_json: bool) -> None:
    """Prints the totals of each queue, and what does not add up."""
    if as_json:
        for proof in found.queues:
            place = {"queue": proof.queue, "id": proof.id, "start": proof.start, "end": proof.end}
            rest = {
                "range": proof.range,
                "counts": asdict(proof.counts),
                "problems": list(proof.problems),
            }
            write_json({**place, **rest})
        summary = {"proven": found.proven, "batches": found.batches, "older": found.older}
        sums = {"counts": asdict(found.counts), "problems": list(found.problems)}
        write_json({"summary": {**summary, **sums}})
        return
    rows = []
    for proof in found.queues:
        counts = [getattr(proof.counts, name) for name in _COUNTS]
        verdict = "proven" if not proof.problems else "WRONG"
        rows.append([proof.queue, f"{proof.start}..{proof.end}", proof.range, *counts, verdict])
    write_table(["queue", "offsets", "range", *_COUNTS, "verdict"], rows)
    for problem in found.problems:
        say(f"{found.out}: {problem}")
    for proof in found.queues:
        for problem in proof.problems:
            say(f"{proof.queue}: {problem}")
    if found.older:
        talk(f"{found.older} of {found.batches} batches have an older definition")
    if found.proven:
        talk("range = landed + damaged + trimmed")
        talk("landed = decoded + rejected + deduplicated + filtered; no offset twice")


def write_audit(found: Audit, *, as_json: bool) -> None:
    """Prints what an audit found, the worst first, and its sums."""
    ordered = sorted(found.findings, key=lambda one: (not one.wrong, one.queue))
    records = sum(queue.records for queue in found.queues)
    size = sum(queue.bytes for queue in found.queues)
    unverified = sum(queue.unverified_bytes for queue in found.queues)
    if as_json:
        for queue in found.queues:
            write_json({"queue": asdict(queue)})
        for place in found.places:
            write_json({"place": asdict(place)})
        for finding in ordered:
            write_json({"finding": asdict(finding)})
        summary = {
            "queues": len(found.queues),
            "files": len(found.files),
            "records": records,
            "bytes": size,
            "unverified_bytes": unverified,
            "wrong": found.wrong,
            "seconds": round(found.seconds, 3),
        }
        write_json({"summary": summary})
        return
    if ordered:
        columns = ("what", "queue", "file", "byte", "bytes", "offset", "records", "why")
        rows = [
            (
                one.what,
                one.queue,
                one.file,
                one.position,
                one.length,
                one.offset,
                one.count,
                one.reason,
            )
            for one in ordered
        ]
        write_table(columns, rows)
    verified = f"{plural(records, 'good record')} in {plural(len(found.files), 'file')}"
    sizes = f"{size_text(size - unverified)} verified, {size_text(unverified)} without checksums"
    talk(f"{plural(len(found.queues), 'queue')}: {verified}, {sizes}, {found.seconds:.1f} s")
    talk(f"{plural(found.wrong, 'finding')} wrong" if found.wrong else "nothing is wrong")


def cause_of(message: str) -> str:
    """Returns the line that matters from Spark's message about a failed query."""
    ours = _OURS.findall(message)
    if ours:
        return str(ours[-1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed without a message"
