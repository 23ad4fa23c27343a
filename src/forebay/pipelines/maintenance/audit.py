"""`audit`: verifies every checksum of every file of many queues, in parallel, and changes nothing.

Each queue is verified by the check of its kind, the one of `forebay fsck`, in a Spark task; small
queues share a task. What the check returns becomes rows: the queues, their files, the saved places
of their readers, and the findings. A finding is *wrong* if it costs something that was promised:
damage, a gap in the offsets, a place beyond the data, a queue that cannot be read. An unfinished
end that a crash left and bytes without a checksum are findings too, but nothing is wrong with them.

One bad directory never ends an audit: it is a row. What else is to be audited, such as an archive
of segments, has its place in `_list_queues`, which names what there is, and in `audit_one`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

import forebay.spark
from forebay.damage import Damage
from forebay.errors import ForebayError, NotAQueue
from forebay.queues import kinds
from forebay.queues.shared.reports import STATES, Report
from forebay.spark.kinds import open_queues
from forebay.spark.options import SourceOptions
from forebay.spark.paths import absolute, alternatives
from forebay.spark.planning import Unreadable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A task reads about so much, so that there are enough for every core and for the bar.
_TASK_BYTES = 128 << 20
_TASK_QUEUES = 64
_POLL_SECONDS = 0.2
# Called with the number of queues that are done, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AuditedQueue:
    """One queue; `records` are the good ones. `kind` and `state` are "" if it cannot be read."""

    queue: str
    kind: str
    state: str
    records: int
    files: int
    bytes: int
    unverified_bytes: int
    first_offset: int | None
    end_offset: int | None
    wrong: int


@dataclass(frozen=True, slots=True)
class AuditedFile:
    """One file that holds records; `records` is None if that is not known. `state` is its worst."""

    queue: str
    file: str
    first_offset: int | None
    records: int | None
    bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class AuditedPlace:
    """A saved place of a reader: `state` is "ok", "missed" trimmed records, or "beyond"."""

    queue: str
    name: str
    offset: int
    lag: int
    state: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What was found in a queue: `what` is a word of `WORDS`; `count` are the records it costs."""

    queue: str
    what: str
    wrong: bool
    file: str
    position: int
    length: int
    offset: int | None
    count: int | None
    reason: str


