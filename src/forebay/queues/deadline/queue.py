"""`DeadlineQueue`: items with a deadline, dequeued when they are due; larger than memory.

Joins the write-ahead log, memory and runs. This file has the verbs and owns the life of the queue:
opening, closing, waiting, reading, and the background work. `schedule.py` owns the changes,
`journal.py` their durability, `state.py` what is in the queue, `compaction.py` its
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar

from forebay.clock import BootClock, SteadyClock, SystemClock
from forebay.damage import Damage
from forebay.errors import Closed, Empty, Full, InvalidOption, LeaseLost, RecordTooLarge
from forebay.formats.deadline.items import BURIED_BIT
from forebay.kernels.deadline import BATCH_BYTES, FRESH_BYTES
from forebay.queues.deadline.compaction import Upkeep
from forebay.queues.deadline.info import DeadlineInfo
from forebay.queues.deadline.item import DeadlineItem, as_item
from forebay.queues.deadline.journal import IDS_AT_ONCE, Journal
from forebay.queues.deadline.options import DeadlineOptions
from forebay.queues.deadline.recovery import Opened, open_deadline_directory
from forebay.queues.deadline.schedule import FULL, LENT_MAX, TOO_MANY_ATTEMPTS, as_bytes, lease_lost
from forebay.queues.deadline.state import NO_BOUND, State
from forebay.queues.shared.background import Background, run_urgent_work
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import Duration, SyncPolicy, as_seconds
from forebay.queues.shared.verbs import Loan, Run, Steps, Work, lends, run, shortcut, verb
from forebay.queues.shared.waiting import (
    ITEMS,
    ROOM,
    NoRoom,
    countdown,
    when_found,
    when_there_is_room,
)
from forebay.storage import inbox
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import Ticket
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.quarantine import count_kept

if TYPE_CHECKING:
    from forebay.queues.deadline.schedule import NotMade

_Result = TypeVar("_Result")
# The shortest sleep before the next look: clocks count milliseconds.
_NAP_SECONDS = 0.001
# How long new items wait for freezing to catch up; it may never do so.
_BEHIND_SECONDS = 1.0
# To make room, runs are merged. Callers that wait for room spend a tenth of their time on that.
_REST_FACTOR = 9

_COMPACT, _EXTEND = "compact", "extend"


class DeadlineMaintenance(Background["DeadlineQueue"]):
    """The background work of one queue."""

    def __init__(
        self,
        queue: DeadlineQueue,
        journal: Journal,
        upkeep: Upkeep,
        options: DeadlineOptions,
        clock: SteadyClock,
    ) -> None:
        super().__init__(queue, options, clock)
        self._journal = journal
        self._upkeep = upkeep
        # The loans whose leases are extended while the bodies of `take` run.
        self._loans: weakref.WeakSet[_ItemLoan] = weakref.WeakSet()
        self._start()
        # Recovery may have left work to do.
        self.notice()

    def extend(self, loan: _ItemLoan) -> None:
        """Extends a lease from now on, until the loan is dropped."""
        self._loans.add(loan)
        self._plan_extension()

    def drop(self, loan: _ItemLoan) -> None:
        """Stops extending a lease."""
        self._loans.discard(loan)

    def run_urgent(self) -> None:
        """Drains, syncs and extends leases, if that is due."""
        super().run_urgent()
        if self._comes_due(_EXTEND, self._clock.monotonic()):
            for loan in list(self._loans):
                # If a lease was lost nevertheless, the end of its block reports it.
                with contextlib.suppress(LeaseLost):
                    loan.extend()
            self._plan_extension()

    def _plan_extension(self) -> None:
        """Plans the next extension: each lease is extended twice before it ends."""
        seconds = min((loan.lease_ms / 3000 for loan in list(self._loans)), default=math.inf)
        at = self._clock.monotonic() + seconds
        if at < self._due.get(_EXTEND, math.inf):
            self._plan(_EXTEND, seconds)

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
        return self._sync_policy == "interval" and self._journal.applied > self._journal.durable

    def _sync(self) -> None:
        self._journal.sync()

    def _look(self, queue: DeadlineQueue) -> None:
        super()._look(queue)
        self._journal.sync_mark()
        queue._save_losses()
        queue._forget_revived()
        # Before the ids run out, so that no enqueue has to wait for this.
        self._journal.reserve_ids(IDS_AT_ONCE // 2)

    def _activity(self) -> object:
        return self._journal.applied

    def _run_others(self, queue: DeadlineQueue, now: float) -> None:
        self._due.pop(_COMPACT, None)
        # If another thread is merging, it freezes as well.
        if not self._upkeep.is_merging:
            if self._upkeep.wants_freeze:
                self._upkeep.freeze(between=self._between)
            if self._upkeep.wants_merge:
                self._upkeep.merge(between=self._between)

    def _between(self) -> None:
        """Does the urgent work of all queues in the middle of a freeze or a merge."""
        self.run_urgent()
        run_urgent_work()


class _ItemLoan:
    """An item that is lent for the length of a block."""

    def __init__(self, queue: DeadlineQueue, value: DeadlineItem, lease_ms: int) -> None:
        self._queue = queue
        self.value = value
        self.lease_ms = lease_ms

    def extend(self) -> None:
        """Restarts the lease; raises `LeaseLost`."""
        self._queue._touch(self.value, self.lease_ms)

    def finish(self) -> Steps[None]:
        """Removes the item for good."""
        self._queue._maintenance.drop(self)
        yield from self._queue._release(self.value)

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts the item back, to be due again later; the error becomes the reason."""
        self._queue._maintenance.drop(self)
        text = f"{TOO_MANY_ATTEMPTS}: {type(error).__name__}: {error}"
        delay = self._queue._retry_seconds(self.value)
        # A queue that is closed, or a lease that has ended, has made it pending already.
        with contextlib.suppress(Closed, LeaseLost):
            yield from self._queue._put_back(self.value, delay=delay, reason=text)

    def undo(self) -> None:
        """Makes the item available again; its borrower has never seen it."""
        self._queue._maintenance.drop(self)
        self._queue._take_back([self.value])


