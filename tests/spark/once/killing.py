"""Kills those who write the queues, and those who read them, again and again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from forebay.queues.log.queue import Log
from tests.queues.helpers import publish, write_part
from tests.spark.once.failing import BETWEEN, HOOKS, READS
from tests.spark.once.points import Points
from tests.spark.once.queries import Query
from tests.spark.once.writers import ACKNOWLEDGED, OPENING, ROLES
from tests.support.killing import Program
from tests.support.waiting import wait_until

# Who was killed, and what it was doing.
Kills = Counter[tuple[str, str]]
QUERY = "query"
DRIVER = "as a whole, Java and all"
WINDOWS_OF_QUERY = ("planning", "reading", "committing", BETWEEN)
_SECONDS_MAX = 400
# A window that so many kills do not meet is none.
_KILLS_MAX = 300


class Writers:
    """A producer and an owner, killed when they are at work and started again, until the end."""

    def __init__(self, directory: Path, kills: Kills, kills_min: int) -> None:
        self._directory = directory
        self._kills = kills
        self._kills_min = kills_min
        self.handed_in: list[bytes] = []
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._kill, "producer")),
            threading.Thread(target=self._guarded, args=(self._kill, "owner")),
            threading.Thread(target=self._guarded, args=(self._hand_in,)),
        ]
        for role in ROLES:
            self._points(role).make(phases=True)
            Log(self.path(role)).close()

    def path(self, role: str) -> Path:
        """Returns the queue of a writer."""
        return self._directory / "queues" / role

    @property
    def acknowledged(self) -> int:
        """The offset behind the last record that the producer is sure of."""
        return int((self._points("producer").directory / ACKNOWLEDGED).read_text())

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for role in ROLES:
            # The last one was killed too: somebody must bring the queue into order.
            Log(self.path(role)).close()
        if self._errors:
            raise self._errors[0]

    def _points(self, role: str) -> Points:
        return Points(self._directory / f"points of the {role}")

    def _guarded(self, work: Callable[..., None], *arguments: str) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._errors.append(error)

    def _kill(self, role: str) -> None:
        windows = [OPENING, *ROLES[role]]
        draw = random.Random(role)
        turn = late = 0
        while (
            turn < self._kills_min
            or not self._stopping.is_set()
            or (_missing(self._kills, role, windows) and late < _KILLS_MAX)
        ):
            late += self._stopping.is_set()
            points = self._points(role)
            output = self._directory / f"output of the {role}"
            process = Program(
                "tests.spark.once.writers", role, self.path(role), points.directory, output=output
            )
            try:
                _wait_for(points, process.pid, windows[turn % len(windows)])
                time.sleep(draw.uniform(0, 0.01))
                assert process.running, output.read_text()
            finally:
                process.kill()
            self._kills[role, points.phases()[process.pid]] += 1
            turn += 1
            self._stopping.wait(0.5)

    def _hand_in(self) -> None:
        """Leaves batches in the owner's inbox."""
        path = self.path("owner")
        number = 0
        while not self._stopping.wait(0.2):
            rows = [b"batch %d, row %d" % (number, row) for row in range(20)]
            publish(path, f"{number:08d}", number, [write_part(path, f"{number:08d}.part", rows)])
            self.handed_in += rows
            number += 1


def _missing(kills: Kills, role: str, windows: Sequence[str]) -> bool:
    """Says whether no kill has met a window yet: who is to be killed goes on meanwhile."""
    return not all(kills[role, window] for window in windows)


def _wait_for(points: Points, pid: int, phase: str) -> None:
    def is_there() -> bool:
        now = points.phases().get(pid)
        # Opening comes once, and is over soon.
        return now == phase or (phase == OPENING and now is not None)

    assert wait_until(is_there, _SECONDS_MAX), phase


def _has_begun(query: Query, known: set[int]) -> bool:
    """Says whether a hook of the stream was called by a process that was not known."""
    phases = query.points.phases().items()
    return any(_window_of(moment) is not None for pid, moment in phases if pid not in known)


def kill_drivers(query: Query, path: str, directory: Path, kills: Kills, count: int) -> None:
    """Starts drivers that run the query, and kills each at a random moment of its stream."""
    draw = random.Random(1)
    for _ in range(count):
        known = set(query.points.phases())
        output = directory / "output of the drivers"
        driver = Program("tests.spark.once.driver", path, directory, output=output)
        try:
            assert wait_until(partial(_has_begun, query, known), _SECONDS_MAX)
            time.sleep(draw.uniform(0, 6))
            assert driver.running, output.read_text()[-4_000:]
        finally:
            driver.kill()
        kills[QUERY, DRIVER] += 1


def kill_processes(query: Query, spark: SparkSession, kills: Kills, count: int) -> None:
    """Runs the query in a session, and kills one of its Python processes at a time.

    Without the one that plans, the query fails and is started again; a task is tried again.
    """
    draw = random.Random(2)
    running = query.start(spark)
    try:
        for turn in range(_KILLS_MAX):
            if turn >= count and not _missing(kills, QUERY, WINDOWS_OF_QUERY):
                break
            window = WINDOWS_OF_QUERY[turn % len(WINDOWS_OF_QUERY)]
            deadline = time.monotonic() + _SECONDS_MAX
            killed = None
            while killed is None:
                assert time.monotonic() < deadline, window
                if not running.isActive:
                    running = query.start(spark)
                killed = _kill_one(query.points, window)
                time.sleep(draw.uniform(0, 0.01))
            kills[QUERY, _window_of(query.points.phases()[killed]) or window] += 1
            time.sleep(draw.uniform(0, 1))
    finally:
        running.stop()


def _kill_one(points: Points, window: str) -> int | None:
    """Kills a process that is in a window; gives its pid when it has ended."""
    for pid, moment in points.phases().items():
        if _window_of(moment) == window and _is_alive(pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # Spark itself has just ended it.
                continue
            assert wait_until(lambda pid=pid: not _is_alive(pid))  # type: ignore[misc]
            return pid
    return None


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _window_of(moment: str) -> str | None:
    """Returns what a process of the query does at a moment; None if it does nothing, or lands."""
    hook = moment.rpartition(" ")[2]
    if moment in READS:
        return "reading"
    if hook == "commit":
        return "committing"
    return "planning" if hook in HOOKS else BETWEEN if moment == BETWEEN else None
