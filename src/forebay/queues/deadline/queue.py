"""`DeadlineQueue`: items with a deadline, taken when they are due; larger than memory.

Joins the write-ahead log, memory and runs. This file owns the life of the queue: opening, closing,
waiting, looking, and what is done in the background. `operations.py` owns the changes, `state.py`
what is in the queue, `compaction.py` its files.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from forebay.clock import BootClock, SteadyClock, SystemClock
from forebay.errors import Closed, Empty, Full, InvalidOption
from forebay.formats.deadline.items import BURIED_BIT
from forebay.queues.deadline.compaction import Upkeep
from forebay.queues.deadline.item import (
    DeadlineItem,
    Duration,
    as_item,
    check_lease,
    check_value,
    retry_seconds,
    wanted_all,
    wanted_ms,
)
from forebay.queues.deadline.journal import Journal
from forebay.queues.deadline.operations import NoRoom, Verbs
from forebay.queues.deadline.recovery import IDS_AT_ONCE, Opened, open_deadline_directory
from forebay.queues.deadline.schedule import LoggedSchedule
from forebay.queues.deadline.state import State
from forebay.queues.shared.background import Background, run_urgent_work
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import DeadlineOptions
from forebay.storage import inbox
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.quarantine import count_kept


class Looking:
    """What can be seen of a queue that is open. Any thread may call it."""

    _journal: Journal
    _state: State
    _schedule: LoggedSchedule
    _clock: SteadyClock

    def peek(self) -> DeadlineItem | None:
        """Returns the pending item that is due first, now or later; it stays."""
        with self._journal.lock:
            self._journal.check()
            self._schedule.leases.expire(self._clock.now_ms())
            return self._schedule.load() if self._schedule.head() else None

    def get(self, id: int) -> DeadlineItem | None:
        """Returns an item by its id, pending, given out or buried; None if there is none."""
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            return None if found is None else as_item(*found)

    def browse(self, count: int = 100) -> list[DeadlineItem]:
        """Returns the first items by deadline, given out ones too, buried ones last; they stay."""
        if count < 0:
            raise InvalidOption(f"count = {count}: must be at least 0")
        with self._journal.lock:
            self._journal.check()
            first = itertools.islice(self._state.browse(), count)
            return [as_item(item, times) for item, times in first]

    @property
    def pending(self) -> int:
        """How many items wait, due or not."""
        with self._journal.lock:
            self._schedule.leases.expire(self._clock.now_ms())
            return self._state.pending

    @property
    def due(self) -> int:
        """How many of the pending items are due."""
        with self._journal.lock:
            return self._state.due(self._clock.now_ms())

    @property
    def working(self) -> int:
        """How many items are given out."""
        with self._journal.lock:
            self._schedule.leases.expire(self._clock.now_ms())
            return self._state.working

    @property
    def buried(self) -> int:
        """How many items are put aside."""
        return self._schedule.buried

    def due_in(self) -> float:
        """Returns in how many seconds an item may be due, by its deadline or the end of a lease."""
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            self._schedule.leases.expire(now)
            end = self._schedule.leases.next_end()
            times = [] if end is None else [end]
            times += [self._schedule.deadline] if self._schedule.head() else []
            return max(0, min(times) - now) / 1000 if times else math.inf

    def __len__(self) -> int:
        """How many items there are, given out and buried ones too."""
        return self._schedule.total + self._schedule.buried


_COMPACT = "compact"


class DeadlineMaintenance(Background["DeadlineQueue"]):
    """The background work of one queue."""

    def __init__(
        self,
        queue: DeadlineQueue,
        journal: Journal,
        upkeep: Upkeep,
        verbs: Verbs,
        options: DeadlineOptions,
        clock: SteadyClock,
    ) -> None:
        super().__init__(queue, options, clock)
        self._journal = journal
        self._upkeep = upkeep
        self._verbs = verbs
        self._schedule = queue._schedule
        self._start()
        # Recovery may have left work.
        self.notice()

    def _plan_needed(self) -> None:
        super()._plan_needed()
        if self._upkeep.wants_freeze:
            self._plan(_COMPACT, 0)

    def _needs_drain(self) -> bool:
        return self._journal.is_staging

    def _drain(self) -> None:
        with self._journal.lock:
            self._journal.drain()

    def _needs_sync(self) -> bool:
        return self._sync_policy == "interval" and self._journal.written > self._journal.durable

    def _sync(self) -> None:
        self._journal.sync()

    def _look(self, queue: DeadlineQueue) -> None:
        keep_reserve(queue._directory)
        self._journal.sync_mark()
        queue._save_losses()
        self._verbs.forget_revived()
        self._reserve_ids()

    def _activity(self) -> object:
        return self._journal.written

    def _run_others(self, queue: DeadlineQueue, now: float) -> None:
        self._due.pop(_COMPACT, None)
        # Another thread that merges freezes too.
        if not self._upkeep.is_merging:
            if self._upkeep.wants_freeze:
                self._upkeep.freeze()
            if self._upkeep.wants_merge:
                self._upkeep.merge(between=self._between)

    def _between(self) -> None:
        """Keeps to the time of all queues in the middle of a merge."""
        self.run_urgent()
        run_urgent_work()

    def _reserve_ids(self) -> None:
        """Reserves ids before they run out, so that no enqueue has to wait for it."""
        with self._journal.lock:
            self._journal.check()
            next_id = self._schedule.next_id
        self._verbs.reserve_from(next_id, IDS_AT_ONCE // 2)


_WAIT_SECONDS = 0.05
# The shortest sleep before the next look: clocks tell milliseconds.
_NAP_SECONDS = 0.001
# How often an enqueue looks whether memory has room again.
_TIMES_MAX = 20
_Result = TypeVar("_Result")


class Waiting:
    """Tries again until it works or the time is up. Any thread may call it."""

    def __init__(
        self,
        path: str,
        journal: Journal,
        upkeep: Upkeep,
        options: DeadlineOptions,
        clock: SteadyClock,
    ) -> None:
        self._path = path
        self._journal = journal
        self._upkeep = upkeep
        self._options = options
        self._clock = clock
        # Where the logs ended when room was looked for last.
        self._searched = -1

    def for_room(self, enqueue: Callable[[], _Result], timeout: float | None) -> _Result:
        """Enqueues when there is room: dead items are merged away, then it waits, or raises."""
        start = self._clock.monotonic()
        merge_at = start
        self.for_memory()
        while True:
            with contextlib.suppress(NoRoom):
                return enqueue()
            now = self._clock.monotonic()
            if now >= merge_at:
                # At first it tries again in any case: another thread may have made room.
                found = self._make_room() or merge_at == start
                # Who waits for a slow reader spends a tenth of the time on merging.
                merge_at = self._clock.monotonic() + 9 * (self._clock.monotonic() - now)
                if found:
                    continue
            over = timeout is not None and now >= start + timeout
            if over or self._options.when_full == "reject":
                raise Full(f"{self._path} holds max_bytes = {self._options.max_bytes}")
            self._wait(_WAIT_SECONDS)

    def for_items(
        self,
        try_once: Callable[[], _Result | None],
        due_in: Callable[[], float],
        timeout: float | None,
    ) -> _Result | None:
        """Tries until there is something; with a timeout it waits, and raises `Empty`."""
        if timeout is None:
            return try_once()
        give_up_at = self._clock.monotonic() + timeout

        def seconds_left() -> float:
            left = give_up_at - self._clock.monotonic()
            # An item may become due, or a lease end, without any change.
            return left if left <= 0 else min(left, max(_NAP_SECONDS, due_in()))

        result = self._journal.changes.wait_until(try_once, seconds_left)
        if result is None:
            raise Empty(f"{self._path}: nothing became due in {timeout} s")
        return result

    def _make_room(self) -> bool:
        """Merges dead items away; False if nothing has changed since that was done last."""
        with self._upkeep.work:
            if self._journal.written == self._searched:
                return False
            frozen = self._upkeep.freeze()
            merged = self._upkeep.merge(everything=True)
            self._searched = self._journal.written
            return frozen or merged

    def for_memory(self) -> None:
        """Waits for the freezing to catch up, but not for ever: it may be that it cannot."""
        for _ in range(_TIMES_MAX):
            if not self._options.background or not self._upkeep.is_behind:
                return
            self._wait(_WAIT_SECONDS)

    def _wait(self, seconds: float) -> None:
        with self._journal.lock:
            self._journal.check()
            self._journal.changes.wait(seconds)


class DeadlineQueue(Looking, Handle):
    """A durable queue by deadline that this process owns. Any thread may call it.

    Opens the directory or creates it.

    `sync`: what every change waits for. "always" (default): on return a power cut loses nothing,
    and nobody is given an item before it is durable; one sync of the disk each, shared by all who
    wait. "interval": synced every `sync_interval_ms`; a power cut may cost the newest changes.
    "os": synced when memory is full and at `close`. Both survive `kill -9`.

    `lease_seconds`: how long an item that is given out belongs to its taker, if the call does not
    say; then it is pending again. `max_attempts`: an item that was given out so often and comes
    back is buried (None: never).

    `segment_items`, `segment_bytes`: what memory holds, and one log, before it is frozen into runs;
    an open reads as much. `compression`: of runs, "none" or "lz4". `max_bytes`: the most that logs
    and runs may take (None: no bound), dead items included until a merge drops them. `when_full`:
    "block" waits until there is room, "reject" raises `Full`.

    `background`: False starts no thread; call `maintain()` from time to time instead.
    `group_readable`: modes 0640 and 0750 instead of 0600 and 0700. `staging_bytes`: size of the
    mapped buffer that changes go to under "interval" and "os". `mapped`: False uses no mapped
    memory, as is done on its own on all file systems but ext4, XFS and tmpfs, where a full disk
    could kill the process; a change then costs a system call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: str = "always",
        sync_interval_ms: int = 100,
        lease_seconds: float = 60.0,
        max_attempts: int | None = None,
        segment_items: int = 131_072,
        segment_bytes: int = 64 << 20,
        compression: str = "none",
        max_bytes: int | None = None,
        when_full: str = "block",
        background: bool = True,
        group_readable: bool = False,
        staging_bytes: int = 1 << 20,
        mapped: bool = True,
        filesystem: Filesystem | None = None,
        clock: BootClock | None = None,
    ) -> None:
        self.options = DeadlineOptions(
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            segment_items=segment_items,
            segment_bytes=segment_bytes,
            compression=compression,
            max_bytes=max_bytes,
            when_full=when_full,
            background=background,
            group_readable=group_readable,
            staging_bytes=staging_bytes,
            mapped=mapped,
        )
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = SteadyClock(clock or SystemClock())
        self._directory = self._filesystem.open_directory(
            os.fspath(path), create=True, group_readable=self.options.group_readable
        )
        self.path = self._directory.path
        with contextlib.ExitStack() as undo:
            undo.callback(self._directory.close)
            self._directory.lock()
            self._build(open_deadline_directory(self._filesystem, self._directory), undo)
            if self._guessed:
                # A merge of some would drop tombstones whose items are in others.
                self._upkeep.merge(everything=True)
            inbox.warn_of_waiting(self._directory)
            undo.pop_all()
        self._maintenance = DeadlineMaintenance(
            self, self._journal, self._upkeep, self._verbs, self.options, self._clock
        )
        self._own()

    def enqueue(
        self,
        value: Buffer,
        *,
        delay: Duration | None = None,
        deadline: datetime | int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Takes in an item, due at a deadline, after a delay or now; returns its id.

        A deadline is a datetime with its zone, or milliseconds since 1970; a delay is a number of
        seconds or a timedelta.
        Under `sync="always"` it is durable on return; under the other policies it survives the
        process, and a power cut after the next sync. A deadline in the past does not put it before
        what was given out already. A full queue waits, at most `timeout` seconds, or raises `Full`.
        """
        id = self._schedule.enqueue(value, delay, deadline)
        if id < 0:
            return self.enqueue_many([value], delay=delay, deadline=deadline, timeout=timeout)[0]
        self._journal.announce()
        return id

    def enqueue_many(
        self,
        values: Iterable[Buffer],
        *,
        delay: Duration | None = None,
        deadline: datetime | int | Sequence[datetime | int] | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Takes in items with one commit and returns their ids; a crash leaves all or none.

        A list of deadlines has one for each.
        """
        given = list(values)
        if isinstance(deadline, Iterable):
            # A list of its own, as that of the values: nobody changes it meanwhile.
            deadline = list(deadline)
        ids = self._schedule.enqueue_many(given, delay, deadline)
        if ids is not None:
            self._journal.announce()
            return ids
        batch = [value if type(value) is bytes else _as_bytes(value) for value in given]
        if not batch:
            self._check()
            return []

        def wanted(now_ms: int) -> list[int]:
            return wanted_all(now_ms, len(batch), delay, deadline)

        ids = self._waiting.for_room(lambda: self._verbs.enqueue(batch, wanted), timeout)
        self._maintenance.notice()
        return ids

    def dequeue(
        self, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> DeadlineItem | None:
        """Returns the first item that is due; None if there is none.

        It belongs to the caller until the lease ends, then it is pending again, as after a crash.
        With a timeout (seconds) it waits, and raises `Empty` if none became due. Damaged items
        raise `Damaged`, once; the next call goes on after them.
        """
        if lease_seconds is None:
            found = self._schedule.dequeue(1, self._lease_ms)
            if found:
                return found[0]
            if found is not None and timeout is None:
                return None
        items = self._take(1, timeout, lease_seconds)
        return items[0] if items else None

    def dequeue_many(
        self, count: int, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> list[DeadlineItem]:
        """Returns up to `count` items that are due; with a timeout it waits for the first."""
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        if lease_seconds is None:
            found = self._schedule.dequeue(count, self._lease_ms)
            if found or (found is not None and timeout is None):
                return found
        return self._take(count, timeout, lease_seconds)

    def _take(
        self, count: int, timeout: float | None, lease_seconds: float | None
    ) -> list[DeadlineItem]:
        """Returns items by the longer way, which waits."""
        check_lease(lease_seconds)
        items = self._waiting.for_items(
            lambda: self._verbs.dequeue(count, lease_seconds) or None, self.due_in, timeout
        )
        self._maintenance.notice()
        return items or []

    def release(self, item: DeadlineItem) -> None:
        """Takes an item away for good; raises `LeaseLost` if it is not the caller's any more."""
        if not self._schedule.release([item]):
            self.release_many([item])

    def release_many(self, items: Sequence[DeadlineItem]) -> None:
        """Takes items away with one commit; `LeaseLost`: all of them are still there."""
        given = list(items)
        if given and not self._schedule.release(given):
            self._verbs.release(given)
            self._maintenance.notice()

    def requeue(
        self,
        item: DeadlineItem,
        *,
        delay: Duration | None = None,
        deadline: datetime | int | None = None,
        value: Buffer | None = None,
    ) -> None:
        """Returns an item back under a later deadline, with another value if one is given.

        The old copy goes and the new one comes in one step. One that was given out `max_attempts`
        times is buried instead. Raises `LeaseLost`.
        """
        if self._schedule.requeue(item, value, delay, deadline):
            self._journal.announce()
            return
        stored = None if value is None else _as_bytes(value)
        self._waiting.for_memory()
        self._verbs.requeue(item, lambda now_ms: wanted_ms(now_ms, delay, deadline), stored)
        self._maintenance.notice()

    def reclaim(
        self, id: int, dequeue_count: int, *, lease_seconds: float | None = None
    ) -> DeadlineItem:
        """Returns an item back to who took it before and has its token, due or not.

        For takers that end and come back, and leave it pending meanwhile. It is not counted. Raises
        `LeaseLost` if it was given out again since, is buried, or is gone.
        """
        check_lease(lease_seconds)
        return self._verbs.reclaim(id, dequeue_count, lease_seconds)

    def touch(self, item: DeadlineItem, *, lease_seconds: float | None = None) -> None:
        """Restarts the lease of an item; raises `LeaseLost`."""
        check_lease(lease_seconds)
        self._verbs.touch(item, lease_seconds)

    def bury(self, item: DeadlineItem, reason: str = "") -> None:
        """Puts an item aside: it is kept and not given out until `kick`. Raises `LeaseLost`."""
        self._verbs.bury(item, reason)
        self._maintenance.notice()

    def kick(self, id: int | None = None, *, count: int | None = None) -> int:
        """Makes a buried item pending again, or the `count` oldest ones; returns how many."""
        if (id is None) == (count is None):
            raise InvalidOption("kick: give an id or a count")
        if count is not None and count < 0:
            raise InvalidOption(f"count = {count}: must be at least 0")
        if id is not None:
            found = self.get(id)
            chosen = [found] if found is not None and found.buried else []
        else:
            with self._journal.lock:
                self._journal.check()
                oldest = itertools.islice(self._state.browse((BURIED_BIT, 0)), count)
                chosen = [as_item(item, times) for item, times in oldest]
        kicked = self._verbs.kick(chosen)
        self._maintenance.notice()
        return kicked

    @contextlib.contextmanager
    def take(
        self, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> Iterator[DeadlineItem]:
        """Lends out the first item that is due: released on success, requeued on an exception.

        It is due again after 1 s, twice as long with each time, 300 s at most. Raises `Empty` if
        there is none, or none became due within `timeout` seconds.
        """
        item = self.dequeue(0 if timeout is None else timeout, lease_seconds=lease_seconds)
        assert item is not None
        try:
            yield item
        except BaseException:
            self.requeue(item, delay=retry_seconds(item))
            raise
        self.release(item)

    def delete(self, id: int) -> bool:
        """Takes an item away for good, even one that is given out; False if there is none."""
        found = self._verbs.delete(id)
        self._maintenance.notice()
        return found

    def sync(self) -> None:
        """Makes all changes durable."""
        self._journal.sync()

    def freeze(self) -> bool:
        """Turns what is in memory into runs; False if there is nothing. Happens by itself."""
        self._check_process()
        return self._upkeep.freeze()

    def merge(self) -> bool:
        """Merges all runs into one; False if there is nothing to do. Happens by itself."""
        self._check_process()
        return self._upkeep.merge(everything=True)

    def maintain(self) -> None:
        """Does what is due. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> dict[str, Any]:
        """Returns facts on the queue, for people and for scripts."""
        with self._journal.lock:
            self._journal.check()
            kept_files, kept_bytes = count_kept(self._directory)
            now, state = self._clock.now_ms(), self._state
            due = state.due(now)
            return {
                "kind": "deadline",
                "path": self.path,
                "maintenance": self._maintenance.state,
                "pending": state.pending,
                "due": due,
                "working": state.working,
                "buried": self._schedule.buried,
                "next_id": self._schedule.next_id,
                "bytes": self._verbs.used_bytes(),
                "max_bytes": self.options.max_bytes,
                "in_memory": sum(segment.count for segment in state.segments),
                "runs": sum(len(each.files) for each in state.view.sets),
                "freezes": self._upkeep.freezes,
                "merges": self._upkeep.merges,
                "damaged": len(self.damage) + len(self._upkeep.damage) + state.damaged,
                "losses": self._losses.unaccepted,
                "syncs": self._journal.commit.syncs,
                "quarantined_files": kept_files,
                "quarantined_bytes": kept_bytes,
            }

    def _save_losses(self) -> None:
        """Puts on record what was found to be lost; durable on return."""
        with self._journal.lock:
            self._losses.save()

    def _end(self) -> None:
        """Ends the leases as well: what is given out is pending when the queue is opened."""
        self._upkeep.stopping = True
        self._maintenance.stop()
        with self._upkeep.work:
            try:
                whole = self._journal.error is None
                self._journal.end()
                if whole:
                    self._upkeep.save(self._schedule.next_id)
                    self._losses.save()
                    self._journal.close_mark()
            finally:
                self._release()

    def __repr__(self) -> str:
        return f"<DeadlineQueue {self.path} {'closed' if self._closed else f'of {len(self)}'}>"

    def _refuse(self, error: Closed) -> None:
        self._journal.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._journal.disown(error)
        self.changes = self._journal.changes
        self._schedule.use_lock(self._journal.lock)

    def _build(self, opened: Opened, undo: contextlib.ExitStack) -> None:
        """Makes the parts of the queue for a directory that is in order."""
        undo.callback(opened.wal.file.close)
        for each in opened.sets:
            undo.callback(each.close)
        keep_reserve(self._directory)
        lock = threading.Lock()
        self.damage = opened.damage
        self._losses = opened.losses
        clock = self._clock
        self._state = State(
            opened.segment,
            opened.sets,
            opened.floor_ms,
            lock=lock,
            now_ms=None if clock.is_system else clock.now_ms,
            ahead_ms=clock.ahead_ms,
            losses=opened.losses,
        )
        # Those that are made from here on included.
        undo.callback(self._close_sets)
        if opened.damage or opened.guessed:
            self._state.recount()
        self._state.tell(opened.tell)
        schedule = self._state.schedule
        mark = opened.write_mark(self._directory, schedule.total + schedule.buried)
        undo.callback(mark.close)
        journal = (opened.wal, mark, opened.manifest, lock)
        self._journal = Journal(self._filesystem, self._directory, *journal)
        self._journal.use_schedule(schedule, marks_writes=self.options.sync != "always")
        if self.options.sync != "always" and self.options.mapped and self._directory.maps:
            self._journal.stage(self.options.staging_bytes)
        undo.callback(self._journal.close, ())
        self.changes = self._journal.changes
        self._schedule = self._state.schedule
        self._schedule.next_id = opened.next_id
        self._schedule.attempts_max = self.options.max_attempts or 0
        self._lease_ms = round(self.options.lease_seconds * 1000)
        shared = (self._journal, opened.manifest, self._state)
        self._upkeep = Upkeep(
            self._filesystem,
            self._directory,
            *shared,
            self.options,
            opened.next_number,
            opened.kept,
            opened.losses,
        )
        # A queue with a limit asks for room each time, which the schedule does not. Without one, it
        # goes on until freezing is behind.
        limited = self.options.max_bytes is not None
        self._schedule.items_max = 0 if limited else self._upkeep.items_max
        self._verbs = Verbs(self._journal, self._state, opened.manifest, self.options, self._clock)
        self._guessed = opened.guessed
        self._waiting = Waiting(self.path, self._journal, self._upkeep, self.options, self._clock)

    def _check(self) -> None:
        with self._journal.lock:
            self._journal.check()

    def _release(self) -> None:
        with contextlib.ExitStack() as stack:
            # Last, and whatever happens: others may have the queue.
            stack.callback(self._directory.close)
            stack.callback(self._close_sets)
            stack.callback(self._journal.close, self._upkeep.frozen_wals)
            with self._journal.lock:
                self._journal.fail(Closed(f"{self.path} is closed"))

    def _close_sets(self) -> None:
        for each in self._state.view.sets:
            each.close()


def _as_bytes(value: Buffer) -> bytes:
    check_value(value)
    return bytes(memoryview(value))
