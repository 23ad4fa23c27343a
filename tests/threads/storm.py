"""Power cuts under threads: writers, takers, syncs and upkeep at once on a disk that takes a while.

Threads run until the time is up; every few milliseconds the power is cut in a copy of the disk, the
queue is opened there and the sum is taken, while the threads go on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from random import Random

import forebay
from tests.kinds import KINDS
from tests.kinds.session import Session
from tests.support.disk import SYNCS, SlowDisk
from tests.threads.gates import Run, check_cut

_SYNC_SECONDS_MAX = 0.004
# A queue that only grows would cost more with each cut.
_VALUES_MAX = 400


class Storm:
    """Threads at work on one queue."""

    def __init__(self, kind: str, policy: str, seed: int) -> None:
        self.kind = kind
        self._random = Random(f"{kind} {policy} {seed}")
        self._disk = SlowDisk(seed=seed)
        self._disk.on_visit = self._visit
        self._session = Session(
            KINDS[kind], "/q", filesystem=self._disk, sync=policy, sync_interval_seconds=0.005
        )
        self._stop = threading.Event()
        self.cuts = 0
        self.values = 0

    def run(self, seconds: float) -> None:
        """Runs for so long; raises AssertionError with what is wrong."""
        runs = [Run(name, work) for name, work in self._works()]
        until = time.monotonic() + seconds
        try:
            for run in runs:
                run.start()
            while time.monotonic() < until:
                time.sleep(0.002 + 0.02 * self._random.random())
                chance = self._random.choice([0.0, 0.0, 0.5])
                # What one taker holds may hide from the next open what another has done with.
                self.values += check_cut(
                    self._disk, self._session, chance=chance, once=False, patience=2
                )
                self.cuts += 1
        except BaseException:
            self._end(runs)
            # Not forgotten open: what fails here must not be told of the next test.
            with contextlib.suppress(OSError, forebay.ForebayError):
                self._session.queue.close()
            raise
        self._end(runs)
        try:
            for run in runs:
                assert not run.is_alive(), f"{run.verb} hangs"
                assert run.error is None, f"{run.verb} raised {run.error!r}"
        finally:
            with contextlib.suppress(forebay.Closed):
                self._session.close()
        # What is acknowledged after a batch that was given back comes again with it.
        check_cut(self._disk, self._session, once=self.kind != "beats")
        assert self._disk.left_open.files == 0, f"left open: {self._disk.left_open}"

    def _end(self, runs: list[Run]) -> None:
        self._stop.set()
        for run in runs:
            run.join(10)

    def _works(self) -> list[tuple[str, Callable[[], None]]]:
        verbs = self._session.kind.verbs()
        works = [("put", self._writer(1)), ("put", self._writer(1))]
        works += [("put_many", self._writer(4)), ("put_many", self._writer(17))]
        works += [("take", self._taker(1, 0.001)), ("take_many", self._taker(30, 0.003))]
        works.append(("sync", self._forever(self._session.sync, 0.003)))
        for name in ("adopt", "freeze", "merge", "trim", "give_back"):
            if name in verbs:
                works.append((name, self._forever(partial(verbs[name], self._session), 0.01)))
        return works

    def _writer(self, count: int) -> Callable[[], None]:
        def write() -> None:
            while not self._stop.is_set():
                ledger = self._session.ledger
                if len(ledger.put) - len(ledger.taking) > _VALUES_MAX:
                    time.sleep(0.002)
                elif count == 1:
                    self._session.put()
                else:
                    self._session.put_many(count)

        return write

    def _taker(self, count: int, pause: float) -> Callable[[], None]:
        return self._forever(lambda: self._session.take(count), pause)

    def _forever(self, work: Callable[[], object], pause: float) -> Callable[[], None]:
        def run() -> None:
            while not self._stop.is_set():
                try:
                    work()
                except forebay.Overtaken:
                    continue
                time.sleep(pause)

        return run

    def _visit(self, call: str, path: str, over: bool) -> None:
        if over and call in SYNCS:
            time.sleep(_SYNC_SECONDS_MAX * self._random.random())
