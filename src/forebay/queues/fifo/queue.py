"""`Fifo`: push, pop, peek, size and capacity; entries that expire; fixed-size files.

Joins the entry format to a tape. This file owns the life of the queue, its verbs, and its
background work. `writer.py` owns what is pushed, `front.py` what is taken. The methods of
`queue.Queue` are there as well, so that a fifo can replace one.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import cast

from forebay.clock import BootClock, SteadyClock, SystemClock
from forebay.damage import Damage
from forebay.errors import Closed, Damaged, Empty, InvalidOption, RecordTooLarge
from forebay.formats.entry import SIZE_MAX, TTL_SECONDS_MAX, as_bytes, check_ttl, file_name
from forebay.kernels.buffers import measure
from forebay.kernels.entry import METADATA_BYTES, Entry, encode_sized, measure_sized
from forebay.queues.fifo import dead
from forebay.queues.fifo.front import Front
from forebay.queues.fifo.head import HeadFile, Lent, Popped
from forebay.queues.fifo.info import FifoInfo
from forebay.queues.fifo.options import FifoOptions
from forebay.queues.fifo.recovery import Opened, open_fifo_directory
from forebay.queues.fifo.tape import TapeWriter
from forebay.queues.fifo.writer import Batch, FifoWriter
from forebay.queues.shared.background import Background
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import Duration, SyncPolicy, WhenFull, as_seconds
from forebay.queues.shared.posted import Intake
from forebay.queues.shared.verbs import Loan, News, Run, Steps, Work, lends, run, shortcut, verb
from forebay.queues.shared.waiting import (
    ITEMS,
    countdown,
    when_found,
    when_there_is_room,
)
from forebay.storage import inbox
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import Ticket
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.quarantine import count_kept

# The waiting line of callers that want to lend an entry while the most possible are lent.
LOANS = "loans"


class FifoMaintenance(Background["Fifo"]):
    """The background work of one fifo."""

    def __init__(
        self,
        fifo: Fifo,
        writer: FifoWriter,
        front: Front,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        super().__init__(fifo, options, clock)
        self._writer = writer
        self._front = front
        self._head_synced = front.cursor.sequence
        self._start()

    def plan_after_taking(self) -> None:
        """Plans the work that is due after something was taken."""
        if not self.planned or self._sync_policy == "interval":
            self.plan_chores()

    def _needs_drain(self) -> bool:
        writer = self._writer
        return not writer.always and (writer.staged.is_open or writer.has_staged)

    def _drain(self) -> None:
        self._writer.ticket()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._sync_policy == "os":
            return bool(writer.files.finished)
        popped = (
            self._sync_policy == "interval" and self._front.cursor.sequence != self._head_synced
        )
        return popped or writer.applied > writer.durable.number or not writer.mark.synced

    def _sync(self) -> None:
        if not self._writer.always:
            # Entries before the head: it must not say that an entry left that was never on disk.
            self._writer.sync()
            if self._sync_policy == "interval":
                sequence = self._front.cursor.sequence
                self._front.sync_head()
                self._head_synced = sequence
        self._writer.sync_mark()

    def _look(self, queue: Fifo) -> None:
        self._front.tell()
        self._front.save_losses()
        super()._look(queue)

    def _activity(self) -> object:
        return self._writer.applied, self._front.cursor.sequence

    def _rest(self) -> None:
        # The next pop opens the window again, and the maintenance notices that.
        with self._writer.lock:
            self._front.cursor.close()


class _Taken(Loan[list[Entry]]):
    """Entries that are lent."""

    def __init__(self, fifo: Fifo, found: list[tuple[Entry, Lent]]) -> None:
        self._fifo = fifo
        self._found = found

    @property
    def value(self) -> list[Entry]:
        """The lent entries."""
        return [entry for entry, _ in self._found]

    def finish(self) -> Steps[None]:
        """Removes them for good."""
        return self._fifo._finish([lent for _, lent in self._found])

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts them back at the front, or aside if they have come back too often."""
        for entry, lent in self._found:
            yield from self._fifo._give_back(lent, entry)

    def undo(self) -> None:
        """Puts them back at the front; their borrower has never seen them."""
        self._fifo._take_back(lent for _, lent in self._found)


