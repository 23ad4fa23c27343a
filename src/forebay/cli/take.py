"""`forebay take`: prints what is next, and removes it once it has been written."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    check_seconds,
    consumer_option,
    count_option,
    framing_option,
    json_option,
    key_option,
    path_argument,
    wait_option,
)
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import say, write_bytes
from forebay.cli.printing import Printer
from forebay.cli.queues import find, need_consumer, offers, open_for, options_for, refuse
from forebay.cli.waiting import LOOK_SECONDS, FileWatch, wait_for_lock
from forebay.client.finding import is_served
from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, Locked, Overtaken
from forebay.queues.kinds import Kind
from forebay.queues.shared.reports import describe_damage
from forebay.queues.shared.rows import Lent, Rows
from forebay.storage.filesystem import lock_owner

# How many records are taken at a time; the limit of a fifo is slightly higher.
_BATCH_RECORDS = 100
# At most this many bytes of leased items are held back until the queue is closed.
_LEASED_BYTES_MAX = 64 << 20


@click.command("take")
@path_argument
@count_option(1)
@click.option(
    "--timeout",
    type=float,
    callback=check_seconds,
    metavar="SECONDS",
    help="How long to wait for the first record.",
)
@consumer_option
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_seconds,
    metavar="SECONDS",
    help="Deadline: keep the items; they are due again after this long, unless released by the "
    "token printed before each.",
)
@wait_option
@key_option
@framing_option
@json_option
def command(
    path: str,
    count: int,
    timeout: float | None,
    consumer: str | None,
    lease: float | None,
    wait: float | None,
    key_file: str | None,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the next records, or the items that are due, and remove them.

    A record is removed after it was written to stdout; if writing fails, it stays and is next
    again. What is in a pipe counts as written. Nothing is removed from a log: instead the position
    of --consumer advances, which trimming waits for. Code 3 if there is nothing. Needs the lock of
    the queue.

    With --lease the items of a deadline queue stay in it. Each value is printed after a token
    ID.COUNT and a tab, or in JSON with "token":"ID.COUNT"; "release", "requeue" and "bury" take the
    token.
    """
    kind = find(path, "take", offers("lender"))
    options = options_for(kind, kind.records.lender, {"--consumer": consumer})
    reading = options_for(kind, kind.records.next_ms, {"--key-file": key_file})
    if lease is not None and not kind.leases:
        refuse(kind, "--lease")
    need_consumer(kind, "take", consumer)
    printer = Printer(kind, as_json=as_json, framing=framing)

    def open_queue(interrupts: Interrupts) -> Any:
        # One sync per batch instead of several per record. After a power cut in between, records
        # that were already printed are in the queue again: they come twice, and none is lost.
        return open_for(kind, path, wait, interrupts, owner={"sync": "os"}, **reading)

    taker = _Taker(kind, open_queue, printer, lease, options)
    watch = _Watch(path, lambda: kind.records.next_ms(path, **options, **reading))
    with contextlib.closing(watch):
        return _take(taker, watch, count, timeout)


def _take(taker: _Taker, watch: _Watch, count: int, timeout: float | None) -> int:
    """Takes the records that are there, or waits for the first, without owning the queue."""
    until = time.monotonic() + (timeout or 0)
    with Interrupts() as interrupts:
        try:
            while True:
                interrupts.check()
                late = time.monotonic() >= until
                if late or watch.is_ready():
                    with contextlib.nullcontext() if late else contextlib.suppress(Locked):
                        taker.take_all(count, interrupts)
                if taker.told:
                    return exits.DAMAGE
                if taker.taken or late:
                    return exits.OK if taker.taken else exits.NOTHING
                with interrupts.waiting():
                    watch.wait(max(0.0, until - time.monotonic()))
        except Interrupted as stop:
            return stop.code


