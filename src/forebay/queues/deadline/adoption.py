"""Takes batches that other processes left in `inbox/` into a deadline queue.

A record of a part is a deadline and a value (`deadline_parts.py`). The records become items with
ids of this queue, in runs of their own. The order of steps is what a crash relies on:

1. the runs are written and synced, under numbers of sets that nothing names yet;
2. the ledger says which batch is about to be taken, and as which sets;
3. the manifest names the sets: the one step that decides;
4. the ledger says that the batch is taken; then its files go.

After a crash between 2 and 4 the next adoption finishes the ledger: a batch whose sets the manifest
names is taken, one whose sets it does not name is not, and is taken again from the inbox. So an
open must adopt before anything is merged. On a full disk the same holds without a crash: before the
third step the sets are removed and the batch stays; after it, a merge finishes the ledger first.

What a record of a part for a deadline queue is, as another process leaves it: deadline, value.

A module of its own: who writes parts needs nothing of what reads runs.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay.formats.deadline.items import BURIED_BIT, FileKind, file_name
from forebay.formats.deadline.manifest import NAME, Manifest, SetRow, decode_manifest
from forebay.formats.fflg import Header
from forebay.queues.deadline.runs import RunSet, open_written
from forebay.queues.deadline.schedule import Memory
from forebay.queues.shared.adoption import Refused, take_batches, values_of
from forebay.storage import atomic, inbox
from forebay.storage.filesystem import Directory

if TYPE_CHECKING:
    from forebay.queues.deadline.queue import DeadlineQueue


# Before the value: the deadline in ms since 1970; below 0, the item is due at once.
PREFIX = struct.Struct("<q")
NOW = -1


_logger = logging.getLogger(__name__)
_Part = tuple[inbox.Part, tuple[Header, int]]


def adopt(queue: DeadlineQueue) -> int:
    """Takes in what is ready; gives how many items that made. Any thread may call it."""
    with queue._upkeep.work:
        with queue._journal.lock:
            # A handle that failed does not know what its manifest says on the disk.
            queue._journal.check()
        _settle(queue)
        return take_batches(
            queue._directory, "deadline", queue._clock.now_ms(), _Adoption(queue).adopt
        )


def _settle(queue: DeadlineQueue) -> None:
    """Writes into the ledger what became of a batch that a crash interrupted."""
    ledger = inbox.own_ledger(queue._directory)
    about = [name for name in ledger.adopted if name.startswith(inbox.ABOUT)]
    if not about:
        queue._upkeep.before_merge = None
        return
    named = {
        file_name(row.number, FileKind.PENDING_RUN) for row in queue._upkeep._manifest.manifest.sets
    }
    taken = all(move.segment in named for move in ledger.moves)
    adopted = {name: batch for name, batch in ledger.adopted.items() if name not in about}
    if taken:
        adopted |= {name.removeprefix(inbox.ABOUT): ledger.adopted[name] for name in about}
    inbox.write_ledger(queue._directory, inbox.Ledger(adopted))
    queue._upkeep.before_merge = None


class _Adoption:
    """What takes batches into one queue, with its file work to itself."""

    def __init__(self, queue: DeadlineQueue) -> None:
        self._queue = queue
        self._directory = queue._directory
        self._journal = queue._journal
        self._verbs = queue._verbs
        self._state = queue._state
        self._desk = queue._state.desk

    def adopt(
        self,
        work: Directory,
        manifest: inbox.Manifest,
        headers: list[tuple[Header, int]],
        ledger: inbox.Ledger,
    ) -> int | None:
        """Takes in one batch whose parts verify; None if there is no room for it now."""
        size = sum(part.size for part in manifest.parts)
        count = sum(part.count for part in manifest.parts)
        limit = self._queue.options.max_bytes
        with self._journal.lock:
            self._journal.check()
            used = self._verbs.used_bytes()
            has_room = limit is None or not used or used + size <= limit
            first_id = self._desk.next_id
            if has_room:
                self._verbs.reserve_from(first_id, count)
                self._desk.next_id = first_id + count
        if not has_room:
            # Without the lock: a handler may enqueue to this very queue.
            _logger.info("inbox: a batch of %d bytes waits for room", size)
            return None
        rows = self._write(work, list(zip(manifest.parts, headers, strict=True)), first_id)
        self._decide(manifest, ledger, rows)
        for part in manifest.parts:
            inbox.remove(work, part.name)
        return count

    def _write(self, work: Directory, parts: list[_Part], first_id: int) -> list[SetRow]:
        """Writes the items as sets that nothing names yet; durable on return."""
        rows: list[SetRow] = []
        upkeep = self._queue._upkeep
        try:
            for segment in self._segments(work, parts, first_id):
                segment.number = upkeep._next_number
                upkeep._next_number += 1
                rows.append(upkeep.writer(segment.number).freeze(segment))
        except BaseException:
            self._discard(rows)
            raise
        return rows

    def _discard(self, rows: list[SetRow]) -> None:
        """Removes sets that nothing names."""
        for row in rows:
            with contextlib.suppress(OSError):
                self._directory.unlink(file_name(row.number, FileKind.PENDING_RUN))

    def _segments(self, work: Directory, parts: list[_Part], first_id: int) -> Iterator[Memory]:
        """Yields the items of some parts at a time, as many as memory may hold."""
        now_ms = self._queue._clock.now_ms()
        earliest_ms = min(now_ms, self._desk.floor_ms)
        segment, id = Memory(0), first_id
        for part, (header, _) in parts:
            for values in values_of(work, part, header):
                deadlines = [max(_wanted(value, part, now_ms), earliest_ms) for value in values]
                items = [value[PREFIX.size :] for value in values]
                segment.add_fresh(items, deadlines, id, now_ms, False)
                id += len(items)
            if segment.bytes >= self._queue.options.segment_bytes:
                yield segment
                segment = Memory(0)
        if segment.count:
            yield segment

    def _decide(self, manifest: inbox.Manifest, ledger: inbox.Ledger, rows: list[SetRow]) -> None:
        """Lets the sets count, and the queue read them."""
        files = [file_name(row.number, FileKind.PENDING_RUN) for row in rows]
        moves = [inbox.Move("", name, "") for name in files]
        about = {**ledger.adopted, inbox.ABOUT + manifest.writer: manifest.batch}
        opened: list[RunSet] = []
        try:
            inbox.write_ledger(self._directory, inbox.Ledger(about, moves))
            queue_id = self._queue._upkeep._manifest.manifest.queue_id
            for row in rows:
                opened.append(open_written(self._directory, row, queue_id))
            self._queue._upkeep._manifest.change(lambda before: _with_sets(before, rows))
            with self._journal.lock:
                self._show(opened)
        except BaseException as error:
            for each in opened:
                each.close()
            if self._may_be_decided(rows):
                # What the queue gives out next would contradict it.
                with self._journal.lock:
                    self._journal.fail(error)
            else:
                self._discard(rows)
            raise
        taken = {**ledger.adopted, manifest.writer: manifest.batch}
        self._queue._upkeep.before_merge = lambda: _settle(self._queue)
        inbox.write_ledger(self._directory, inbox.Ledger(taken))
        self._queue._upkeep.before_merge = None

    def _may_be_decided(self, rows: list[SetRow]) -> bool:
        """Says whether the manifest on the disk names the sets all the same, or nobody knows."""
        numbers = {row.number for row in rows}
        try:
            data = atomic.read_small(self._directory, NAME) or b""
            named = decode_manifest(data, f"{self._directory.path}/{NAME}").sets
        except (OSError, ForebayError):
            return True
        return any(row.number in numbers for row in named)

    def _show(self, opened: list[RunSet]) -> None:
        """Has the queue read sets that are newer than all others. Lock held."""
        for each in opened:
            self._state.view.add(each)
            self._desk.total += each.counts()[0]
        self._journal.note_manifest()
        self._journal.changes.announce()


def _with_sets(manifest: Manifest, rows: list[SetRow]) -> Manifest:
    return replace(manifest, sets=(*manifest.sets, *rows))


def _wanted(value: bytes, part: inbox.Part, now_ms: int) -> int:
    if len(value) < PREFIX.size:
        raise Refused(f"{part.name}: a record of {len(value)} bytes has no deadline")
    (wanted_ms,) = PREFIX.unpack_from(value)
    if wanted_ms < 0:
        return now_ms
    return int(min(wanted_ms, BURIED_BIT - 1))
