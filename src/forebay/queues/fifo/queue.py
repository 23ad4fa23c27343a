"""`Fifo`: push, pop, peek, size and capacity; entries that expire; fixed-size files.

Joins the entry format to a tape. This file owns the life of the queue: opening, closing, and what
is done in the background. `writer.py` owns what is pushed, `front.py` what is taken. The names of
`queue.Queue` are there as well, so that a fifo stands where one of these stood.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from forebay.clock import BootClock, SteadyClock, SystemClock
from forebay.errors import Closed, Empty, InvalidOption, RecordTooLarge
from forebay.formats.entry import SIZE_MAX, Entry, as_bytes, check_ttl, file_name
from forebay.kernels.buffers import measure
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo.front import Reading
from forebay.queues.fifo.head import HeadFile, Lent
from forebay.queues.fifo.recovery import Opened, open_fifo_directory
from forebay.queues.fifo.tape import TapeWriter
from forebay.queues.fifo.writer import FifoWriter
from forebay.queues.shared.background import Background
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import FifoOptions
from forebay.storage import inbox
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.quarantine import count_kept


class FifoMaintenance(Background["Fifo"]):
    """The background work of one fifo."""

    def __init__(
        self,
        fifo: Fifo,
        writer: FifoWriter,
        reading: Reading,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        super().__init__(fifo, options, clock)
        self._writer = writer
        self._reading = reading
        self._head_synced = reading.popper.sequence
        self._start()

    def _needs_drain(self) -> bool:
        return bool(self._writer.waiting) and not self._writer.always

    def _drain(self) -> None:
        with self._writer.lock:
            self._writer.check()
            self._writer.drain()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._sync_policy == "os":
            return len(writer.tape.unsynced) > 1
        popped = (
            self._sync_policy == "interval" and self._reading.popper.sequence != self._head_synced
        )
        return popped or writer.number > writer.durable.number or not writer.publisher.synced

    def _sync(self) -> None:
        if not self._writer.always:
            # The entries before the head: it may not say that something left that was never there.
            self._writer.sync()
            if self._sync_policy == "interval":
                sequence = self._reading.popper.sequence
                self._reading.sync_head()
                self._head_synced = sequence
        if not self._writer.publisher.synced:
            self._writer.publisher.sync()

    def _look(self, queue: Fifo) -> None:
        self._reading.tell()
        self._reading.save_losses()
        keep_reserve(queue._directory)

    def _activity(self) -> object:
        return self._writer.number, self._reading.popper.sequence

    def _rest(self) -> None:
        # The next pop opens it again, and is noticed.
        with self._writer.lock:
            self._reading.popper.close()


class QueueNames(ABC):
    """What a `queue.Queue` offers, in terms of a fifo's own verbs."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def push(
        self, value: Buffer, *, ttl_seconds: int | None = None, timeout: float | None = None
    ) -> int:
        """Pushes an entry."""

    @abstractmethod
    def pop(self, timeout: float | None = None) -> bytes | None:
        """Takes the oldest entry."""

    def put(self, value: Buffer, block: bool = True, timeout: float | None = None) -> None:
        """Pushes an entry, as a `queue.Queue` takes one."""
        self.push(value, timeout=timeout if block else 0)

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Takes the oldest entry, as a `queue.Queue` gives one; raises `Empty` if none came."""
        seconds = float("inf") if timeout is None else timeout
        value = self.pop(timeout=seconds if block else 0)
        assert value is not None
        return value

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


_WAIT_SECONDS = 0.05
_Result = TypeVar("_Result")


class Fifo(Handle, QueueNames):
    """A durable queue of bytes, first in first out, that this process owns. Any thread may call it.

    Opens the directory or creates it.

    `sync`: what a push and a pop wait for. "always" (default): on return a power cut neither loses
    what was pushed nor brings back what was popped; one sync of the disk each, shared by all who
    wait. "interval": synced every `sync_interval_ms`; a power cut may cost the newest entries that
    were pushed since, and bring back what was popped since. "os": synced when a file is full and
    at `close`. Both survive `kill -9`.

    `file_bytes`: size of a file of the tape, taken from the disk in steps; an entry may span files.
    None: what is there, else 32 MiB, or half of `max_bytes` if that is less. `max_bytes`: the most
    that the entries may take, 32 bytes each included (None: no bound); at least two files. The disk
    holds up to two files more. `max_entries`: the most entries there may be, those that are lent
    out included (None: no bound). `when_full`, of either: "block" waits until pops make room,
    "reject" raises `Full`, "drop_oldest" drops the entries of whole files for bytes, and as many as
    it takes for entries, counted.

    `ttl_seconds`: how long an entry lives if its push does not say; 0: for ever. `background`:
    False starts no thread; call `maintain()` from time to time instead. `group_readable`: modes
    0640 and 0750 instead of 0600 and 0700. `staging_bytes`: size of the mapped buffer that single
    pushes go to under "interval" and "os". `mapped`: False uses no mapped memory, as is done on its
    own on all file systems but ext4, XFS and tmpfs, where a full disk could kill the process; a
    push then costs two system calls and a pop one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: str = "always",
        sync_interval_ms: int = 100,
        file_bytes: int | None = None,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        when_full: str = "block",
        ttl_seconds: int = 0,
        background: bool = True,
        group_readable: bool = False,
        staging_bytes: int = 1 << 20,
        mapped: bool = True,
        filesystem: Filesystem | None = None,
        clock: BootClock | None = None,
    ) -> None:
        self.options = FifoOptions(
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            file_bytes=file_bytes,
            max_bytes=max_bytes,
            max_entries=max_entries,
            when_full=when_full,
            ttl_seconds=ttl_seconds,
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
            shared = (self._filesystem, self._directory, self.options, self._clock)
            self._build(open_fifo_directory(*shared), undo)
            inbox.warn_of_waiting(self._directory)
            undo.pop_all()
        self._maintenance = FifoMaintenance(
            self, self._writer, self._reading, self.options, self._clock
        )
        self._own()

    def push(
        self, value: Buffer, *, ttl_seconds: int | None = None, timeout: float | None = None
    ) -> int:
        """Pushes an entry and returns its id, which is above all before it.

        Under `sync="always"` it is durable on return; under the other policies it survives the
        process, and a power cut after the next sync. A full queue waits for room, at most `timeout`
        seconds if that is given, or does what `when_full` says; `Full`: nothing was written.
        """
        ttl = self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)
        entry_id = self._writer.put(value, ttl)
        if entry_id < 0:
            entry_id = self._push_slowly(value, ttl, timeout)
        elif self._unmapped and not self._maintenance.planned:
            self._maintenance.notice()
        if self.changes.wanted:
            self.changes.answer()
        return entry_id

    def push_many(
        self,
        values: Iterable[Buffer],
        *,
        ttl_seconds: int | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Pushes entries with one commit and returns the id of the last; None if there are none.

        If it raises, nothing of it is acknowledged.
        """
        ttl = self._ttl_seconds if ttl_seconds is None else check_ttl(ttl_seconds)
        batch = [value if type(value) is bytes else as_bytes(value) for value in values]
        if not batch:
            self._check()
            return None
        total, largest, _ = measure(batch)
        self._check_size(largest)
        try:
            entry_id = self._writer.push_many(batch, total, ttl, timeout)
        finally:
            self._reading.tell()
        self._maintenance.notice()
        return entry_id

    def pop(self, timeout: float | None = None) -> bytes | None:
        """Takes the oldest entry that has not expired; None if there is none.

        It is gone for good on return, as durably as the sync policy says: who must not lose it to a
        crash uses `take`. With a timeout (seconds) it waits, and raises `Empty` if none came.
        Entries that are damaged raise `Damaged`, once; the next call goes on after them.
        """
        value = self._reading.popper.pop()
        if value is None:
            value = self._wait(self._pop_slowly, timeout)
            # What was taken must be returned: nothing raises here.
            self._maintenance.plan_chores()
        if self._unmapped or self.changes.wanted:
            self._taken_off(announced=value is None)
        return value

    def pop_many(self, count: int, timeout: float | None = None) -> list[bytes]:
        """Takes up to `count` entries; an empty list if there are none.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        values = self._reading.popper.pop_many(count)
        if len(values) < count:
            values = self._pop_more(values, count, timeout)
            # What was taken must be returned: nothing raises here.
            self._maintenance.plan_chores()
        if self._unmapped or self.changes.wanted:
            self._taken_off(announced=not values)
        return values

    @contextlib.contextmanager
    def take(self, timeout: float | None = None) -> Iterator[Entry]:
        """Lends the oldest entry out: it is removed on success, and back at the front otherwise.

        After an exception or a crash it is the next one again. Raises `Empty` if there is none, or
        none came within `timeout` seconds. While 128 are lent out it waits until one of them is
        back, at most `timeout` seconds if that is given; then it raises `Empty` as well.
        """
        found = self._wait_to_lend(timeout)
        assert found is not None
        entry, lent = found
        try:
            self._reading.settle()
            yield entry
        except BaseException:
            with self._writer.lock:
                self._reading.give_back(lent)
            raise
        with self._writer.lock:
            self._writer.check()
            self._reading.finish(lent)
        self._reading.settle()
        self._maintenance.plan_chores()

    def peek(self, *, after: int | None = None) -> Entry | None:
        """Returns the oldest entry that has not expired, or the oldest after an id; it stays.

        None if there is none. `peek(after=entry.id)` again and again goes over the whole queue, as
        does `for entry in fifo`. Damage raises `Damaged` once; the next call goes on after it.
        """
        with self._writer.lock:
            self._writer.check()
            return self._reading.peek(after)

    def __iter__(self) -> Iterator[Entry]:
        """Goes over all entries that have not expired, oldest first; none is removed.

        What is pushed or taken meanwhile may be among them or not. Damage raises `Damaged` once;
        the iterator goes on after it.
        """
        self._check()
        return self._reading.look()

    @property
    def size(self) -> int:
        """How many entries there are; those that have expired and nobody has passed yet included.

        Entries that are lent out by `take` do not count.
        """
        there = self._writer.number - self._reading.popper.number
        return max(0, there) + len(self._reading.returned)

    @property
    def all_lent(self) -> bool:
        """Whether there are entries, and as many are lent out by `take` as can be."""
        return not self._reading.may_lend and self.size > 0

    @property
    def capacity(self) -> int | None:
        """How many entries it can hold (`max_entries`); None: no bound but that of bytes."""
        return self.options.max_entries

    @property
    def capacity_bytes(self) -> int | None:
        """How many bytes of entries it can hold, 32 for each included; None: no bound."""
        return self.options.max_bytes

    def capacity_for(self, entry_bytes: int) -> int | None:
        """How many entries of a size an empty queue can hold; None: no bound."""
        if entry_bytes < 0:
            raise InvalidOption(f"entry_bytes = {entry_bytes}: must be at least 0")
        limits = [] if self.capacity is None else [self.capacity]
        if self.capacity_bytes is not None:
            limits.append(self.capacity_bytes // (entry_bytes + METADATA_BYTES))
        return min(limits, default=None)

    def sync(self) -> None:
        """Makes all that was pushed durable, and all that was popped gone for good."""
        self._writer.sync()
        self._reading.sync_head()
        self._reading.save_losses()

    def maintain(self) -> None:
        """Does what is due. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> dict[str, Any]:
        """Returns facts on the queue, for people and for scripts."""
        with self._writer.lock:
            self._writer.check()
            kept_files, kept_bytes = count_kept(self._directory)
            popper = self._reading.popper
            return {
                "kind": "fifo",
                "path": self.path,
                "maintenance": self._maintenance.state,
                "size": self.size,
                "begin": popper.number,
                "end": self._writer.number,
                "durable": self._writer.durable.number,
                "taken": self._reading.lent_out,
                "bytes": self._writer.position - self._reading.first_position,
                "capacity": self.capacity,
                "capacity_bytes": self.capacity_bytes,
                "files": len(self._writer.tape.numbers),
                "file_bytes": self.file_bytes,
                "expired": popper.expired,
                "dropped": popper.dropped,
                "damaged": popper.damaged,
                "losses": self._reading.losses.unaccepted,
                "syncs": self._writer.commit.syncs + self._reading.commit.syncs,
                "quarantined_files": kept_files,
                "quarantined_bytes": kept_bytes,
                "incarnation": self._writer.publisher.tail.incarnation,
            }

    def full(self) -> bool:
        """Whether not even an empty entry has room."""
        if self.capacity is not None and self._reading.count >= self.capacity:
            return True
        limit = self.options.max_bytes
        used = self._writer.position - self._reading.first_position
        return limit is not None and used + METADATA_BYTES > limit

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<Fifo {self.path} {'closed' if self._closed else f'of {self.size}'}>"

    def _end(self) -> None:
        self._maintenance.stop()
        with contextlib.ExitStack() as stack:
            stack.callback(self._directory.close)
            self._release(stack)
            stack.callback(self._reading.tell, at_once=True)
            self._writer.close(before_clean=self._before_clean)

    def _before_clean(self) -> int:
        self._reading.settle_head()
        self._reading.save_losses()
        return self._reading.oldest

    def _refuse(self, error: Closed) -> None:
        self._writer.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._writer.disown(error)
        self.changes = self._writer.changes
        self._reading.popper.held = True

    def _build(self, opened: Opened, undo: contextlib.ExitStack) -> None:
        """Makes the parts of the queue for a directory that is in order."""
        undo.callback(opened.tail_file.close)
        undo.callback(opened.bounds.close)
        self.file_bytes = opened.head.file_bytes
        keep_reserve(self._directory)
        tape = TapeWriter(self._directory, self.file_bytes, file_name, opened.files)
        self._writer = FifoWriter(
            self._filesystem,
            self._directory,
            tape,
            opened.bounds,
            opened.tail_file,
            opened.tail,
            opened.end,
            file_bytes=self.file_bytes,
            version=opened.head.version,
            options=self.options,
            clock=self._clock,
        )
        undo.callback(self._writer.release_files)
        lock, mapped = self._writer.lock, self._writer.mapped
        self._unmapped = not mapped
        head = HeadFile(self._directory, opened.head, lock, self._clock, mapped=mapped)
        self._reading = Reading(
            self._directory,
            self._writer,
            head,
            opened.losses,
            opened.bounds,
            self.file_bytes,
            opened.head.version,
            self.options,
            self._clock,
        )
        undo.callback(self._reading.close)
        self._bounds = opened.bounds
        self.changes = self._writer.changes

    def _push_slowly(self, value: Buffer, ttl: int, timeout: float | None) -> int:
        data = as_bytes(value)
        self._check_size(len(data))
        try:
            entry_id = self._writer.push(data, ttl, timeout)
        finally:
            self._reading.tell()
        self._maintenance.notice()
        return entry_id

    def _check_size(self, size: int) -> None:
        limit = min(SIZE_MAX, (self.options.max_bytes or 2**62) - METADATA_BYTES)
        if size > limit:
            raise RecordTooLarge(
                f"an entry of {size} bytes is too large: at most {limit} (max_bytes)"
            )

    def _pop_slowly(self) -> bytes | None:
        with self._writer.lock:
            self._writer.check()
            return self._reading.pop()

    def _pop_more(self, values: list[bytes], count: int, timeout: float | None) -> list[bytes]:
        """Goes on where the window had no more."""

        def more() -> list[bytes] | None:
            with self._writer.lock:
                self._writer.check()
                return self._reading.pop_many(count - len(values), begun=bool(values)) or None

        if values:
            return values + (more() or [])
        return self._wait(more, timeout) or []

    def _wait_to_lend(self, timeout: float | None) -> tuple[Entry, Lent] | None:
        """Lends an entry out; waits while too many are, without a timeout as long as it takes."""
        while True:
            try:
                return self._wait(self._lend, 0 if timeout is None else timeout)
            except Empty:
                if timeout is not None:
                    raise
                with self._writer.lock:
                    if not self.all_lent:
                        raise
                    self._writer.changes.wait(_WAIT_SECONDS)

    def _lend(self) -> tuple[Entry, Lent] | None:
        with self._writer.lock:
            self._writer.check()
            return self._reading.lend()

    def _wait(
        self, try_once: Callable[[], _Result | None], timeout: float | None
    ) -> _Result | None:
        """Tries until there is something; with a timeout it waits, and raises `Empty`."""
        if timeout is None:
            return try_once()
        give_up_at = self._clock.monotonic() + timeout
        result = self.changes.wait_until(try_once, lambda: give_up_at - self._clock.monotonic())
        if result is None:
            raise Empty(f"{self.path}: no entry in {timeout} s")
        return result

    def _taken_off(self, *, announced: bool) -> None:
        """Does what a pop asks for once the entry is off: durable, and told to who waits.

        Expired entries that were passed over were announced already.
        """
        if self._unmapped:
            self._reading.settle()
        if not announced:
            self.changes.answer()

    def _check(self) -> None:
        with self._writer.lock:
            self._writer.check()

    def _release(self, stack: contextlib.ExitStack) -> None:
        """Closes all files at the end of `stack`, even if one of them fails."""
        stack.callback(self._bounds.close)
        stack.callback(self._reading.close)
        stack.callback(self._writer.release_files)
