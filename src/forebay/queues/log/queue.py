"""`Log`: append, any number of named consumers, replay by offset and by time, trimming.

Combines the fflg format with segments. This file owns the life of the queue: opening, consumers,
trimming, room, closing and the background work; `writer.py` owns appending.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from forebay.clock import Clock, SystemClock
from forebay.damage import Damage
from forebay.errors import Closed, Damaged, ForebayError, InvalidOption, Locked, NotAQueue
from forebay.formats.fflg import VERSION_DEFAULT, check_name
from forebay.queues.log.adoption import adopt_all
from forebay.queues.log.consumer import Consumer, Start
from forebay.queues.log.info import LogInfo
from forebay.queues.log.options import LogOptions
from forebay.queues.log.places import Places
from forebay.queues.log.recovery import open_directory
from forebay.queues.log.scanner import OpenSegment, Scanner
from forebay.queues.log.trimming import Trimmer
from forebay.queues.log.writer import LogWriter, as_bytes
from forebay.queues.shared.background import Background
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import Duration, SyncPolicy, WhenFull, as_seconds
from forebay.queues.shared.posted import Intake
from forebay.queues.shared.reports import places
from forebay.queues.shared.verbs import Run, Steps, Work, run, shortcut, verb
from forebay.queues.shared.waiting import countdown, when_there_is_room
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import Ticket
from forebay.storage.cursors import DIRECTORY as CURSORS
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.inbox import DIRECTORY as INBOX
from forebay.storage.inbox import read_ledger
from forebay.storage.losses import Losses
from forebay.storage.quarantine import count_kept
from forebay.storage.readable import open_readable
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)
_ADOPT, _TRIM, _SEAL = "adopt", "trim", "seal"
# How often a log looks into `inbox/` if the system does not report new names.
_ADOPT_SECONDS = 1.0
# How often a caller that waits for room looks at the cursors if the system does not report changes.
_CURSORS_SECONDS = 1.0


class Maintenance(Background["Log"]):
    """The background work of one log."""

    def __init__(self, log: Log, writer: LogWriter, options: LogOptions, clock: Clock) -> None:
        super().__init__(log, options, clock)
        self._writer = writer
        self._trim_seconds = options.trim_interval_seconds
        self._trim_failed = False
        self._seal_seconds = options.seal_seconds
        # The segment that is to be sealed, by its base.
        self._sealing: int | None = None
        self._start()
        # Whether the system reports new names here, and in `inbox/`, which may be created later.
        self._told = self.watch(log._directory)
        self._inbox_told = False
        # Whether it reports moves of cursors, once a caller waits for room; None: there are none.
        self._cursors_told: bool | None = None
        # Adopt once in any case: batches may have come since the log was opened.
        self._plan(_ADOPT, 0 if self._told else _ADOPT_SECONDS)
        self._plan_trim()

    def _plan_needed(self) -> None:
        super()._plan_needed()
        self._plan_trim()
        base = None if self._seal_seconds is None else self._writer.unsealed
        if base is not None and base != self._sealing and self._seal_seconds is not None:
            self._sealing = base
            self._plan(_SEAL, self._seal_seconds)

    def _needs_drain(self) -> bool:
        return bool(self._writer.staged)

    def _drain(self) -> None:
        with self._writer.lock:
            self._writer.check()
            self._writer.drain()

    def _needs_sync(self) -> bool:
        writer = self._writer
        if self._sync_policy == "os":
            return bool(writer.files.finished)
        return writer.written > writer.commit.durable or not writer.mark.synced

    def _sync(self) -> None:
        if self._sync_policy != "always":
            self._writer.sync()
        self._writer.sync_mark()

    def _activity(self) -> object:
        return self._writer.applied

    def look_in(self, log: Log) -> float:
        """Returns in how many seconds cursors may have made room without a notification."""
        if self._told and self._cursors_told is None:
            self._cursors_told = self._watch_inside(log, CURSORS, writes=True)
            if self._cursors_told:
                # One may have moved just before the watch began.
                return 0.0
        return math.inf if self._told and self._cursors_told is not False else _CURSORS_SECONDS

    def _on_news(self, writes: bool) -> None:
        if not writes:
            self._plan(_ADOPT, 0)
        # Wake callers that wait for room: they look at the cursors, and begin to watch new ones.
        if self._writer.changes.wanted:
            self._writer.changes.answer()

    def _run_others(self, queue: Log, now: float) -> None:
        if self._comes_due(_ADOPT, now):
            if self._told and not self._inbox_told:
                watched = self._watch_inside(queue, INBOX)
                self._told, self._inbox_told = watched is not False, bool(watched)
            if not self._told:
                self._due[_ADOPT] = now + _ADOPT_SECONDS
            queue.adopt()
        if self._comes_due(_TRIM, now):
            self._trim(queue)
        if self._comes_due(_SEAL, now):
            with self._writer.lock:
                self._writer.check()
                if self._writer.unsealed == self._sealing:
                    self._writer.seal()
            self._sealing = None

    def _watch_inside(self, log: Log, name: str, *, writes: bool = False) -> bool | None:
        """Watches a directory of the log, if that is possible; None if it does not exist."""
        try:
            directory = log._directory.directory(name)
        except (OSError, NotAQueue):
            return None
        try:
            return self.watch(directory, writes=writes)
        finally:
            directory.close()

    def _plan_trim(self) -> None:
        if self._trim_seconds is not None and _TRIM not in self._due and self._writer.has_sealed:
            self._plan(_TRIM, self._trim_seconds)

    def _trim(self, log: Log) -> None:
        try:
            log.trim()
            self._trim_failed = False
        except ForebayError as error:
            if isinstance(error, Closed):
                raise
            if not self._trim_failed:
                _logger.warning("%s: nothing is trimmed: %s", log.path, error)
            self._trim_failed = True


class Log(Handle):
    """A durable log in a directory that this process owns. Any thread may call it.

    Opens the directory or creates it.

    - `shared`: True shares the queue with any number of processes that say so too; a server, which
      starts and ends by itself, then owns it (docs/sharing.md).
    - `sync`: what an append waits for. "always" (default): after the return a power cut loses
      nothing; one sync of the disk, shared by all callers that wait. "interval": synced every
      `sync_interval_seconds`; a power cut may cost what came since. "os": synced when a segment is
      full and at `close`; a power cut may cost what the system had not written yet, usually the
      last 30 s. With both, records survive `kill -9`, and a power cut always takes the newest
      records, never some in the middle.
    - `sync_interval_seconds`: how often "interval" syncs.
    - `segment_bytes`: size of a segment file; a larger record is refused.
    - `max_bytes`: the most that all segments may take (None: no bound); at least two segments.
    - `when_full`: "block" waits until trimming makes room, "reject" raises `Full`, "drop_oldest"
      drops whole segments, counted.
    - `trim_interval_seconds`: how often records that all consumers have read are removed; None:
      only by `trim()`.
    - `seal_seconds`: after so long a segment is finished even if it is not full, so that it can be
      archived; None: never. Each costs a file, and a sync when it is made.
    - `version`: version of the segments it writes, 0, 1 or 2; None: that of the existing ones,
      else 2.
    - `background`: False starts no thread; call `maintain()` from time to time instead.
    - `group_readable`: modes 0640 and 0750 instead of 0600 and 0700.
    - `staging_bytes`: size of the mapped buffer that single appends go to under "interval" and
      "os".
    - `mapped`: False uses no mapped memory; an append then costs two system calls. On all file
      systems except ext4, XFS and tmpfs this is automatic, because there a full disk could kill a
      process that uses mapped memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        sync: SyncPolicy = "always",
        sync_interval_seconds: Duration = 0.1,
        segment_bytes: int = 100_000_000,
        max_bytes: int | None = None,
        when_full: WhenFull = "block",
        trim_interval_seconds: Duration | None = 60.0,
        seal_seconds: Duration | None = None,
        version: int | None = None,
        background: bool = True,
        group_readable: bool = False,
        staging_bytes: int = 1 << 20,
        mapped: bool = True,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = LogOptions(
            sync=sync,
            sync_interval_seconds=as_seconds(sync_interval_seconds),
            segment_bytes=segment_bytes,
            max_bytes=max_bytes,
            when_full=when_full,
            trim_interval_seconds=(
                None if trim_interval_seconds is None else as_seconds(trim_interval_seconds)
            ),
            seal_seconds=None if seal_seconds is None else as_seconds(seal_seconds),
            version=version,
            background=background,
            group_readable=group_readable,
            staging_bytes=staging_bytes,
            mapped=mapped,
        )
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = clock or SystemClock()
        self._open(os.fspath(path))

    def _open(self, path: str) -> None:
        """Opens the directory or creates it, and all parts of the log."""
        self._directory = self._filesystem.open_directory(
            path, create=True, group_readable=self.options.group_readable
        )
        self.path = self._directory.path
        self._adopting = threading.Lock()
        # The consumers in use: one that is closed or garbage collected frees its name.
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()
        with contextlib.ExitStack() as opened:
            opened.callback(self._directory.close)
            self._directory.lock()
            self._losses = Losses.load(self._directory)
            tail_file, tail, self._segments = open_directory(
                self._filesystem, self._directory, self._losses
            )
            opened.callback(tail_file.close)
            keep_reserve(self._directory)
            version = self.options.version
            version = self._found_version() if version is None else version
            # The original program may go on with this index, and does not know the check.
            self._places = Places(self._directory, self._losses, checked=version != 0)
            opened.callback(self._places.close)
            self._places.limit_to(tail.written)
            # The writer has no reference to the log: the maintenance thread holds the writer, and a
            # log without other references must still be garbage collected.
            self._writer = LogWriter(
                self._filesystem,
                self._directory,
                self._segments,
                tail_file,
                tail,
                options=self.options,
                version=version,
                clock=self._clock,
            )
            opened.callback(self._writer.release_files)
            self._trimmer = Trimmer(
                self._directory, self._segments, self._places, self._writer, self.options
            )
            self._stage = self._writer.stage
            self.changes = self._writer.changes
            if self.options.max_bytes is not None:
                self._measure_segments()
            self._intake = self._make_intake()
            opened.callback(self._intake.close)
            self._intake.find()
            self._adopt_all()
            with self._writer.lock:
                self._trimmer.respect_limit()
            self._maintenance = Maintenance(self, self._writer, self.options, self._clock)
            opened.callback(self._maintenance.stop)
            self._intake.begin(partial(_after_change, self._trimmer, self._maintenance))
            # From here on the handle closes all of it.
            opened.pop_all()
        self._own()
        self._trimmer.tell()

    def _make_intake(self) -> Intake:
        return Intake(
            self._directory,
            self._filesystem.boot_id(),
            self._writer,
            extra_max=0,
            store=self._writer.append_posted,
            make_room=partial(_make_room, self._trimmer),
        )

    def _append(self, value: Buffer, timeout: Duration | None) -> Steps[int]:
        data = value if type(value) is bytes else as_bytes(value)
        return self._applied(partial(self._writer.append, data), timeout)

    @shortcut
    def append(self, value: Buffer, timeout: Duration | None = None, _run: Run[int] = run) -> int:
        """Appends a record and returns its offset.

        Under `sync="always"` it is durable on return; under the other policies it survives a crash
        of the process at once, and a power cut after the next sync. A full log waits for room, at
        most `timeout` seconds (None: without limit), then raises `Full`.
        """
        offset = self._stage(value)
        if offset is None:
            return _run(self._append(value, timeout))
        if self.changes.wanted:
            self._after_staging()
        return offset

    @shortcut
    def post(self, value: Buffer, timeout: Duration | None = None, _run: Run[int] = run) -> int:
        """Appends a record without waiting for the disk; returns a ticket for `flush`.

        In a shared log it is a copy into memory that survives the end of this process and of the
        server: they store it, and `flush` waits for that. Waits for room as `append` does.
        """
        if self._stage(value) is None:
            return _run(self._posts.begin(self._append(value, timeout)))
        if self.changes.wanted:
            self._after_staging()
        return next(self._posts.tickets)

    @verb
    def append_many(
        self, values: Iterable[Buffer], *, timeout: Duration | None = None
    ) -> Steps[int]:
        """Appends records with one commit and returns the offset of the first.

        If it raises, none of the records is acknowledged; if they take more than one segment, the
        first ones may be in the log. Waits for room as `append` does.
        """
        batch: list[Any] = values if type(values) is list else list(values)
        if not batch:
            return self._nothing()
        try:
            size = self._writer.measure(batch)
        except TypeError:
            # Bytes-like values are rare: convert them in a second try, and check no types before.
            batch = [as_bytes(value) for value in batch]
            size = self._writer.measure(batch)
        return self._applied(partial(self._writer.append_many, batch, size), timeout)

    @verb
    def append_encoded(
        self, buffer: Buffer, count: int, *, timeout: Duration | None = None
    ) -> Steps[int]:
        """Appends the `count` records of one buffer; returns the offset of the first.

        Each record is its size (4 bytes, little-endian) followed by its bytes. The promise is that
        of `append_many`, without an object for each record; only for segments of version 2. The
        buffer must not change before the call returns.
        """
        if not count and not len(buffer):
            return self._nothing()
        size = self._writer.measure_encoded(buffer, count)
        return self._applied(partial(self._writer.append_encoded, buffer, count, size), timeout)

    put = append
    put_many = append_many

    @verb
    def sync(self) -> Steps[None]:
        """Makes all that was appended durable."""
        yield self._writer.ticket()

    @property
    def begin(self) -> int:
        """The offset of the oldest record that must be there."""
        return self._trimmer.begin

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        with self._writer.lock:
            return self._writer.applied

    @property
    def durable(self) -> int:
        """The offset after the last record that survives a power cut."""
        return self._writer.commit.durable

    def __len__(self) -> int:
        """Returns how many records are held; raises `Closed` after a close."""
        self._writer.check()
        return self.end - self.begin

    def consumer(self, name: str, *, start: Start = "earliest") -> Consumer:
        """Opens a named consumer at its saved place, or at `start` if it is new (see `seek`).

        The place of a new one is saved at once, so that trimming respects it. A name that is in use
        raises `Locked`: close the consumer that has it first. If places are lost because `index` is
        damaged, `Damaged` is raised once; after that a consumer whose place is lost begins at the
        oldest record, whatever `start` is.
        """
        check_name(name)
        with self._writer.lock:
            self._writer.check()
            if name in self._consumers:
                raise Locked(f"consumer {name!r} of {self.path}", None)
            damage = self._places.next_damage()
            committed = self._places.offsets.get(name)
            unsure = self._places.unsure is not None
            if damage is not None:
                raise Damaged(damage, "consumers begin at the oldest record now")
            scanner = Scanner(self._directory, self._segments.copy(), begin=lambda: self.begin)
            consumer = self._consumers[name] = Consumer(self, name, scanner)
        try:
            if committed is None:
                committed = self._resolve("earliest" if unsure else start)
                run(self._saving(name, committed))
        except BaseException:
            consumer.close()
            raise
        consumer._begin(committed)
        return consumer

    def forget_consumer(self, name: str) -> None:
        """Removes a consumer's saved place, and closes it; trimming no longer waits for it."""
        with self._places.lock:
            self._begin_saving()
            if name not in self._places.offsets:
                raise InvalidOption(f"{self.path} has no consumer {name!r}")
            self._places.forget(name)
        self.changes.answer()
        consumer = self._consumers.get(name)
        if consumer is not None:
            consumer.close()

    def _release_name(self, consumer: Consumer) -> None:
        """Frees the name of a closed consumer for another one."""
        if self._consumers.get(consumer.name) is consumer:
            del self._consumers[consumer.name]

    def _resolve(self, start: Start) -> int:
        """Returns the offset that "earliest", "latest", an offset or a time means."""
        end, durable = self._readable()
        if start == "earliest":
            return self.begin
        if start == "latest":
            return end
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise InvalidOption(f"start = {start!r}: must have a time zone")
            scanner = Scanner(self._directory, self._segments_now())
            try:
                return scanner.offset_at(round(start.timestamp() * 1000), end, durable)
            finally:
                scanner.close()
        if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= end:
            return max(start, self.begin)
        raise InvalidOption(
            f'start = {start!r}: must be "earliest", "latest", a datetime, or an offset up to {end}'
        )

    def _readable(self) -> tuple[int, int]:
        """Returns the end of the records that may be read now, and of those that are durable."""
        with self._writer.lock:
            self._writer.check()
            if self.options.sync == "always":
                return self._writer.commit.durable, self._writer.commit.durable
            try:
                self._writer.drain()
            except OSError:
                # On a full disk the staged records stay in the buffer; the files can be read.
                self._writer.check()
            return self._writer.written, self._writer.commit.durable

    def _segments_now(self) -> SegmentList:
        """Returns a snapshot of the list of segments."""
        with self._writer.lock:
            return self._segments.copy()

    def _saving(self, name: str, offset: int, *, back: bool = False) -> Steps[int]:
        """Saves a consumer's place, durably, with the records below it; `back` lets it move back.

        Returns the place that is saved then.
        """
        if self._writer.commit.durable < offset:
            yield self._writer.ticket()
        saved: int = yield Work(lambda: self._save_position(name, offset, back=back))
        return saved

    def _is_news(self, damage: Damage) -> bool:
        """Notes damage that a consumer met; says whether to raise it.

        It is not raised if no record is missing, or if it has been marked as seen.
        """
        if damage.count == 0:
            return False
        with self._writer.lock:
            self._losses.note(damage)
            # If the record cannot be saved now, the damage will be met again.
            with contextlib.suppress(OSError):
                self._losses.save()
            return not self._losses.accepted(damage)

    def _raise_losses(self) -> None:
        """Raises the next loss that recovery has put on record; each is raised once."""
        if not self._losses.waiting:
            return
        with self._writer.lock:
            damage = self._losses.next_pending()
        if damage is not None:
            raise Damaged(damage)

    def trim(self) -> int:
        """Removes whole segments that all consumers and cursors are past; returns how many records.

        Without a consumer nothing is removed. The newest segment always stays. With
        `when_full="drop_oldest"`, the oldest segments are also dropped while the log is above
        `max_bytes`, and their records are counted as dropped.
        """
        try:
            with self._writer.lock:
                self._writer.check()
                try:
                    return self._trimmer.trim()
                finally:
                    self._trimmer.respect_limit()
        finally:
            self._trimmer.tell()

    def adopt(self) -> int:
        """Adopts what other processes left in `inbox/`; returns how many records."""
        self._check_process()
        with self._adopting:
            with self._writer.lock:
                self._writer.check()
            return self._adopt_all()

    def maintain(self) -> None:
        """Does what is due: drain, sync, adopt, trim. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> LogInfo:
        """Returns facts on the log, for people and for scripts."""
        with self._writer.lock:
            self._writer.check()
            with contextlib.suppress(OSError):
                self._writer.drain()
            kept_files, kept_bytes = count_kept(self._directory)
            self._measure_segments()
            saved = self._places.all()
            adopted: dict[str, int] = {}
            with contextlib.suppress(Damaged):
                # An unreadable ledger costs no record, and the next adoption sets it aside.
                adopted = read_ledger(self._directory).adopted
            unsure, end = self._places.unsure, self._writer.applied
            return LogInfo(
                kind="log",
                path=self.path,
                state="open",
                owner=os.getpid(),
                records=end - self.begin,
                segments=len(self._segments.bases),
                bytes=self._writer.used_bytes,
                losses=self._losses.unaccepted,
                quarantined_files=kept_files,
                quarantined_bytes=kept_bytes,
                maintenance=self._maintenance.state,
                syncs=self._writer.commit.syncs,
                begin=self.begin,
                end=end,
                durable=self.durable,
                version=self._found_version(),
                last_time_ms=self._writer.last_ms or None,
                consumers=places(
                    {each.name: each.offset for each in saved if not each.is_cursor}, end
                ),
                consumers_damage=None if unsure is None else unsure.reason,
                cursors=places({each.name: each.offset for each in saved if each.is_cursor}, end),
                incarnation=self._writer.mark.last.incarnation,
                adopted=adopted,
                dropped=self._trimmer.dropped_records,
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.begin}..{self.end}"
        return f"<Log {self.path} {state}>"

    def _applied(
        self, apply: Callable[[], tuple[Ticket | None, int]], timeout: Duration | None
    ) -> Steps[int]:
        """Applies records when there is room, and waits as the policy says; returns the first."""
        seconds_left = countdown(self._clock, timeout)
        try:
            ticket, first = yield from when_there_is_room(
                self._writer,
                apply,
                self._trimmer.make_room,
                seconds_left,
                partial(self._maintenance.look_in, self),
            )
            if ticket is not None:
                yield ticket
            return first
        finally:
            self._after_change()

    def _nothing(self) -> Steps[int]:
        self._writer.check()
        return self.end
        yield

    def _save_position(self, name: str, offset: int, *, back: bool) -> int:
        with self._places.lock:
            self._begin_saving()
            saved = self._places.advance(name, offset, back=back)
        self.changes.answer()
        return saved

    def _begin_saving(self) -> None:
        """Makes sure that places can be saved: the log is open, and no loss of places is hidden."""
        with self._writer.lock:
            self._writer.check()
            self._places.keep_damaged()

    def _after_staging(self) -> None:
        self.changes.answer()
        self._after_change()

    def _after_change(self) -> None:
        """Logs what was dropped and plans what is due; called without the lock.

        A handler of log messages may append to this same log.
        """
        _after_change(self._trimmer, self._maintenance)

    def _end(self) -> None:
        self._maintenance.stop()
        for consumer in list(self._consumers.values()):
            consumer.close()
        # Wait for an adoption that is running: it uses the directory.
        with self._adopting:
            try:
                self._close_intake()
                self._writer.close()
            finally:
                self._places.close()
                self._directory.close()

    def _refuse(self, error: Closed) -> None:
        self._writer.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._writer.disown(error)
        self.changes = self._writer.changes
        self._places.abandon()

    def _adopt_all(self) -> int:
        now_ms = self._clock.now_ms()
        try:
            return adopt_all(self._directory, self._segments, self._writer, now_ms)
        except BaseException as error:
            if not isinstance(error, OSError | ForebayError):
                # The interrupt may have come between the move of a segment and its entry in the
                # list: the next append would then use its name.
                with self._writer.lock:
                    self._writer.fail(error)
            raise

    def _found_version(self) -> int:
        """Returns the version of the newest segment that can be read, else the default."""
        for base in reversed(self._segments.bases):
            try:
                segment = OpenSegment(self._directory, self._segments.names[base], base)
            except (ForebayError, FileNotFoundError):
                continue
            segment.file.close()
            return segment.frames.header.version
        return VERSION_DEFAULT

    def _measure_segments(self) -> None:
        newest = self._segments.bases[-1] if self._writer.writing else None
        for base, name in self._segments.names.items():
            if base not in self._segments.sizes and base != newest:
                size = 0
                # A file that cannot be opened, or is gone, is damage that a reader reports.
                with contextlib.suppress(ForebayError, FileNotFoundError):
                    file = open_readable(self._directory, name)
                    size = file.size()
                    file.close()
                self._segments.sizes[base] = size


def _make_room(trimmer: Trimmer, size: int, count: int) -> bool:
    return trimmer.make_room(size)


def _after_change(trimmer: Trimmer, maintenance: Maintenance) -> None:
    if trimmer.untold:
        trimmer.tell()
    if not maintenance.planned:
        maintenance.notice()