# What a finding can be, from the worst to the least.
WORDS = ("unreadable", "damage", "gap", "place", "unverifiable", "torn", "foreign", "note")
_WRONG = frozenset({"unreadable", "damage", "gap", "place"})
_TABLES = {
    "queues": AuditedQueue,
    "files": AuditedFile,
    "places": AuditedPlace,
    "findings": AuditFinding,
}
_ARROW = {"str": pyarrow.string(), "int": pyarrow.int64(), "bool": pyarrow.bool_()}


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found: rows, sorted by queue."""

    paths: tuple[str, ...]
    queues: tuple[AuditedQueue, ...]
    files: tuple[AuditedFile, ...]
    places: tuple[AuditedPlace, ...]
    findings: tuple[AuditFinding, ...]
    time: float
    seconds: float

    @property
    def wrong(self) -> int:
        """How many findings are wrong."""
        return sum(finding.wrong for finding in self.findings)

    def arrow(self, table: str) -> pyarrow.Table:
        """Returns the table `queues`, `files`, `places` or `findings` as an Arrow table."""
        rows = [asdict(row) for row in getattr(self, table)]
        schema = [
            (field.name, _ARROW[str(field.type).partition(" ")[0]])
            for field in fields(_TABLES[table])
        ]
        return pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(schema))

    def save(self, directory: str | os.PathLike[str]) -> list[str]:
        """Writes the tables as Parquet files into a directory; returns their paths."""
        os.makedirs(directory, exist_ok=True)
        paths = []
        for table in _TABLES:
            paths.append(os.path.join(directory, f"{table}.parquet"))
            pyarrow.parquet.write_table(self.arrow(table), paths[-1])
        return paths


def audit(
    paths: str | Iterable[str],
    *,
    spark: forebay.spark.SparkSession | None = None,
    key_file: str | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    """Verifies every byte of every queue that the paths and globs name; changes nothing.

    The executors must see the paths. Without `spark` it uses the running session, or starts one.
    `key_file` is the key of encrypted Beats queues. A directory that a glob matches and that is not
    a queue is skipped; one that was named is an error.
    """
    from forebay.spark.session import session

    spark = spark or session()
    began, started = time.time(), time.monotonic()
    given = [paths] if isinstance(paths, str) else list(paths)
    chosen = tuple(absolute(one) for path in given for one in alternatives(path))
    key_file = None if key_file is None else os.path.abspath(key_file)
    options = SourceOptions(chosen, mode="PERMISSIVE", key_file=key_file)
    found = run_tasks(spark, [[options]], _list_queues)
    tasks = divide([(row["path"], row["bytes"]) for row in found if row["error"] is None])
    work = [[(path, key_file) for path in task] for task in tasks]
    total = sum(map(len, work))
    with _watched(spark, work, total, on_progress):
        told = run_tasks(spark, work, audit_one)
    told += [_unreadable(row["path"], row["error"]) for row in found if row["error"] is not None]
    told.sort(key=lambda row: str(row["queue"]["queue"]))
    return Audit(
        chosen,
        tuple(AuditedQueue(**row["queue"]) for row in told),
        tuple(AuditedFile(**each) for row in told for each in row["files"]),
        tuple(AuditedPlace(**each) for row in told for each in row["places"]),
        tuple(AuditFinding(**each) for row in told for each in row["findings"]),
        began,
        time.monotonic() - started,
    )


_Row = dict[str, Any]


def run_tasks(
    spark: SparkSession, tasks: Sequence[Sequence[Any]], work: Callable[[Any], Iterator[_Row]]
) -> list[_Row]:
    """Calls `work` with every item of every task, one Spark task each; returns all its rows."""
    if not tasks:
        return []

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for item in tasks[number]:
                    rows = [json.dumps(row) for row in work(item)]
                    yield pyarrow.RecordBatch.from_pydict({"row": rows}, _ROWS)

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return [json.loads(row["row"]) for row in numbers.mapInArrow(run, "row string").collect()]


_ROWS = pyarrow.schema([("row", pyarrow.string())])


def _list_queues(options: SourceOptions) -> Iterator[_Row]:
    """Yields the queues that the paths name, seen by an executor, and what cannot be opened."""
    bad: list[Unreadable] = []
    for _, reader in open_queues(options, bad.append, joined=False):
        yield {"path": reader.path, "bytes": _size(reader.path), "error": None}
    for part in bad:
        assert part.damage is not None
        if os.path.isdir(part.queue):
            # Its check says more.
            yield {"path": part.queue, "bytes": _size(part.queue), "error": None}
        else:
            yield {"path": part.queue, "bytes": 0, "error": part.damage.reason}


def _size(path: str) -> int:
    size = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.stat(os.path.join(directory, name)).st_size
    return size


def divide(queues: Sequence[tuple[str, int]]) -> list[list[str]]:
    """Divides queues into tasks of about the same size, the largest first."""
    tasks: list[list[str]] = []
    room = 0
    for path, size in sorted(queues, key=lambda queue: -queue[1]):
        if not tasks or room < size or len(tasks[-1]) == _TASK_QUEUES:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(path)
        room -= size
    return tasks


def audit_one(item: tuple[str, str | None]) -> Iterator[_Row]:
    """Yields what there is to say about one queue; `item` is its path and a key file."""
    path, key_file = item
    try:
        kind = kinds.kind_of(path)
        takes_key = key_file is not None and "key_file" in kind.read_options
        options: dict[str, Any] = {"key_file": key_file} if takes_key else {}
        report = kinds.check(path, **options)
        files = kinds.segments(path, **options)
        info: Any = kinds.describe(path) if kind.has_consumers else None
    except (ForebayError, OSError) as error:
        yield _unreadable(path, _reason(error))
        return
    places = [] if info is None else list(_places(path, info))
    findings = [*_findings(report), *_place_findings(places)]
    queue = AuditedQueue(
        path,
        report.kind,
        report.state,
        report.records,
        report.segments,
        report.bytes,
        report.unverified,
        None if info is None else info.begin,
        None if info is None else info.end,
        sum(finding.wrong for finding in findings),
    )
    states = _states(findings)
    rows = [
        AuditedFile(
            path,
            each.name,
            getattr(each, "first_offset", None),
            each.records,
            each.bytes,
            states.get(each.name, "ok" if each.error is None else "damage"),
        )
        for each in files
    ]
    yield _row(queue, rows, places, findings)


def _row(
    queue: AuditedQueue,
    files: Iterable[AuditedFile],
    places: Iterable[AuditedPlace],
    findings: Iterable[AuditFinding],
) -> _Row:
    return {
        "queue": asdict(queue),
        "files": [asdict(each) for each in files],
        "places": [asdict(each) for each in places],
        "findings": [asdict(each) for each in findings],
    }


def _unreadable(path: str, reason: str) -> _Row:
    finding = AuditFinding(path, "unreadable", True, "", 0, 0, None, None, reason)
    return _row(AuditedQueue(path, "", "", 0, 0, 0, 0, None, None, 1), [], [], [finding])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, NotAQueue):
        return f"is no longer a queue: {error}"
    return f"cannot be read: {error}"


def _findings(report: Report) -> Iterator[AuditFinding]:
    """Yields what a check found, as rows."""
    for damage in report.damage:
        yield _of_damage(report.path, damage)
    for damage in report.torn:
        yield _finding(report.path, "torn", damage)
    for part in report.unverifiable:
        yield _finding(report.path, "unverifiable", part)
    for name in report.foreign:
        text = "a file that does not belong to the queue"
        yield AuditFinding(report.path, "foreign", False, name, 0, 0, None, None, text)
    for note in report.notes:
        yield AuditFinding(report.path, "note", False, "", 0, 0, None, None, note)
    if report.state not in ("open", "closed"):
        text = STATES[report.state]
        yield AuditFinding(report.path, "note", False, "", 0, 0, None, None, text)


def _of_damage(queue: str, damage: Damage) -> AuditFinding:
    # Records that should be there, in no bytes: a file is missing, or was cut.
    missing = damage.length == 0 and damage.count != 0 and damage.offset is not None
    return _finding(queue, "gap" if missing else "damage", damage)


def _finding(queue: str, what: str, damage: Damage) -> AuditFinding:
    name = os.path.relpath(damage.path, queue) if damage.path.startswith(queue) else damage.path
    return AuditFinding(
        queue,
        what,
        what in _WRONG,
        name,
        damage.position,
        damage.length,
        damage.offset,
        damage.count,
        damage.reason,
    )


def _places(path: str, info: Any) -> Iterator[AuditedPlace]:
    """Yields the saved places of the readers of a log, compared with what it holds."""
    for name, place in itertools.chain(info.consumers.items(), info.cursors.items()):
        offset = place["offset"]
        state = "beyond" if offset > info.end else "missed" if offset < info.begin else "ok"
        yield AuditedPlace(path, name, offset, place["lag"], state)


def _place_findings(places: Iterable[AuditedPlace]) -> Iterator[AuditFinding]:
    for place in places:
        if place.state == "beyond":
            reason = f"the place of {place.name!r} is beyond the last record"
            offset = place.offset
            yield AuditFinding(place.queue, "place", True, "", 0, 0, offset, None, reason)


def _states(findings: Iterable[AuditFinding]) -> dict[str, str]:
    """Returns the worst that was found in each file."""
    worst: dict[str, str] = {}
    for finding in findings:
        held = worst.get(finding.file, finding.what)
        worst[finding.file] = min(held, finding.what, key=WORDS.index)
    return worst


@contextlib.contextmanager
def _watched(
    spark: SparkSession, work: Sequence[Sequence[Any]], total: int, progress: Progress | None
) -> Iterator[None]:
    """Calls `progress` while the tasks of a block run, and at its end.

    Spark tells how many tasks have ended. Under Connect it tells that to handlers of the session,
    otherwise to those who ask for a group of jobs.
    """
    if progress is None:
        yield
        return
    tell = progress
    share = total / max(len(work), 1)
    tell(0, total)
    if hasattr(spark, "registerProgressHandler") and "connect" in type(spark).__module__:

        def handle(stages: Any = None, **_: Any) -> None:
            done = sum(stage.num_completed_tasks for stage in stages or ())
            tell(min(total, int(done * share)), total)

        remote: Any = spark
        remote.registerProgressHandler(handle)
        try:
            yield
        finally:
            remote.removeProgressHandler(handle)
    else:
        with _asking(spark, lambda done: tell(min(total, int(done * share)), total)):
            yield
    tell(total, total)


@contextlib.contextmanager
def _asking(spark: SparkSession, tell: Callable[[int], None]) -> Iterator[None]:
    context = spark.sparkContext
    group, over = f"forebay-audit-{uuid.uuid4()}", threading.Event()

    def ask() -> None:
        tracker = context.statusTracker()
        while not over.wait(_POLL_SECONDS):
            done = 0
            for job in tracker.getJobIdsForGroup(group):
                for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                    found = tracker.getStageInfo(stage)
                    done += found.numCompletedTasks if found is not None else 0
            tell(done)

    asker = threading.Thread(target=ask, name="forebay-audit", daemon=True)
    context.setJobGroup(group, "forebay pipeline audit")
    asker.start()
    try:
        yield
    finally:
        over.set()
        asker.join()
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
