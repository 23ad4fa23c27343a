"""The steps of the tour: producers, a worker and an ingest run, are killed, and continue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.tour.checks import Claim
from examples.tour.events import (
    DAMAGED_OFFSET,
    DAMAGED_QUEUE,
    EVENT_QUEUE,
    KEY,
    LOGS,
    QUEUES,
    SCHEMA,
    SQL,
    Plan,
    event,
    frame_position,
)
from examples.tour.history import Outage, Watch, outage
from examples.tour.jobs import JOBS
from examples.tour.jobs import SCHEMA as JOBS_SCHEMA
from examples.tour.jobs import SQL as JOBS_SQL
from examples.tour.processes import Actor, Command, ProcessFailed
from examples.tour.terminal import Terminal
from forebay import LogReader
from forebay.formats.fflg import LAYOUTS, VERSION_DEFAULT, segment_name

CONSUMER_ID = "tour"
KILLED_PRODUCER = "doors"
_EVENTS_PER_SECOND = 6_000
_SECONDS_MIN = 8.0
_SEGMENTS = 16
_SEGMENT_BYTES_MIN = 100_000
# Enough that the ingest can be killed halfway, no matter how late Spark has started.
_BATCHES_MIN = 4
_KILL_AFTER_BATCHES = 2
_POLL_SECONDS = 0.02
# Which byte of the event is changed.
_FLIPPED_BYTE = 10
# No progress for this long means that something is wrong; Spark is slow on a busy machine.
_STANDSTILL_SECONDS_MAX = 300.0

_SETTINGS = """\
source = "queues/*"
out = "tables"
decode = "json"
schema = "{schema}"
sql = "{sql}"
deduplicate = {{ key = "{key}", within = "1h" }}
consumer_id = "{consumer_id}"
trigger = "1s"
max_offsets_per_trigger = {offsets}
"""
_JOBS_SETTINGS = f"""\
source = "jobs/*"
out = "snapshot"
format = "delta"
decode = "json"
schema = "{JOBS_SCHEMA}"
sql = "{JOBS_SQL}"
"""


@dataclass(slots=True)
class Facts:
    """What the tour finds out during its run, for its claims and its report."""

    acknowledged: int = 0
    found: int = 0
    producer_away_seconds: float = 0.0
    ingest: Outage | None = None
    batches_before: int = 0
    # For the worker of the deadline queue, in steps.
    jobs_acknowledged: int = 0
    jobs_found: int = 0
    worker_away_seconds: float = 0.0
    begins: dict[str, int] = field(default_factory=dict)


class Story:
    """One run of the tour, in a directory without files of an earlier one."""

    def __init__(self, directory: str, plan: Plan, terminal: Terminal) -> None:
        self.plan = plan
        self.settings = _settings(plan)
        self.facts = Facts()
        self._directory = directory
        self._terminal = terminal
        self._ended = False
        self._stopped = False
        self._seconds = max(_SECONDS_MIN, plan.total / _EVENTS_PER_SECOND)
        size = plan.per_queue * len(event(QUEUES[0], plan.per_queue))
        segment_bytes = max(_SEGMENT_BYTES_MIN, size // _SEGMENTS)
        self._producers = [
            self._actor("producer", f"queues/{name}", plan.per_queue, segment_bytes)
            for name in QUEUES
        ]
        self._worker = self._actor("worker", f"jobs/{JOBS}", plan.jobs.steps, plan.jobs.count)
        self._snapshot = Command(
            ["pipeline", "ingest", os.path.join(directory, "jobs.toml")],
            os.path.join(directory, "jobs.log"),
        )
        toml = os.path.join(directory, "ingest.toml")
        self._ingest = Command(["pipeline", "ingest", toml], os.path.join(directory, "ingest.log"))
        self.watch = Watch(self._producers, os.path.join(directory, "tables"))

    def _actor(self, role: str, queue: str, count: int, size: int) -> Actor:
        path = os.path.join(self._directory, queue)
        return Actor(role, path, count, count / self._seconds, size)

    def run(self) -> None:
        """Runs the scenes in order; leaves no process running."""
        Path(self._directory, "ingest.toml").write_text(self.settings)
        Path(self._directory, "jobs.toml").write_text(_JOBS_SETTINGS)
        for name in ("queues", "jobs"):
            os.mkdir(os.path.join(self._directory, name))
        try:
            self._start_producers()
            self._start_ingest()
            self._kill_producer()
            self._kill_worker()
            self._kill_ingest()
            self._run_out()
            self._take_snapshot()
        finally:
            self._ingest.end()
            self._snapshot.end()
            for producer in (*self._producers, self._worker):
                producer.end()

    def _start_producers(self) -> None:
        self._terminal.line(
            f"1. {len(QUEUES)} producers, one process each, write for {self._seconds:.0f} s to the "
            f"logs {', '.join(LOGS)} and the Beats queue {EVENT_QUEUE}; what they "
            "acknowledge is synced"
        )
        self._terminal.line(
            f"   one more fills the deadline queue {JOBS} with {self.plan.jobs.count:,} jobs, and "
            "releases, requeues and buries some"
        )
        for producer in (*self._producers, self._worker):
            producer.start()
        self.watch.mark("producers start")
        victim = self._producers[QUEUES.index(DAMAGED_QUEUE)]
        self._wait(lambda: victim.acknowledged > DAMAGED_OFFSET, "the producers to write")
        header = LAYOUTS[VERSION_DEFAULT].frame_bytes
        position = frame_position(DAMAGED_QUEUE, DAMAGED_OFFSET) + header + _FLIPPED_BYTE
        _flip(Path(victim.path, segment_name(0)), position)
        self._terminal.line(
            f"   a byte of {DAMAGED_QUEUE} is changed on the disk, in its event {DAMAGED_OFFSET}"
        )

    def _start_ingest(self) -> None:
        self._terminal.line("2. Spark starts, in a separate process: forebay pipeline ingest")
        self._ingest.start()
        self.watch.mark("ingest starts")

    def _kill_producer(self) -> None:
        producer = self._producers[QUEUES.index(KILLED_PRODUCER)]
        at = self.plan.per_queue * 2 // 5
        facts = self.facts
        facts.acknowledged, facts.found, facts.producer_away_seconds = self._kill_and_start(
            producer, at, f"3. SIGKILL to the producer of {producer.name}", "events"
        )
        self._terminal.claim(
            claim_recovered(facts.acknowledged, facts.found, facts.producer_away_seconds)
        )

    def _kill_worker(self) -> None:
        """Kills the worker when all jobs are enqueued and some are processed."""
        jobs, facts = self.plan.jobs, self.facts
        at = jobs.count + (jobs.steps - jobs.count) // 5
        facts.jobs_acknowledged, facts.jobs_found, facts.worker_away_seconds = self._kill_and_start(
            self._worker, at, f"   SIGKILL to the worker at {JOBS}", "steps"
        )
        self._terminal.claim(
            claim_worker_recovered(
                facts.jobs_acknowledged, facts.jobs_found, facts.worker_away_seconds
            )
        )

    def _kill_and_start(
        self, actor: Actor, at: int, text: str, unit: str
    ) -> tuple[int, int, float]:
        """Kills a process when it has acknowledged `at` units, and starts it again.

        Returns how much it had acknowledged, how much it found, and how long it was away.
        """
        self._wait(lambda: actor.acknowledged >= at, "the producers to write")
        actor.kill()
        killed = self.watch.mark(f"SIGKILL to the {actor.role} of {actor.name}")
        acknowledged = actor.acknowledged
        self._terminal.line(f"{text}, after {acknowledged:,} acknowledged {unit}; started again")
        actor.start()
        self._wait(lambda: actor.found is not None, f"the {actor.role} of {actor.name}")
        back = self.watch.mark(f"the {actor.role} of {actor.name} is back")
        assert actor.found is not None
        return acknowledged, actor.found, back.seconds - killed.seconds

    def _kill_ingest(self) -> None:
        self._wait(
            lambda: len(self.watch.batches) >= _KILL_AFTER_BATCHES and self._is_writing(),
            "the ingest to publish batches",
        )
        self._ingest.kill()
        # A batch that was published just before the kill does not mean that the ingest is back.
        self.watch.sample()
        killed = self.watch.mark("SIGKILL to the ingest")
        before = self.watch.names()
        self.facts.batches_before = len(before)
        self._terminal.line(
            f"4. SIGKILL to the ingest and its Java, in the middle of batch {max(before) + 1}; "
            "the same command again"
        )
        self._ingest.start()
        self._wait(
            lambda: outage(self.watch.samples, killed.seconds).until_caught_up is not None,
            "the ingest to catch up",
        )
        self.watch.mark("the ingest has caught up")
        found = outage(self.watch.samples, killed.seconds)
        self.facts.ingest = found
        self._terminal.claim(claim_resumed(before, self.watch.names(), found))

    def _run_out(self) -> None:
        self._wait(lambda: self._ended, "the producers to end")
        self._terminal.line(
            f"5. the producers have ended after {self.watch.appended:,} events; "
            f"the ingest is {self.watch.lag:,} behind, and finishes"
        )
        self._wait(lambda: self.watch.landed >= self.plan.total, "the ingest to end")
        self.watch.mark("the ingest has finished")
        self._ingest.stop()
        self._stopped = True
        for producer in self._producers:
            if producer.name in LOGS:
                with LogReader(producer.path) as reader:
                    self.facts.begins[producer.name] = reader.begin
        trimmed = sum(self.facts.begins.values())
        also = f"; {trimmed:,} events that it has read are trimmed from the logs" if trimmed else ""
        self._terminal.line(f"   it has finished, in {len(self.watch.batches)} batches{also}")

    def _take_snapshot(self) -> None:
        self._wait(lambda: self._worker.done, "the worker to end")
        self._terminal.line(
            f"6. forebay pipeline ingest once more: a snapshot of {JOBS}, as its worker left "
            "it, into Delta tables"
        )
        self._snapshot.start()
        self._snapshot.join()
        self.watch.mark("the snapshot of the jobs has landed")

    def _is_writing(self) -> bool:
        """Returns whether a batch is being written that no reader can see yet."""
        staging = os.path.join(self._directory, "tables", "_staging", "landed")
        return os.path.isdir(staging) and bool(os.listdir(staging))

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Watches all processes until `done`; raises `ProcessFailed` if there is no progress."""
        seen, since = (-1, -1), time.monotonic()
        while not done():
            for actor in (*self._producers, self._worker):
                actor.look()
            if not self._stopped:
                self._ingest.look()
            if not self._ended and all(producer.done for producer in self._producers):
                self._ended = True
                self.watch.mark("the producers have ended")
            self.watch.look()
            now = (self.watch.appended, self.watch.landed)
            if now != seen:
                self._terminal.progress(f"   {now[0]:,} events appended, {now[1]:,} in tables")
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STANDSTILL_SECONDS_MAX:
                raise ProcessFailed(f"gave up waiting for {what}; see {self._directory}")
            time.sleep(_POLL_SECONDS)
        self._terminal.progress("")