class DeadlineQueue(Handle):
    """A durable queue by deadline that this process owns. Any thread may call it.

    Opens the directory or creates it.

    - `shared`: True shares the queue with any number of processes that say so too; a server, which
      starts and ends by itself, then owns it (docs/sharing.md).
    - `sync`: what every change waits for. "always" (default): on return a power cut loses nothing,
      and no item is returned before it is durable; one sync of the disk each, shared by all callers
      that wait. "interval": synced every `sync_interval_seconds`; a power cut may lose the newest
      changes. "os": synced when memory is full and at `close`. Both survive `kill -9`.
    - `sync_interval_seconds`: how often "interval" syncs.
    - `lease_seconds`: how long a dequeued item belongs to the caller, unless the call says
      otherwise; then it is pending again.
    - `max_attempts`: an item that was dequeued this many times and comes back is buried (None:
      never).
    - `retry_seconds`: after an exception in the block of `take`, the time until an item is due
      again; it doubles with each earlier time that the item was dequeued.
    - `retry_seconds_max`: the longest of these times.
    - `segment_items`: how many changes memory holds, and one log, before they are frozen into
      runs; an open reads as many.
    - `segment_bytes`: how many bytes of changes they hold.
    - `compression`: of runs, "none" or "lz4".
    - `max_bytes`: the most that logs and runs may take (None: no bound), including dead items until
      a merge drops them.
    - `when_full`: "block" waits until there is room, "reject" raises `Full`.
    - `background`: False starts no thread; call `maintain()` from time to time instead.
    - `group_readable`: modes 0640 and 0750 instead of 0600 and 0700.
    - `staging_bytes`: size of the mapped buffer that changes go to under "interval" and "os".
    - `mapped`: False uses no mapped memory, which is automatic on all file systems but ext4, XFS
      and tmpfs, where a full disk could kill the process; a change then costs a system call.
    """

    _searched: int

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        sync: SyncPolicy = "always",
        sync_interval_seconds: Duration = 0.1,
        lease_seconds: Duration = 60.0,
        max_attempts: int | None = None,
        retry_seconds: Duration = 1.0,
        retry_seconds_max: Duration = 300.0,
        segment_items: int = 131_072,
        segment_bytes: int = 64 << 20,
        compression: Literal["none", "lz4"] = "none",
        max_bytes: int | None = None,
        when_full: Literal["block", "reject"] = "block",
        background: bool = True,
        group_readable: bool = False,
        staging_bytes: int = 1 << 20,
        mapped: bool = True,
        filesystem: Filesystem | None = None,
        clock: BootClock | None = None,
    ) -> None:
        self.options = DeadlineOptions(
            sync=sync,
            sync_interval_seconds=as_seconds(sync_interval_seconds),
            lease_seconds=as_seconds(lease_seconds),
            max_attempts=max_attempts,
            retry_seconds=as_seconds(retry_seconds),
            retry_seconds_max=as_seconds(retry_seconds_max),
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
                # A merge of only some sets would drop tombstones whose items are in others.
                self._upkeep.merge(everything=True)
            inbox.warn_of_waiting(self._directory)
            undo.pop_all()
        self._maintenance = DeadlineMaintenance(
            self, self._journal, self._upkeep, self.options, self._clock
        )
        self._own()

    @shortcut
    def enqueue(
        self,
        value: Buffer,
        *,
        delay: Duration | None = None,
        deadline: datetime | None = None,
        deadline_ms: int | None = None,
        timeout: float | None = None,
        _run: Run[int] = run,
    ) -> int:
        """Adds an item, due at a deadline, after a delay or now; returns its id.

        `deadline` is a datetime with its zone, `deadline_ms` milliseconds since 1970, `delay` a
        number of seconds or a timedelta: give one of them, or none.
        Under `sync="always"` it is durable on return; under the other policies it survives the
        process, and after the next sync a power cut. A deadline in the past does not put it before
        items that were dequeued already. A full queue waits, at most `timeout` seconds, or raises
        `Full`.
        """
        if not self._always:
            id = self._schedule.enqueue(value, delay, deadline, deadline_ms)
            if id is not FULL:
                if self.changes.wanted:
                    self.changes.answer()
                return id
        data = as_bytes(value)
        change = partial(self._schedule.enqueue, data, delay, deadline, deadline_ms, True)
        return _run(self._put([data], change, timeout))

    @verb
    def post(
        self,
        value: Buffer,
        *,
        delay: Duration | None = None,
        deadline: datetime | None = None,
        deadline_ms: int | None = None,
        timeout: float | None = None,
    ) -> Steps[int]:
        """Adds an item as `enqueue` does, without waiting for the disk.

        Returns a ticket for `flush`, which waits until it is stored. In a shared queue it is sent
        to the server, and no answer is awaited.
        """
        data = as_bytes(value)
        change = partial(self._schedule.enqueue, data, delay, deadline, deadline_ms, True)
        return self._posts.begin(self._put([data], change, timeout))

    @verb
    def enqueue_many(
        self,
        values: Iterable[Buffer],
        *,
        delay: Duration | None = None,
        deadline: datetime | Sequence[datetime] | None = None,
        deadline_ms: int | Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Steps[list[int]]:
        """Adds items with one commit and returns their ids; a crash leaves all or none.

        A list of deadlines has one for each item.
        """
        given = list(map(as_bytes, values))
        # Copied, like the list of values: no other thread can change the lists meanwhile.
        if isinstance(deadline, Iterable):
            deadline = list(deadline)
        if isinstance(deadline_ms, Iterable):
            deadline_ms = list(deadline_ms)
        if not given:
            with self._journal.lock:
                self._journal.check()
            return []
        change = partial(self._schedule.enqueue_many, given, delay, deadline, deadline_ms)
        return (yield from self._put(given, change, timeout))

    put = enqueue
    put_many = enqueue_many

    @shortcut
    def dequeue(
        self,
        timeout: float | None = None,
        *,
        lease_seconds: Duration | None = None,
        _run: Run[DeadlineItem | None] = run,
    ) -> DeadlineItem | None:
        """Returns the first item that is due; None if there is none.

        It belongs to the caller until the lease ends, then it is pending again, as after a crash.
        With a timeout (seconds) it waits, and raises `Empty` if none became due. Damaged items
        raise `Damaged`, once; the next call goes on after them.
        """
        if lease_seconds is None and timeout is None:
            if self._always:
                if self._schedule.is_idle():
                    return None
            else:
                items = self._schedule.dequeue(1, self._lease_ms)
                if items is not FULL:
                    return items[0] if items else None
        return _run(self._dequeue(timeout, self._as_lease_ms(lease_seconds)))

    def _dequeue(self, timeout: float | None, lease_ms: int) -> Steps[DeadlineItem | None]:
        items = yield from self._take_off(1, timeout, lease_ms)
        return items[0] if items else None

    @verb
    def dequeue_many(
        self, count: int, timeout: float | None = None, *, lease_seconds: Duration | None = None
    ) -> Steps[list[DeadlineItem]]:
        """Returns up to `count` items that are due; with a timeout it waits for the first."""
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        return (yield from self._take_off(count, timeout, self._as_lease_ms(lease_seconds)))

    def _take_off(
        self, count: int, timeout: float | None, lease_ms: int
    ) -> Steps[list[DeadlineItem]]:
        """Returns items that are due; if a timeout is given, waits for the first of them."""
        due_in = math.inf

        def look() -> Steps[list[DeadlineItem] | None]:
            nonlocal due_in
            with self._journal.lock:
                items, ticket = self._lend(count, lease_ms)
                due_in = math.inf if items else max(_NAP_SECONDS, self._seconds_to_due())
            return (yield from self._hand_out(items, ticket)) if items else None

        seconds_left = countdown(self._clock, 0 if timeout is None else timeout)
        found = yield from when_found(self.changes, look, seconds_left, ITEMS, lambda: due_in)
        if found is None and timeout is not None:
            raise Empty(f"{self.path}: nothing became due in {timeout} s")
        return found or []

    def _release(self, item: DeadlineItem) -> Steps[None]:
        yield from self._change(partial(self._schedule.release, [item], True), takes=True)

    @shortcut
    def release(self, item: DeadlineItem, _run: Run[None] = run) -> None:
        """Removes an item for good; raises `LeaseLost` if the caller no longer holds it."""
        if not self._always:
            done = self._schedule.release([item])
            if done is not FULL:
                if self.changes.wanted:
                    self.changes.answer()
                return None
        return _run(self._release(item))

    @verb
    def release_many(self, items: Sequence[DeadlineItem]) -> Steps[None]:
        """Removes items with one commit; after `LeaseLost` all of them are still there."""
        given = list(items)
        if given:
            yield from self._change(partial(self._schedule.release, given, True), takes=True)

    @shortcut
    def requeue(
        self,
        item: DeadlineItem,
        *,
        delay: Duration | None = None,
        deadline: datetime | None = None,
        deadline_ms: int | None = None,
        value: Buffer | None = None,
        _run: Run[None] = run,
    ) -> None:
        """Puts an item back under a later deadline, with another value if one is given.

        The old copy goes and the new one comes in one step. An item that was dequeued
        `max_attempts` times is buried instead. Raises `LeaseLost`.
        """
        times = (delay, deadline, deadline_ms)
        if not self._always:
            done = self._schedule.requeue(item, value, *times, TOO_MANY_ATTEMPTS)
            if done is not FULL:
                if self.changes.wanted:
                    self.changes.answer()
                return None
        return _run(
            self._requeue(
                partial(self._schedule.requeue, item, value, *times, TOO_MANY_ATTEMPTS, True)
            )
        )

    def _requeue(self, requeue: Callable[[], NotMade | None]) -> Steps[None]:
        yield from self._await_memory()
        yield from self._change(requeue)

    @verb
    def reclaim(
        self, id: int, dequeue_count: int, *, lease_seconds: Duration | None = None
    ) -> Steps[DeadlineItem]:
        """Returns an item to the caller that held it before and has its token, due or not.

        For callers that end and come back, and leave it pending meanwhile. It does not count as an
        attempt. Raises `LeaseLost` if it was dequeued again since, is buried, or is gone.
        """
        lease_ms = self._as_lease_ms(lease_seconds)
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            if found is None or found[0].buried or found[1] != dequeue_count:
                raise lease_lost(id, dequeue_count)
            item = as_item(*found)
            self._schedule.reclaim(item, lease_ms)
            return item
        yield

    @verb
    def touch(self, item: DeadlineItem, *, lease_seconds: Duration | None = None) -> Steps[None]:
        """Restarts the lease of an item; raises `LeaseLost`."""
        self._touch(item, self._as_lease_ms(lease_seconds))
        return
        yield

    @verb
    def bury(self, item: DeadlineItem, reason: str = "") -> Steps[None]:
        """Puts an item aside: it is kept but not dequeued until `kick`. Raises `LeaseLost`."""
        yield from self._change(partial(self._schedule.bury, item, reason))

    @verb
    def kick(self, id: int | None = None, *, count: int | None = None) -> Steps[int]:
        """Makes a buried item pending again, or the `count` oldest ones; returns how many."""
        if (id is None) == (count is None):
            raise InvalidOption("kick: give an id or a count")
        if count is not None and count < 0:
            raise InvalidOption(f"count = {count}: must be at least 0")
        ticket: Ticket | None = None
        with self._journal.lock:
            self._journal.check()
            if id is not None:
                found = self._state.find_id(id)
                chosen = [as_item(*found)] if found is not None and found[0].buried else []
            else:
                chosen = list(itertools.islice(self._state.browse((BURIED_BIT, 0)), count))
            for item in chosen:
                _, ticket = self._journal.apply(partial(self._schedule.kick, item))
        return (yield from self._settle(len(chosen), ticket))

    @lends
    def take(
        self, timeout: float | None = None, *, lease_seconds: Duration | None = None
    ) -> Steps[Loan[DeadlineItem]]:
        """Lends the first item that is due: `with queue.take() as item`.

        At the end of the block it is released. After an exception in the block it is requeued, to
        be due after `retry_seconds`, twice as long each time; if it is buried instead, its reason
        has the text of the exception. Its lease is extended while the block runs. Raises `Empty` if
        there is none, or none became due within `timeout` seconds.
        """
        lease_ms = self._as_lease_ms(lease_seconds)
        items = yield from self._take_off(1, 0 if timeout is None else timeout, lease_ms)
        loan = _ItemLoan(self, items[0], lease_ms)
        self._maintenance.extend(loan)
        return loan

    @verb
    def delete(self, id: int) -> Steps[bool]:
        """Removes an item for good, even one that is leased; False if there is none."""
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            if found is None:
                return False
            key = found[0].key
            change = partial(self._schedule.remove, key.deadline_ms, key.id)
            _, ticket = self._journal.apply(change, takes=True)
        return (yield from self._settle(True, ticket))

    @verb
    def sync(self) -> Steps[None]:
        """Makes all changes durable."""
        yield self._journal.ticket()

    @verb
    def freeze(self) -> Steps[bool]:
        """Turns what is in memory into runs; False if there is nothing. Also happens by itself."""
        self._check_process()
        frozen: bool = yield Work(self._upkeep.freeze)
        return frozen

    @verb
    def merge(self) -> Steps[bool]:
        """Merges all runs into one; False if there is nothing to do. Also happens by itself."""
        self._check_process()
        merged: bool = yield Work(partial(self._upkeep.merge, everything=True))
        return merged

    def peek(self) -> DeadlineItem | None:
        """Returns the pending item that is due first, now or later, without removing it."""
        with self._journal.lock:
            self._journal.check()
            self._schedule.leases.expire(self._clock.now_ms())
            return self._schedule.load() if self._schedule.head() else None

    def get(self, id: int) -> DeadlineItem | None:
        """Returns an item by its id: pending, leased or buried; None if there is none."""
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            return None if found is None else as_item(*found)

    def browse(self, count: int = 100) -> list[DeadlineItem]:
        """Returns the first items by deadline, leased ones too, buried ones last; they stay."""
        if count < 0:
            raise InvalidOption(f"count = {count}: must be at least 0")
        with self._journal.lock:
            self._journal.check()
            return list(itertools.islice(self._state.browse(), count))

    @property
    def pending(self) -> int:
        """How many items are pending, due or not."""
        with self._journal.lock:
            self._schedule.leases.expire(self._clock.now_ms())
            return self._state.pending

    @property
    def due(self) -> int:
        """How many of the pending items are due."""
        with self._journal.lock:
            return self._state.due(self._clock.now_ms())

    @property
    def damage(self) -> list[Damage]:
        """What could not be read when the queue was opened; see `forebay.Damage`."""
        return self._damage

    @property
    def working(self) -> int:
        """How many items are leased."""
        with self._journal.lock:
            self._schedule.leases.expire(self._clock.now_ms())
            return self._state.working

    @property
    def buried(self) -> int:
        """How many items are buried."""
        return self._schedule.buried

    def __len__(self) -> int:
        """Returns how many items there are, including leased and buried ones.

        Raises `Closed` after a close.
        """
        self._journal.check()
        return self._schedule.total + self._schedule.buried

    def _put(
        self,
        values: list[bytes],
        change: Callable[[], _Result | NotMade],
        timeout: float | None,
    ) -> Steps[_Result]:
        """Applies a change that brings new items, when there is room for them.

        To make room, merges dead items away; then waits, or raises.
        """
        size = BATCH_BYTES + len(values) * FRESH_BYTES + sum(map(len, values))
        limit = self.options.max_bytes
        if limit is not None and size > limit:
            raise RecordTooLarge(f"a batch of {size} bytes does not fit into max_bytes = {limit}")
        merge_at = -math.inf

        def apply() -> tuple[_Result, Ticket | None]:
            if size > self._journal.free_bytes:
                raise NoRoom(size)
            return self._journal.apply(change)

        def make_room(size: int) -> Work | bool:
            if self.options.when_full == "reject" and merge_at > 0:
                raise Full(f"{self.path} holds max_bytes = {limit}; nothing was written")
            return Work(merge) if self._clock.monotonic() >= merge_at else False

        def merge() -> bool:
            nonlocal merge_at
            # After its first merge it tries again in any case: another thread may have made room.
            is_first = merge_at < 0
            began = self._clock.monotonic()
            found = self._make_room()
            now = self._clock.monotonic()
            merge_at = now + _REST_FACTOR * (now - began)
            return found or is_first

        def merge_in() -> float:
            # If nothing has changed, another merge would find nothing.
            is_changed = self._journal.applied != self._searched
            return merge_at - self._clock.monotonic() if is_changed else math.inf

        seconds_left = countdown(self._clock, timeout)
        yield from self._await_memory()
        applied = yield from when_there_is_room(
            self._journal, apply, make_room, seconds_left, merge_in
        )
        return (yield from self._settle(*applied))

    def _change(
        self, change: Callable[[], _Result | NotMade], *, takes: bool = False
    ) -> Steps[_Result]:
        """Applies a change; `takes`: it removes something."""
        with self._journal.lock:
            applied = self._journal.apply(change, takes=takes)
        return (yield from self._settle(*applied))

    def _settle(self, result: _Result, ticket: Ticket | None) -> Steps[_Result]:
        """Returns the result of a change when it is as durable as the policy says."""
        if ticket is not None:
            yield ticket
        self._maintenance.notice()
        return result

    def _put_back(self, item: DeadlineItem, *, delay: float, reason: str) -> Steps[None]:
        """Requeues an item; `reason` is used if it is buried instead."""
        change = partial(self._schedule.requeue, item, None, delay, None, None, reason, True)
        yield from self._change(change)

    def _lend(self, count: int, lease_ms: int) -> tuple[list[DeadlineItem], Ticket | None]:
        """Lends items that are due, one batch at a time. Lock held."""
        items: list[DeadlineItem] = []
        ticket: Ticket | None = None
        asked = given = 0
        try:
            while len(items) < count and asked == given:
                asked = min(count - len(items), LENT_MAX)
                lend = partial(self._schedule.dequeue, asked, lease_ms, True)
                more, ticket = self._journal.apply(lend, takes=True)
                items += more
                given = len(more)
        except BaseException:
            self._schedule.give_back(items)
            raise
        return items, ticket

    def _hand_out(
        self, items: list[DeadlineItem], ticket: Ticket | None
    ) -> Steps[list[DeadlineItem]]:
        """Returns lent items once that is durable; on an error gives them back."""
        try:
            return (yield from self._settle(items, ticket))
        except BaseException:
            self._take_back(items)
            raise

    def _take_back(self, items: list[DeadlineItem]) -> None:
        """Makes items available again that their caller has never seen."""
        with self._journal.lock:
            self._schedule.give_back(items)
            self.changes.announce()

    def _touch(self, item: DeadlineItem, lease_ms: int) -> None:
        with self._journal.lock:
            self._journal.check()
            self._schedule.touch(item, lease_ms)
            # It may now end sooner than the waiting callers expect.
            self.changes.announce()

    def _as_lease_ms(self, lease_seconds: Duration | None) -> int:
        """Returns a lease in ms; refuses values that are not a time."""
        if lease_seconds is None:
            return self._lease_ms
        seconds = as_seconds(lease_seconds)
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < seconds < 10.0**9:
            raise InvalidOption(f"lease_seconds = {lease_seconds!r}: must be a number above 0")
        return round(seconds * 1000)

    def _retry_seconds(self, item: DeadlineItem) -> float:
        """Returns after how many seconds an item is due again after its caller failed."""
        times = 2.0 ** min(item.dequeue_count - 1, 60)
        return min(self.options.retry_seconds * times, self.options.retry_seconds_max)

    def _seconds_to_due(self) -> float:
        """Returns in how many seconds something may be due. Lock held, ended leases returned."""
        end = self._schedule.leases.next_end()
        times = [] if end is None else [end]
        times += [self._schedule.deadline] if self._schedule.head() else []
        return max(0, min(times) - self._clock.now_ms()) / 1000 if times else math.inf

    def _make_room(self) -> bool:
        """Merges dead items away; False if nothing has changed since the last such merge."""
        with self._upkeep.work:
            if self._journal.applied == self._searched:
                return False
            frozen = self._upkeep.freeze()
            # Not the end of the log after the merge: changes made meanwhile were not searched.
            end = self._upkeep.handed_over
            merged = self._upkeep.merge(everything=True)
            self._searched = end
            return frozen or merged

    def _await_memory(self) -> Steps[None]:
        """Waits for freezing to catch up, but not for ever: freezing may be unable to."""
        if not self.options.background or not self._upkeep.is_behind:
            return
        self._maintenance.notice()
        seconds_left = countdown(self._clock, _BEHIND_SECONDS)
        yield from when_found(self.changes, self._look_for_memory, seconds_left, ROOM)

    def _look_for_memory(self) -> Steps[bool | None]:
        with self._journal.lock:
            self._journal.check()
        return None if self._upkeep.is_behind else True
        yield

    def _forget_revived(self) -> None:
        """Writes new tombstones for copies that only came back because theirs were lost."""
        with self._journal.lock:
            keys = list(self._state.revived)
            if keys:
                self._journal.apply(partial(self._schedule.forget, keys))
                self._journal.drain()
                self._state.revived.clear()

    def maintain(self) -> None:
        """Does the work that is due. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> DeadlineInfo:
        """Returns facts about the queue, for people and for scripts."""
        with self._journal.lock:
            self._journal.check()
            kept_files, kept_bytes = count_kept(self._directory)
            state, buried = self._state, self._schedule.buried
            due = state.due(self._clock.now_ms())
            runs = sum(len(each.files) for each in state.view.sets)
            logs = 1 + len(self._upkeep.frozen_wals)
            return DeadlineInfo(
                kind="deadline",
                path=self.path,
                state="open",
                owner=os.getpid(),
                records=state.pending + state.working + buried,
                segments=runs + logs,
                bytes=self._journal.used_bytes,
                damage=tuple(self.damage) + tuple(self._upkeep.damage),
                losses=self._losses.unaccepted,
                quarantined_files=kept_files,
                quarantined_bytes=kept_bytes,
                maintenance=self._maintenance.state,
                syncs=self._journal.commit.syncs,
                pending=state.pending,
                due=due,
                working=state.working,
                buried=buried,
                next_id=self._schedule.next_id,
                runs=runs,
                logs=logs,
                in_memory=sum(segment.count for segment in state.segments),
                freezes=self._upkeep.freezes,
                merges=self._upkeep.merges,
                damaged=len(self.damage) + len(self._upkeep.damage) + state.damaged,
            )

    def _save_losses(self) -> None:
        """Puts on record what was found to be lost; durable on return."""
        with self._journal.lock:
            self._losses.save()

    def _end(self) -> None:
        """Ends the leases as well: leased items are pending when the queue is opened again."""
        self._upkeep.stopping = True
        self._maintenance.stop()
        with self._upkeep.work, contextlib.ExitStack() as stack:
            # Last, and in any case: another process may now open the queue.
            stack.callback(self._directory.close)
            stack.callback(self._close_sets)
            stack.callback(self._upkeep.close)
            stack.callback(self._journal.close, self._mark_clean)
            if self._journal.error is None:
                self._upkeep.freeze_for_close()

    def _mark_clean(self) -> None:
        self._upkeep.save(self._schedule.next_id)
        self._losses.save()
        self._journal.close_mark()

    def __repr__(self) -> str:
        count = self._schedule.total + self._schedule.buried
        return f"<DeadlineQueue {self.path} {'closed' if self._closed else f'of {count}'}>"

    def _refuse(self, error: Closed) -> None:
        self._journal.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._journal.disown(error)
        self.changes = self._journal.changes

    def _build(self, opened: Opened, undo: contextlib.ExitStack) -> None:
        """Makes the parts of the queue for a directory that recovery has put in order."""
        undo.callback(opened.wal.file.close)
        for each in opened.sets:
            undo.callback(each.close)
        keep_reserve(self._directory)
        self._damage = opened.damage
        self._losses = opened.losses
        clock, options = self._clock, self.options
        self._always = options.sync == "always"
        self._state = State(
            opened.segment,
            opened.sets,
            opened.floor_ms,
            losses=opened.losses,
            next_id=opened.next_id,
            items_max=options.items_in_memory_max if options.background else NO_BOUND,
            attempts_max=options.max_attempts or 0,
            hides=self._always,
            now_ms=None if clock.is_system else clock.now_ms,
            ahead_ms=clock.ahead_ms,
        )
        # Including the sets that are made from here on.
        undo.callback(self._close_sets)
        if opened.damage or opened.guessed:
            self._state.recount()
        self._state.tell(opened.tell)
        schedule = self._schedule = self._state.schedule
        mark = opened.write_mark(self._directory, schedule.total + schedule.buried)
        undo.callback(mark.close)
        mapped = not self._always and options.mapped and self._directory.maps
        self._journal = Journal(
            self._filesystem,
            self._directory,
            opened.wal,
            mark,
            opened.manifest,
            self._state,
            max_bytes=options.max_bytes,
            staging_bytes=options.staging_bytes if mapped else 0,
        )
        undo.callback(self._journal.release_files)
        self.changes = self._journal.changes
        self._lease_ms = round(options.lease_seconds * 1000)
        self._upkeep = Upkeep(
            self._filesystem,
            self._directory,
            self._journal,
            opened.manifest,
            self._state,
            options,
            opened.next_number,
            opened.kept,
            opened.losses,
        )
        self._guessed = opened.guessed
        # Where the logs ended when room was last searched for.
        self._searched = -1

    def _close_sets(self) -> None:
        for each in self._state.view.sets:
            each.close()