class _Watch:
    """Waits without a lock for records, and for the end of an owner."""

    def __init__(self, path: str, next_ms: Callable[[], int | None]) -> None:
        self._path = path
        self._next_ms = next_ms
        self._clock = SystemClock()
        self._files = FileWatch(path)
        self._owned = self._served = False
        self._due_ms: int | None = None

    def is_ready(self) -> bool:
        """Returns whether a record is there or due, and the queue can be opened."""
        self._served = is_served(self._path)
        self._owned = not self._served and lock_owner(self._path) is not None
        if not self._owned:
            self._due_ms = self._next_ms()
        return not self._owned and self._left_ms() <= 0

    def wait(self, seconds: float) -> None:
        """Returns when it may be ready, or after some seconds."""
        if not self._owned and self._left_ms() > 0:
            self._files.wait(min(seconds, self._left_ms() / 1000))
        elif self._served or not wait_for_lock(self._path, seconds):
            # What is due could not be taken, and not because of the lock, or by another client:
            # try again in a while.
            time.sleep(min(seconds, LOOK_SECONDS))

    def close(self) -> None:
        """Ends the watch."""
        self._files.close()

    def _left_ms(self) -> float:
        return math.inf if self._due_ms is None else self._due_ms - self._clock.now_ms()


class _Taker:
    """Takes records in batches, prints them, and counts them."""

    def __init__(
        self,
        kind: Kind,
        open_queue: Callable[[Interrupts], Any],
        printer: Printer,
        lease: float | None,
        options: dict[str, Any],
    ) -> None:
        self._kind = kind
        self._open_queue = open_queue
        self._printer = printer
        self._lease = lease
        self._options = options
        self._leased: list[Rows] = []
        self._leased_bytes = 0
        self.told: list[Damage] = []
        self.taken = 0

    def take_all(self, count: int, interrupts: Interrupts) -> None:
        """Takes up to `count` records; reports damage before them and skips it."""
        try:
            with self._open_queue(interrupts) as queue:
                lend = self._lender(queue)
                more = True
                while more and self.taken < count:
                    interrupts.check()
                    more = self._take_batch(lend, min(_BATCH_RECORDS, count - self.taken))
        finally:
            # The queue is closed by now: the reader of a token can release it at once.
            self._print_leased()

    def _lender(self, queue: Any) -> Callable[[int], AbstractContextManager[Lent]]:
        records, seconds = self._kind.records, self._lease
        if seconds is None:
            return records.lender(queue, **self._options)
        return lambda count: contextlib.nullcontext(records.lease(queue, count, seconds=seconds))

    def _take_batch(self, lend: Callable[[int], AbstractContextManager[Lent]], count: int) -> bool:
        """Takes one batch; all of it stays if it cannot be written. Returns whether to go on."""
        try:
            with lend(count) as lent:
                news = [damage for damage in lent.damage if self._tell(damage)]
                self._print(lent.rows)
        except Damaged as error:
            # The next owner would find the same damage: stopping here would never get past it.
            if not self._tell(error.damage):
                raise
            return True
        except Overtaken as error:
            say(str(error))
            return True
        self.taken += len(lent.rows)
        return bool(len(lent.rows) or news)

    def _print(self, rows: Rows) -> None:
        if self._lease is None:
            self._printer.print(rows)
            write_bytes(b"", flush=True)
            return
        self._leased.append(rows)
        self._leased_bytes += sum(len(value or b"") for value in rows.values)
        if self._leased_bytes > _LEASED_BYTES_MAX:
            self._print_leased()

    def _print_leased(self) -> None:
        leased, self._leased, self._leased_bytes = self._leased, [], 0
        self._printer.print_all(leased)
        write_bytes(b"", flush=True)

    def _tell(self, damage: Damage) -> bool:
        """Reports damage once; returns whether it was new."""
        if damage in self.told:
            return False
        self.told.append(damage)
        say(f"{describe_damage(damage, self._kind.record)}; skipped")
        return True
