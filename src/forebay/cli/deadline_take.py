"""Takes items off a deadline queue: released once they are written, or kept on a lease.

A lease is a requeue: the item is due again when it ends, whoever is alive by then. So a lease that
was printed holds, also after this process has ended; `release`, `requeue` and `bury` are by token.
"""

from __future__ import annotations

import contextlib
import os
import time

from forebay import DeadlineItem, DeadlineQueue
from forebay.cli import exits
from forebay.cli.deadline_folder import Folder
from forebay.cli.deadline_printing import items_text
from forebay.cli.inspection import describe, owner_of
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import say, write_bytes
from forebay.cli.printing import framing_of
from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, Locked
from forebay.formats.deadline.items import Item

_BATCH_ITEMS = 100
_LOOK_SECONDS = 0.1
# So many bytes of leased items wait to be printed, until the queue is free.
_LEASED_BYTES_MAX = 64 << 20
# While this process is there, nobody else can take its items.
_OWN_SECONDS = 10.0**8


def take_items(
    path: str,
    count: int,
    timeout: float | None,
    *,
    lease: float | None,
    framing: str | None,
    as_json: bool,
) -> int:
    """Prints up to `count` items that are due; with a timeout it waits for the first.

    It does not own the queue while it waits: nobody could put anything then.
    """
    taker = _Taker(path, lease, framing_of(framing, as_json), as_json)
    until = time.monotonic() + (timeout or 0)
    watch = _Watch(path)
    with Interrupts() as interrupts:
        try:
            while True:
                interrupts.check()
                late = time.monotonic() >= until
                if late or watch.is_ready():
                    with contextlib.nullcontext() if late else contextlib.suppress(Locked):
                        taker.take_all(count, interrupts)
                if taker.damaged:
                    return exits.DAMAGE
                if taker.taken or late:
                    return exits.OK if taker.taken else exits.NOTHING
                time.sleep(_LOOK_SECONDS)
        except Interrupted as stop:
            return stop.code


class _Watch:
    """Looks without a lock whether an item is due; reads the queue only if its files changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._clock = SystemClock()
        self._seen: list[tuple[str, int, int]] | None = None
        self._due_ms: int | None = None

    def is_ready(self) -> bool:
        """Says whether an item is due, or damage is to be told, and nobody owns the queue."""
        files = self._files()
        if files != self._seen:
            self._due_ms = self._next_due()
            self._seen = files
        is_due = self._due_ms is not None and self._due_ms <= self._clock.now_ms()
        return is_due and owner_of(self._path) is None

    def _files(self) -> list[tuple[str, int, int]]:
        found = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
        return sorted(found)

    def _next_due(self) -> int | None:
        with Folder(self._path) as folder:
            first = next((item for item in folder.items() if isinstance(item, Item)), None)
        return None if first is None or first.buried else first.key.deadline_ms


class _Taker:
    """Takes items in batches and prints them; counts what it took."""

    def __init__(self, path: str, lease: float | None, framing: str, as_json: bool) -> None:
        self._path = path
        self._lease = lease
        self._framing = framing
        self._as_json = as_json
        self._told: list[Damage] = []
        self._leased: list[DeadlineItem] = []
        self._leased_bytes = 0
        self.taken = 0

    @property
    def damaged(self) -> bool:
        """Whether it met damage."""
        return bool(self._told)

    def take_all(self, count: int, interrupts: Interrupts) -> None:
        """Takes up to `count` items that are due."""
        try:
            # A sync for each batch instead of several: what a power cut in between brings back was
            # printed, so it comes twice and is not lost.
            with DeadlineQueue(self._path, sync="os") as queue:
                for damage in queue.damage:
                    self._tell(Damaged(damage))
                while self.taken < count:
                    interrupts.check()
                    items = self._dequeue(queue, min(_BATCH_ITEMS, count - self.taken))
                    if not items:
                        break
                    self._finish(queue, items)
                    self.taken += len(items)
        finally:
            # The queue is free by now: who reads a token can release it at once.
            self._print_leased()

    def _dequeue(self, queue: DeadlineQueue, count: int) -> list[DeadlineItem]:
        """Returns the next items that are due; damage before them is told and passed over."""
        while True:
            try:
                return queue.dequeue_many(count, lease_seconds=_OWN_SECONDS)
            except Damaged as error:
                # The next owner meets it again: who stopped here would never get behind it.
                if error.damage in self._told:
                    raise
                self._tell(error)

    def _finish(self, queue: DeadlineQueue, items: list[DeadlineItem]) -> None:
        """Prints items and takes them away, those that cannot be written stay; or leases them."""
        if self._lease is None:
            self._print(items)
            queue.release_many(items)
            queue.sync()
            return
        for item in items:
            queue.requeue(item, delay=self._lease)
        # The lease is durable before its token is told.
        queue.sync()
        self._leased += items
        self._leased_bytes += sum(len(item.value) for item in items)
        if self._leased_bytes > _LEASED_BYTES_MAX:
            self._print_leased()

    def _print_leased(self) -> None:
        items, self._leased, self._leased_bytes = self._leased, [], 0
        self._print(items)

    def _print(self, items: list[DeadlineItem]) -> None:
        tokens = self._lease is not None
        text = items_text(items, self._framing, as_json=self._as_json, tokens=tokens)
        write_bytes(text, flush=True)

    def _tell(self, error: Damaged) -> None:
        self._told.append(error.damage)
        say(f"{describe(error.damage)}; it is passed over")