def claim_recovered(acknowledged: int, found: int, seconds: float) -> Claim:
    """Claims that every acknowledged event is there after a producer was killed."""
    lost = max(0, acknowledged - found)
    text = f"back in {seconds:.1f} s: it finds {found:,} events in the log; lost: {lost}"
    facts: dict[str, object] = {"acknowledged": acknowledged, "found": found, "lost": lost}
    return Claim("nothing acknowledged is lost", text, lost == 0, facts)


def claim_worker_recovered(acknowledged: int, found: int, seconds: float) -> Claim:
    """Claims that every step on the deadline queue is there after its worker was killed."""
    lost = max(0, acknowledged - found)
    text = f"back in {seconds:.1f} s: {found:,} steps are in the deadline queue; lost: {lost}"
    facts: dict[str, object] = {"acknowledged": acknowledged, "found": found, "lost": lost}
    return Claim("no step on the deadline queue is lost", text, lost == 0, facts)


def claim_resumed(before: dict[int, str], after: dict[int, str], found: Outage) -> Claim:
    """Claims that a killed ingest keeps its published batches and continues after them."""
    kept = sum(after.get(batch) == directory for batch, directory in before.items())
    text = (
        f"back after {found.until_back or 0:.1f} s, caught up after "
        f"{found.until_caught_up or 0:.1f} s; {kept} of {len(before)} published batches untouched"
    )
    gapless = sorted(after) == list(range(len(after)))
    facts: dict[str, object] = {
        "published": len(before),
        "kept": kept,
        "back_seconds": found.until_back,
        "caught_up_seconds": found.until_caught_up,
    }
    holds = kept == len(before) and gapless and len(after) > len(before)
    return Claim("the ingest continues where it was", text, holds, facts)


def _settings(plan: Plan) -> str:
    offsets = max(1, plan.total // _BATCHES_MIN)
    return _SETTINGS.format(
        schema=SCHEMA, sql=SQL, key=KEY, consumer_id=CONSUMER_ID, offsets=offsets
    )


def _flip(file: Path, position: int) -> None:
    """Changes one byte of a file, as a bad disk would."""
    with open(file, "r+b", buffering=0) as target:
        (byte,) = os.pread(target.fileno(), 1, position)
        os.pwrite(target.fileno(), bytes([byte ^ 1]), position)