class _Popping(_Taken):
    """Entries that a client pops: lent until it has them, then gone; no attempt counts."""

    _popped: Popped | None = None

    def finish(self) -> Steps[None]:
        """Removes them for good; what fails gives them back."""
        with self._fifo._writer.lock:
            self._fifo._writer.check()
            self._popped = self._fifo._front.finish_pop([lent for _, lent in self._found])
        yield from self._fifo._until_gone(self._popped)

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts them back at the front."""
        self.undo()
        return
        yield

    def undo(self) -> None:
        """Puts them back at the front, also after `finish`."""
        if self._popped is None:
            super().undo()
            return
        with self._fifo._writer.lock:
            self._fifo._front.give_back_popped(self._popped)

    def forget(self) -> None:
        """Says that its borrower has them: there is nothing left to undo."""
        if self._popped is not None and self._fifo._front.settled(self._popped):
            self._fifo.changes.answer()


class _TakenOne(Loan[Entry]):
    """An entry that is lent."""

    def __init__(self, taken: _Taken) -> None:
        self._taken = taken

    @property
    def value(self) -> Entry:
        """The lent entry."""
        return self._taken.value[0]

    def finish(self) -> Steps[None]:
        """Removes it for good."""
        return self._taken.finish()

    def give_back(self, error: BaseException) -> Steps[None]:
        """Puts it back at the front, or aside if it has come back too often."""
        return self._taken.give_back(error)

    def undo(self) -> None:
        """Puts it back at the front; its borrower has never seen it."""
        self._taken.undo()


class Fifo(Handle):
    """A durable queue of bytes, first in first out, owned by this process. Any thread may call it.

    Opens the directory or creates it.

    - `shared`: True shares the queue with any number of processes that say so too; a server, which
      starts and ends by itself, then owns it (docs/sharing.md).
    - `sync`: what a push and a pop wait for. "always" (default): on return a power cut neither
      loses what was pushed nor brings back what was popped; one sync of the disk each, shared by
      all callers that wait. "interval": synced every `sync_interval_seconds`; a power cut may
      lose the newest entries pushed since, and bring back what was popped since. "os": synced
      when a file is full and at `close`. Both survive `kill -9`.
    - `sync_interval_seconds`: how often "interval" syncs.
    - `file_bytes`: size of a file of the tape, taken from the disk in steps; an entry may span
      files. None: the size of the existing files, else 32 MiB, or half of `max_bytes` if less.
    - `max_bytes`: the most that the entries may take, including 32 bytes each (None: no bound); at
      least two files. The disk holds up to two files more.
    - `max_entries`: the most entries there may be, including those that are lent (None: no
      bound).
    - `when_full`, for both bounds: "block" waits until pops make room, "reject" raises `Full`,
      "drop_oldest" drops the entries of whole files for bytes, and as many as needed for entries;
      drops are counted.
    - `ttl_seconds`: how long an entry lives unless its push says otherwise, in whole seconds; 0:
      for ever.
    - `max_attempts`: an entry that `take` has lent this many times, and that came back each time,
      is put aside, durably (see `dead`); the end of the process counts too. None: it comes back
      for ever.
    - `background`: False starts no thread; call `maintain()` from time to time instead.
    - `group_readable`: modes 0640 and 0750 instead of 0600 and 0700.
    - `staging_bytes`: size of the mapped buffer that single pushes go to under "interval" and "os".
    - `mapped`: False uses no mapped memory, which is automatic on all file systems but ext4, XFS
      and tmpfs, where a full disk could kill the process; a push then costs two system calls and a
      pop one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        sync: SyncPolicy = "always",
        sync_interval_seconds: Duration = 0.1,
        file_bytes: int | None = None,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        when_full: WhenFull = "block",
        ttl_seconds: Duration = 0,
        max_attempts: int | None = None,
        background: bool = True,
        group_readable: bool = False,
        staging_bytes: int = 1 << 20,
        mapped: bool = True,
        filesystem: Filesystem | None = None,
        clock: BootClock | None = None,
    ) -> None:
        self.options = FifoOptions(
            sync=sync,
            sync_interval_seconds=as_seconds(sync_interval_seconds),
            file_bytes=file_bytes,
            max_bytes=max_bytes,
            max_entries=max_entries,
            when_full=when_full,
            ttl_seconds=check_ttl(ttl_seconds),
            max_attempts=max_attempts,
            background=background,
            group_readable=group_readable,
            staging_bytes=staging_bytes,
            mapped=mapped,
        )
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = SteadyClock(clock or SystemClock())
        self._ttl_seconds = self.options.ttl_seconds
        self._directory = self._filesystem.open_directory(
            os.fspath(path), create=True, group_readable=self.options.group_readable
        )
        self.path = self._directory.path
        with contextlib.ExitStack() as undo:
            undo.callback(self._directory.close)
            self._directory.lock()
            found = open_fifo_directory(
                self._filesystem, self._directory, self.options, self._clock
            )
            self._build(found, undo)
            inbox.warn_of_waiting(self._directory)
            self._maintenance = FifoMaintenance(
                self, self._writer, self._front, self.options, self._clock
            )
            undo.callback(self._maintenance.stop)
            self._intake = Intake(
                self._directory,
                self._filesystem.boot_id(),
                self._writer,
                extra_max=TTL_SECONDS_MAX,
                store=self._writer.write_posted,
                make_room=self._front.make_room,
            )
            undo.callback(self._intake.close)
            self._intake.find()
            self._intake.begin(
                partial(_after_posting, self._writer, self._front, self._maintenance)
            )
            undo.pop_all()
        self._own()

    @shortcut
    def push(
        self,
        value: Buffer,
        *,
        ttl_seconds: Duration | None = None,
        timeout: Duration | None = None,
        _run: Run[int] = run,
    ) -> int:
        """Pushes an entry and returns its id, which is greater than all before it.

        Under `sync="always"` it is durable on return; under the other policies it survives the
        process, and after the next sync a power cut. A full queue waits for room, at most `timeout`
        seconds if that is given, or does what `when_full` says; `Full`: nothing was written.
        """
        ttl = self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)
        entry_id = self._staged.push(value, ttl)
        if entry_id is None:
            return _run(self._push(value, ttl, timeout))
        if self.changes.wanted:
            self.changes.answer()
        return entry_id

    @shortcut
    def post(
        self,
        value: Buffer,
        *,
        ttl_seconds: Duration | None = None,
        timeout: Duration | None = None,
        _run: Run[int] = run,
    ) -> int:
        """Pushes an entry without waiting for the disk; returns a ticket for `flush`.

        In a shared fifo it is a copy into memory that survives the end of this process and of the
        server: they store it, and `flush` waits for that. Waits for room as `push` does.
        """
        ttl = self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)
        if self._staged.push(value, ttl) is None:
            return _run(self._posts.begin(self._push(value, ttl, timeout)))
        if self.changes.wanted:
            self.changes.answer()
        return next(self._posts.tickets)

    @verb
    def push_many(
        self,
        values: Iterable[Buffer],
        *,
        ttl_seconds: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Steps[int | None]:
        """Pushes entries with one commit and returns the id of the last; None if there are none.

        If it raises, no entry of the call is acknowledged.
        """
        ttl = self._ttl_of(ttl_seconds)
        batch = [value if type(value) is bytes else as_bytes(value) for value in values]
        total, largest, _ = measure(batch)
        return (yield from self._add_batch(Batch.of(batch, total), largest, ttl, timeout))

    @verb
    def push_encoded(
        self,
        records: Buffer,
        count: int,
        *,
        ttl_seconds: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Steps[int | None]:
        """Pushes `count` entries from one buffer, as `push_many` does.

        Each is its size, 4 bytes little-endian, then its bytes. The buffer must not change before
        this returns.
        """
        ttl = self._ttl_of(ttl_seconds)
        total, largest = measure_sized(records, count)
        if total < 0:
            raise InvalidOption(f"records: not {count} entries, each after its size, and no more")
        size = total + count * METADATA_BYTES
        batch = Batch(partial(encode_sized, records, count), count, size)
        return (yield from self._add_batch(batch, largest, ttl, timeout))

    @shortcut
    def pop(self, timeout: Duration | None = None, _run: Run[bytes | None] = run) -> bytes | None:
        """Takes the oldest entry that has not expired; None if there is none.

        It is gone for good on return, as durably as the sync policy says: use `take` if a crash
        must not lose it. With a timeout (seconds) it waits, and raises `Empty` if none came. If it
        is cancelled or fails, the entry goes back to the front. Entries that are damaged raise
        `Damaged`, once; the next call goes on after them.
        """
        value = self._cursor.pop()
        if value is None:
            return _run(self._pop(timeout))
        if self.changes.wanted:
            self.changes.answer()
        return value

    @verb
    def pop_many(self, count: int, timeout: Duration | None = None) -> Steps[list[bytes]]:
        """Takes up to `count` entries; an empty list if there are none.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        return (yield from self._take_off(count, timeout))

    @lends
    def take(self, timeout: Duration | None = None) -> Steps[Loan[Entry]]:
        """Lends the oldest entry: `with fifo.take() as entry`.

        At the end of the block it is removed. After an exception or a crash it is the next one
        again, unless it was lent `max_attempts` times: then it is put aside. Raises `Empty` if
        there is none, or none came within `timeout` seconds. While 128 are lent out it waits until
        one of them is back, at most `timeout` seconds if that is given; then it raises `Empty` as
        well.
        """
        return _TakenOne(_Taken(self, (yield from self._lend(1, timeout, counted=True))))

    @lends
    def take_many(self, count: int, timeout: Duration | None = None) -> Steps[Loan[list[Entry]]]:
        """Lends up to `count` of the oldest entries, 16 MiB at a time:

            with fifo.take_many(100) as entries: ...

        They are removed, or come back, together; otherwise as `take`, which waits for the first of
        them.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        return _Taken(self, (yield from self._lend(count, timeout, counted=True)))

    def _popping(self, count: int, timeout: Duration | None) -> Steps[Loan[list[Entry]]]:
        """Lends what a client pops."""
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        return _Popping(self, (yield from self._lend(count, timeout, counted=False)))

    def _had_left(self, numbers: list[int]) -> Steps[list[bool]]:
        """Says which entries had left for good when the queue was opened."""
        return [self._front.had_left(number) for number in numbers]
        yield

    @shortcut
    def put(
        self,
        value: Buffer,
        block: bool = True,
        timeout: Duration | None = None,
        _run: Run[int] = run,
    ) -> int:
        """Pushes an entry, as `queue.Queue` does; returns its id."""
        return self.push(value, timeout=timeout if block else 0, _run=_run)

    put_many = push_many

    @shortcut
    def get(
        self,
        block: bool = True,
        timeout: Duration | None = None,
        _run: Run[bytes | None] = run,
    ) -> bytes:
        """Takes the oldest entry, as `queue.Queue` does; raises `Empty` if none came."""
        # With a timeout, a pop never returns None.
        return cast(bytes, self.pop(_patience(block, timeout), _run=_run))

    def put_nowait(self, value: Buffer) -> None:
        """Pushes an entry, or raises `Full`."""
        self.put(value, block=False)

    def get_nowait(self) -> bytes:
        """Takes the oldest entry, or raises `Empty`."""
        return self.get(block=False)

    def qsize(self) -> int:
        """How many entries there are."""
        return self.size

    def empty(self) -> bool:
        """Whether there is no entry."""
        return self.size == 0

    def peek(self, *, after: int | None = None) -> Entry | None:
        """Returns the oldest entry that has not expired, or the oldest after an id; it stays.

        None if there is none. Repeated calls of `peek(after=entry.id)` go over the whole queue, as
        does `for entry in fifo`. Damage raises `Damaged` once; the next call goes on after it.
        """
        with self._writer.lock:
            self._writer.check()
            return self._front.peek(after)

    def __iter__(self) -> Iterator[Entry]:
        """Goes over all entries that have not expired, oldest first; none is removed.

        What is pushed or taken meanwhile may be among them or not. Damage raises `Damaged` once;
        the iterator goes on after it.
        """
        self._check()
        return self._front.look()

    @property
    def size(self) -> int:
        """How many entries there are, including expired ones that have not been removed yet.

        Lent entries do not count.
        """
        there = self._writer.applied - self._cursor.number
        return max(0, there) + len(self._front.returned)

    @property
    def _all_lent(self) -> bool:
        """Whether entries remain, and `take` has lent as many as it can."""
        return not self._front.may_lend and self.size > 0

    @property
    def file_bytes(self) -> int:
        """The size of its files, fixed when the queue was created."""
        return self._file_bytes

    @property
    def capacity(self) -> int | None:
        """How many entries it can hold (`max_entries`); None if only bytes are bounded."""
        return self.options.max_entries

    @property
    def capacity_bytes(self) -> int | None:
        """How many bytes of entries it can hold, including 32 for each; None: no bound."""
        return self.options.max_bytes

    def capacity_for(self, entry_bytes: int) -> int | None:
        """How many entries of a given size an empty queue can hold; None: no bound."""
        if entry_bytes < 0:
            raise InvalidOption(f"entry_bytes = {entry_bytes}: must be at least 0")
        limits = [] if self.capacity is None else [self.capacity]
        if self.capacity_bytes is not None:
            limits.append(self.capacity_bytes // (entry_bytes + METADATA_BYTES))
        return min(limits, default=None)

    @verb
    def sync(self) -> Steps[None]:
        """Makes everything pushed durable, and everything popped gone for good."""
        ticket = yield Work(self._writer.ticket)
        yield ticket
        yield Work(self._front.sync_head)
        yield Work(self._front.save_losses)

    def dead(self) -> list[Entry]:
        """Returns the entries that were put aside, oldest first; they stay where they are.

        Each is a file in `dead/`, which may be deleted. Damage raises `Damaged`.
        """
        self._check()
        entries = list(dead.read(self._directory))
        for entry in entries:
            if isinstance(entry, Damage):
                raise Damaged(entry)
        return [entry for entry in entries if isinstance(entry, Entry)]

    def maintain(self) -> None:
        """Does the work that is due. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> FifoInfo:
        """Returns facts about the queue, for people and for scripts."""
        with self._writer.lock:
            self._writer.check()
            kept_files, kept_bytes = count_kept(self._directory)
            files = len(self._writer.tape.numbers)
            return FifoInfo(
                kind="fifo",
                path=self.path,
                state="open",
                owner=os.getpid(),
                records=self.size + self._front.lent_out,
                segments=files,
                bytes=files * self.file_bytes,
                losses=self._front.losses.unaccepted,
                quarantined_files=kept_files,
                quarantined_bytes=kept_bytes,
                maintenance=self._maintenance.state,
                syncs=self._writer.commit.syncs + self._front.commit.syncs,
                begin=self._cursor.number,
                end=self._writer.applied,
                durable=self._writer.durable.number,
                taken=self._front.lent_out,
                dead=dead.count(self._directory),
                entry_bytes=self._writer.position - self._writer.head.first_position,
                file_bytes=self.file_bytes,
                expired=self._cursor.expired,
                dropped=self._cursor.dropped,
                damaged=self._cursor.damaged,
                incarnation=self._writer.mark.last.incarnation,
            )

    def full(self) -> bool:
        """Whether there is no room even for an empty entry."""
        room = self._writer.room
        return room.entries < 1 or room.size < METADATA_BYTES

    def __len__(self) -> int:
        """Returns how many entries there are, as `size` does; raises `Closed` after a close."""
        self._writer.check()
        return self.size

    def __repr__(self) -> str:
        return f"<Fifo {self.path} {'closed' if self._closed else f'of {self.size}'}>"

    def _end(self) -> None:
        self._maintenance.stop()
        self._close_intake()
        with contextlib.ExitStack() as stack:
            stack.callback(self._directory.close)
            self._release(stack)
            stack.callback(self._front.tell, at_once=True)
            self._writer.close(before_clean=self._before_clean)

    def _before_clean(self) -> int:
        self._front.settle_head()
        self._front.save_losses()
        return self._writer.head.oldest

    def _refuse(self, error: Closed) -> None:
        self._writer.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._writer.disown(error)
        self.changes = self._writer.changes

    def _build(self, opened: Opened, undo: contextlib.ExitStack) -> None:
        """Makes the parts of the queue for a directory that recovery has put in order."""
        undo.callback(opened.tail_file.close)
        undo.callback(opened.bounds.close)
        self._file_bytes = opened.head.file_bytes
        keep_reserve(self._directory)
        lock = threading.Lock()
        self._mapped = (
            self.options.sync != "always" and self.options.mapped and self._directory.maps
        )
        head = HeadFile(self._directory, opened.head, lock, self._clock, mapped=self._mapped)
        undo.callback(head.close)
        tape = TapeWriter(self._directory, self.file_bytes, file_name, opened.files)
        self._writer = FifoWriter(
            self._filesystem,
            self._directory,
            tape,
            opened.bounds,
            head,
            opened.tail_file,
            opened.tail,
            opened.end,
            file_bytes=self.file_bytes,
            version=opened.head.version,
            options=self.options,
            clock=self._clock,
            lock=lock,
        )
        undo.callback(self._writer.release_files)
        self._front = Front(
            self._directory,
            self._writer,
            opened.losses,
            opened.bounds,
            self.file_bytes,
            opened.head.version,
            self.options,
            self._clock,
        )
        undo.callback(self._front.close)
        self._bounds = opened.bounds
        self._staged, self._cursor = self._writer.staged, head.cursor
        self.changes = self._writer.changes
        self._front.put_exhausted_aside()

    def _ttl_of(self, ttl_seconds: Duration | None) -> int:
        return self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)

    def _check_size(self, size: int) -> None:
        limit = min(SIZE_MAX, (self.options.max_bytes or 2**62) - METADATA_BYTES)
        if size > limit:
            raise RecordTooLarge(
                f"an entry of {size} bytes is too large: at most {limit} (max_bytes)"
            )

    def _push(self, value: Buffer, ttl: int, timeout: Duration | None) -> Steps[int]:
        data = value if type(value) is bytes else as_bytes(value)
        self._check_size(len(data))
        return self._add(partial(self._writer.put, data, ttl), 1, timeout)

    def _pop(self, timeout: Duration | None) -> Steps[bytes | None]:
        values = yield from self._take_off(1, timeout)
        return values[0] if values else None

    def _add_batch(
        self, batch: Batch, largest: int, ttl: int, timeout: Duration | None
    ) -> Steps[int | None]:
        if not batch.count:
            self._check()
            return None
        self._check_size(largest)
        write = partial(self._writer.write, batch, ttl)
        return (yield from self._add(write, batch.count, timeout))

    def _add(self, put: Callable[[], int], count: int, timeout: Duration | None) -> Steps[int]:
        """Puts entries where there is room; otherwise makes or awaits room and puts them again."""
        writer, front = self._writer, self._front

        def apply() -> tuple[int, Ticket | None]:
            return put(), writer.awaited(writer.applied)

        def make_room(size: int) -> bool:
            return front.make_room(size, count)

        left = countdown(self._clock, timeout)
        try:
            entry_id, ticket = yield from when_there_is_room(
                writer, apply, make_room, left, front.seconds_to_expiry
            )
        finally:
            front.tell()
        if not (writer.always and self._maintenance.planned):
            self._maintenance.notice()
        if self.changes.wanted and not writer.always:
            self.changes.answer()
        if ticket is not None:
            yield ticket
        return entry_id

    def _take_off(self, count: int, timeout: Duration | None) -> Steps[list[bytes]]:
        """Takes entries for good; without a timeout it does not wait for them."""
        left = countdown(self._clock, 0 if timeout is None else timeout)
        look = partial(self._pop_once, count)
        values = yield from when_found(self.changes, look, left, ITEMS)
        if values is None and timeout is not None:
            raise self._nothing(timeout)
        return values or []

    def _pop_once(self, count: int) -> Steps[list[bytes] | None]:
        """Takes what is there, and waits until that is gone for good."""
        writer, front = self._writer, self._front
        popped: Popped | None = None
        try:
            with writer.lock:
                writer.check()
                popped = front.pop(count)
        except BaseException:
            if popped is not None:
                with writer.lock:
                    front.give_back_popped(popped)
            raise
        yield from self._until_gone(popped)
        if front.settled(popped) and self.changes.wanted:
            self.changes.answer()
        return popped.values or None

    def _until_gone(self, popped: Popped) -> Steps[None]:
        """Waits until what was taken is gone for good; what fails gives it back."""
        try:
            # What was taken must be returned: nothing here raises.
            self._maintenance.plan_after_taking()
            if not self._mapped:
                # Even if nothing was taken: what had expired must not come again.
                yield self._front.ticket()
        except BaseException:
            with self._writer.lock:
                self._front.give_back_popped(popped)
            raise

    def _lend(
        self, count: int, timeout: Duration | None, *, counted: bool
    ) -> Steps[list[tuple[Entry, Lent]]]:
        """Lends entries; without a timeout it waits only if too many are lent.

        `counted`: it is an attempt to deal with them.
        """
        writer, front = self._writer, self._front
        seconds_left = countdown(self._clock, timeout)
        found: list[tuple[Entry, Lent]] = []
        try:
            while True:
                with writer.lock:
                    writer.check()
                    found = front.lend(count)
                    all_lent = not found and self._all_lent
                if found:
                    break
                left = seconds_left()
                if left <= 0 or (timeout is None and not all_lent):
                    raise self._nothing(timeout or 0)
                yield News(self.changes, left, LOANS if all_lent else ITEMS)
            if counted and not self._mapped:
                yield front.ticket()
        except BaseException:
            self._take_back(lent for _, lent in found)
            raise
        return found

    def _take_back(self, lent: Iterable[Lent]) -> None:
        """Puts back entries that their borrower has never seen."""
        with self._writer.lock:
            for each in lent:
                self._front.give_back(each, counted=False)

    def _finish(self, lent: list[Lent]) -> Steps[None]:
        """Removes lent entries for good."""
        with self._writer.lock:
            self._writer.check()
            self._front.finish(lent)
        if not self._mapped:
            yield self._front.ticket()
        self._maintenance.plan_after_taking()

    def _give_back(self, lent: Lent, entry: Entry) -> Steps[None]:
        """Puts a lent entry back at the front, or aside."""
        if self._front.is_exhausted(lent) and self._writer.error is None:
            yield Work(partial(self._front.put_aside, lent, entry))
            if not self._mapped:
                yield self._front.ticket()
            return
        with self._writer.lock:
            self._front.give_back(lent)

    def _nothing(self, timeout: Duration) -> Empty:
        return Empty(f"{self.path}: no entry in {as_seconds(timeout)} s")

    def _check(self) -> None:
        with self._writer.lock:
            self._writer.check()

    def _release(self, stack: contextlib.ExitStack) -> None:
        """Closes all files at the end of `stack`, even if one of them fails."""
        stack.callback(self._bounds.close)
        stack.callback(self._writer.head.close)
        stack.callback(self._front.close)
        stack.callback(self._writer.release_files)


def _after_posting(writer: FifoWriter, front: Front, maintenance: FifoMaintenance) -> None:
    """Says what was dropped, and plans what is due, after posted entries were stored."""
    front.tell()
    if not (writer.always and maintenance.planned):
        maintenance.notice()
    if writer.changes.wanted and not writer.always:
        writer.changes.answer()


def _patience(block: bool, timeout: Duration | None) -> Duration:
    """Returns how long a `get` waits, by the rules of `queue.Queue`."""
    if not block:
        return 0
    return math.inf if timeout is None else timeout
