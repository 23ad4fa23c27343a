"""A chapter of the tour: an output goes away and comes back, and the sums add up.

A producer appends to a log, `forebay forward` sends it to a collector in another process. The
collector is killed with SIGKILL, the queue grows, and another collector takes its place. At the end
`forebay forward --check` and the files of the collector agree on every record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from examples.tour.checks import Claim
from examples.tour.page import Line, Page, Plot, Table
from examples.tour.processes import Command, ProcessFailed, answer_of, environment
from examples.tour.terminal import Terminal
from forebay import Log
from forebay.queues.shared.forwarding import Live, read_live

# Where all of it is, below the directory of the tour.
FOLDER = "forward"
RECORDS = 20_000
_BATCH = 100
_SECONDS = 5.0
_AWAY_FROM, _AWAY_UNTIL = 0.2, 0.7
_STANDSTILL_SECONDS_MAX = 300.0


@dataclass(slots=True)
class OutageFacts:
    """What was seen: samples of seconds, records appended and records delivered."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    away: tuple[float, float] = (0.0, 0.0)
    waiting_most: int = 0
    last_error: str = ""
    proof: dict[str, Any] = field(default_factory=dict)
    arrived: int = 0
    twice: int = 0
    in_order: bool = False


class OutageChapter:
    """One run of the chapter."""

    def __init__(self, directory: str, terminal: Terminal) -> None:
        self.facts = OutageFacts()
        self._directory = directory
        self._folder = Path(directory, FOLDER)
        self._queue = str(self._folder / "queue")
        self._batches = self._folder / "collected"
        self._terminal = terminal
        self._collector: subprocess.Popen[bytes] | None = None
        self._forwarder: Command | None = None

    def run(self) -> None:
        """Runs it; leaves no process running."""
        self._batches.mkdir(parents=True)
        try:
            port = self._start_collector(0)
            self._terminal.line(
                f"8. forebay forward sends {RECORDS:,} records to a collector, which is killed "
                "with SIGKILL on the way"
            )
            with Log(self._queue, shared=True, sync="interval") as log:
                self._forward(port)
                self._append(log, port)
                self._wait(lambda: self._delivered() >= RECORDS, "the forwarder")
            assert self._forwarder is not None
            self._forwarder.join()
            self._count()
        finally:
            if self._forwarder is not None:
                self._forwarder.end()
            self._kill_collector()
        self._terminal.claim(claim_delivered(self.facts))

    def _append(self, log: Log, port: int) -> None:
        """Appends at a steady pace; kills the collector on the way, and starts another one."""
        begun, facts = time.monotonic(), self.facts
        away, back = int(RECORDS * _AWAY_FROM), int(RECORDS * _AWAY_UNTIL)
        for first in range(0, RECORDS, _BATCH):
            log.append_many([b'{"n":%d}' % n for n in range(first, first + _BATCH)])
            if first == away:
                self._kill_collector()
                facts.away = time.monotonic() - begun, 0.0
            elif first == back:
                facts.waiting_most = first + _BATCH - self._delivered()
                facts.last_error = getattr(self._live(), "last_error", None) or ""
                self._start_collector(port)
                facts.away = facts.away[0], time.monotonic() - begun
            facts.samples.append((time.monotonic() - begun, first + _BATCH, self._delivered()))
            time.sleep(max(0.0, begun + _SECONDS * first / RECORDS - time.monotonic()))
        self._begun = begun

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _STANDSTILL_SECONDS_MAX
        while not done():
            self.facts.samples.append((time.monotonic() - self._begun, RECORDS, self._delivered()))
            if time.monotonic() > until:
                raise ProcessFailed(f"gave up waiting for {what}; see {self._folder}")
            time.sleep(0.1)

    def _forward(self, port: int) -> None:
        file = self._folder / "forward.toml"
        file.write_text(
            f'[forward.tour]\nqueue = "queue"\nto = "http://127.0.0.1:{port}/"\n'
            "batch_records = 500\nretry_seconds_max = 1\n"
        )
        self._forwarder = Command(
            ["forward", str(file), "--limit", str(RECORDS)], f"{self._directory}/forward.log"
        )
        self._forwarder.start()

    def _count(self) -> None:
        """Compares the proof of the forwarder with what the collector has."""
        file = str(self._folder / "forward.toml")
        log = f"{self._directory}/forward-check.log"
        answer = answer_of(["forward", file, "--check", "--json"], log, (0, 1))
        facts = self.facts
        facts.proof = json.loads(answer)
        batches = sorted(self._batches.iterdir(), key=_first_of)
        lines = [line for batch in batches for line in batch.read_bytes().splitlines()]
        numbers = [json.loads(line)["n"] for line in lines]
        facts.arrived, facts.twice = len(set(numbers)), len(numbers) - len(set(numbers))
        facts.in_order = numbers == list(range(RECORDS))

    def _live(self) -> Live | None:
        return read_live(f"{self._queue}/forward/tour")

    def _delivered(self) -> int:
        live = self._live()
        return 0 if live is None else live.delivered

    def _start_collector(self, port: int) -> int:
        self._collector = subprocess.Popen(
            [sys.executable, "-P", "-m", "examples.tour.collector", self._batches, str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert self._collector.stdout is not None
        line = self._collector.stdout.readline()
        if not line:
            raise ProcessFailed("the collector did not start")
        return int(line)

    def _kill_collector(self) -> None:
        if self._collector is not None:
            assert self._collector.stdout is not None
            os.kill(self._collector.pid, signal.SIGKILL)
            self._collector.wait()
            self._collector.stdout.close()
            self._collector = None


def claim_delivered(facts: OutageFacts) -> Claim:
    """Claims that each record is in one place, and that the collector has all of them in order."""
    proof, seconds = facts.proof, facts.away[1] - facts.away[0]
    text = (
        f"away for {seconds:.1f} s, {facts.waiting_most:,} records waited; then "
        f"{proof['delivered']:,} delivered + {proof['set_aside']} set aside + "
        f"{proof['waiting']} waiting + "
        f"{proof['dropped']} dropped = {proof['records']:,}; twice: {facts.twice}"
    )
    holds = (
        bool(proof["holds"])
        and proof["delivered"] == proof["records"] == facts.arrived == RECORDS
        and facts.in_order
        and facts.waiting_most > 0
    )
    shown: dict[str, object] = {
        **{name: proof[name] for name in ("delivered", "set_aside", "waiting", "dropped")},
        "records": proof["records"],
        "arrived": facts.arrived,
        "twice": facts.twice,
        "waiting_most": facts.waiting_most,
    }
    return Claim("an output that goes away costs nothing", text, holds, shown)


def plot_of(facts: OutageFacts) -> Plot:
    """Returns the plot of the chapter."""
    return Plot(
        "An output goes away",
        f"records so far; the collector was away from second {facts.away[0]:.1f} to "
        f"{facts.away[1]:.1f}",
        [seconds for seconds, _, _ in facts.samples],
        [
            Line("appended to the log", "in", [appended for _, appended, _ in facts.samples]),
            Line("delivered", "out", [delivered for _, _, delivered in facts.samples]),
        ],
    )


def table_of(facts: OutageFacts) -> Table:
    """Returns the sums of the chapter."""
    proof = facts.proof
    names = ("delivered", "set_aside", "waiting", "dropped", "damaged")
    return Table(
        "Where the forwarded records are",
        ("", "records", "= delivered", "+ set aside", "+ waiting", "+ dropped", "+ damaged"),
        [
            ["forebay forward --check", proof["records"], *(proof[name] for name in names)],
            ["files of the collector", facts.arrived, facts.arrived, None, None, None, None],
        ],
        "The collector was killed with SIGKILL while records were sent to it; "
        f"{facts.waiting_most:,} waited in the log when another one took its place. Until then the "
        "forwarder said: "
        f"{facts.last_error or 'nothing'}. The collector keeps each batch under its key; "
        f"{facts.twice} records are in two batches.",
    )


def with_outage(page: Page, facts: OutageFacts) -> Page:
    """Returns a page with what this chapter adds: its plot and its sums."""
    *tables, machine = page.tables
    return replace(
        page, plots=[*page.plots, plot_of(facts)], tables=[*tables, table_of(facts), machine]
    )


def _first_of(batch: Path) -> int:
    """Returns the first offset of a batch, by the name of its file."""
    return int(batch.name.rpartition("_")[2].partition("-")[0])
