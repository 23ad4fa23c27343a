"""`BeatsQueue`: put, read and acknowledge events, in the files of Elastic Beats.

Combines the Beats format with segments. This file owns the life of the queue: opening, closing and
the background work. `writer.py` owns putting, `delivery.py` reading.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from forebay.clock import Clock, SystemClock
from forebay.damage import Damage
from forebay.errors import (
    Closed,
    Empty,
    ForebayError,
    InvalidEvent,
    InvalidOption,
    RecordTooLarge,
    UnsupportedVersion,
)
from forebay.formats.beats.bytes import compressed_size_max
from forebay.formats.beats.events import Event, encode_event, split_events
from forebay.formats.beats.frames import FRAME_BYTES
from forebay.formats.beats.versions import (
    HEADER_BYTES_MAX,
    LAYOUTS,
    LOSSY_IN_BEATS,
    Dialect,
    lossy_warning,
)
from forebay.queues.beats.access import BeatLocks, read_key
from forebay.queues.beats.batch import EventBatch, Taken
from forebay.queues.beats.deliveries import Deliveries
from forebay.queues.beats.delivery import Reading
from forebay.queues.beats.info import BeatsInfo
from forebay.queues.beats.options import BeatsOptions
from forebay.queues.beats.recovery import Opened, open_event_directory
from forebay.queues.beats.segments import Access, EventSegment
from forebay.queues.beats.trimming import Room
from forebay.queues.beats.writer import BeatsWriter
from forebay.queues.shared.background import MARK_SECONDS, Background
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.options import Duration, SyncPolicy, WhenFull, as_seconds
from forebay.queues.shared.verbs import Loan, Steps, Work, lends, verb
from forebay.queues.shared.waiting import ITEMS, countdown, when_found, when_there_is_room
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Buffer, DiskFilesystem, Filesystem
from forebay.storage.quarantine import count_kept


class BeatsMaintenance(Background["BeatsQueue"]):
    """The background work of one Beats queue."""

    def __init__(
        self, queue: BeatsQueue, writer: BeatsWriter, options: BeatsOptions, clock: Clock
    ) -> None:
        super().__init__(queue, options, clock)
        self._writer = writer
        self._start()

    def _needs_sync(self) -> bool:
        writer = self._writer
        unsynced = self._sync_policy == "interval" and writer.applied > writer.commit.durable
        return unsynced or not writer.mark.synced

    def _sync(self) -> None:
        if self._sync_policy == "interval":
            self._writer.sync()
        self._writer.sync_mark()

    def _activity(self) -> object:
        return self._writer.applied

    def _sync_seconds(self) -> float:
        # Under "os" only the mark is synced.
        return super()._sync_seconds() or MARK_SECONDS


_logger = logging.getLogger(__name__)
_EVENT_KEYS = ("timestamp_ns", "flags", "meta", "fields")
# The most that a stream adds to a write: its start, its end, and the head of a block.
_STREAM_BYTES = 32


class BeatsQueue(Handle):
    """A durable queue of events in a directory that this process owns. Any thread may call it.

    Opens the directory, also one that Beats left, or creates it. After `close`, Beats can take over
    the directory and go on reading it.

    - `shared`: True shares the queue with any number of processes that say so too; a server, which
      starts and ends by itself, then owns it (docs/sharing.md).
    - `version`: version of the segments it writes: "v1", "v2", "v2-aes", "v2-seed", "v3-seed" or
      "v3-seed-stream", or a number; also "v2-lz4" and "v2-aes-lz4", whose events a released Beat
      loses when it restarts. None: that of the existing segments, else "v2", or "v3-seed" with a
      key.
    - `key_file`: holds the key, 16 raw bytes or 32 hex digits; only its owner may have access to
      it.
    - `dialect`: "released" or "seed" says which version 2 it is, where a file does not tell.
    - `sync`: what a put waits for. "always" (default): after the return a power cut loses nothing;
      one sync of the disk, shared by all callers that wait. "interval": synced every
      `sync_interval_seconds`; a power cut may cost what came since. "os": synced when a segment is
      full and at `close`. With both, events survive `kill -9`, and a power cut always takes the
      newest events.
    - `sync_interval_seconds`: how often "interval" syncs.
    - `segment_bytes`: size of a segment before compression; a larger event is refused.
    - `max_bytes`: the most that all segments may take (None: no bound); at least two segments.
    - `when_full`: "block" waits until acknowledgements make room, "reject" raises `Full`,
      "drop_oldest" drops whole segments, counted.
    - `retry_seconds`: for how long a failed write is tried again, after 1 s, 2 s, 4 s and so on up
      to every 30 s, before the put raises; 0: it raises at once.
    - `background`: False starts no thread; call `maintain()` from time to time instead.
    - `group_readable`: modes 0640 and 0750 instead of 0600 and 0700.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        version: str | int | None = None,
        key_file: str | os.PathLike[str] | None = None,
        dialect: Dialect | None = None,
        sync: SyncPolicy = "always",
        sync_interval_seconds: Duration = 0.1,
        segment_bytes: int = 100_000_000,
        max_bytes: int | None = None,
        when_full: WhenFull = "block",
        retry_seconds: Duration = 30.0,
        background: bool = True,
        group_readable: bool = False,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = BeatsOptions(
            version=version,
            key_file=key_file,
            dialect=dialect,
            sync=sync,
            sync_interval_seconds=as_seconds(sync_interval_seconds),
            segment_bytes=segment_bytes,
            max_bytes=max_bytes,
            when_full=when_full,
            retry_seconds=as_seconds(retry_seconds),
            background=background,
            group_readable=group_readable,
        )
        self._access = Access(read_key(self.options.key_file), self.options.dialect)
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = clock or SystemClock()
        self._directory = self._filesystem.open_directory(
            os.fspath(path), create=True, group_readable=self.options.group_readable
        )
        self.path = self._directory.path
        self._locks: BeatLocks | None = None
        try:
            self._directory.lock()
            self._locks = BeatLocks(self._filesystem, self.path)
            opened = open_event_directory(self._filesystem, self._directory, self._access)
            self._build(opened)
        except BaseException:
            self._give_back_directory()
            raise
        self._maintenance = BeatsMaintenance(self, self._writer, self.options, self._clock)
        self._own()
        if self.options.layout_name in LOSSY_IN_BEATS:
            _logger.warning("%s", lossy_warning(self.options.layout_name))

    @verb
    def put(
        self, event: Event | Mapping[str, object], *, timeout: Duration | None = None
    ) -> Steps[None]:
        """Puts an event; a map has some of `timestamp_ns`, `flags`, `meta` and `fields`.

        Without a time it gets the present time. Under `sync="always"` it is durable on return;
        under the other policies it survives a crash of the process at once, and a power cut after
        the next sync. Raises `InvalidEvent` for an event that Beats could not read back; then
        nothing is written. A full queue waits for room, at most `timeout` seconds (None: without
        limit), then raises `Full`.
        """
        return self._put(self._encode([event]), timeout)

    @verb
    def post(
        self, event: Event | Mapping[str, object], *, timeout: Duration | None = None
    ) -> Steps[int]:
        """Puts an event as `put` does, without waiting for the disk.

        Returns a ticket for `flush`, which waits until it is stored. In a shared queue it is sent
        to the server, and no answer is awaited.
        """
        return self._posts.begin(self._put(self._encode([event]), timeout))

    @verb
    def put_many(
        self, events: Iterable[Event | Mapping[str, object]], *, timeout: Duration | None = None
    ) -> Steps[None]:
        """Puts events with one commit.

        All of them are checked before the first is written. If it raises later, none of them is
        acknowledged; the first ones may be in the queue. Waits for room as `put` does.
        """
        return self._put(self._encode(events), timeout)

    @verb
    def put_encoded(
        self, buffer: Buffer, count: int, *, timeout: Duration | None = None
    ) -> Steps[None]:
        """Puts the `count` events of one buffer, with one commit.

        Each event is its size (4 bytes, little-endian) followed by the result of `encode_event`.
        The promise is that of `put_many`. The buffer must not change before the call returns.
        """
        return self._put(split_events(buffer, count), timeout)

    @verb
    def read(self, count: int = 1000, *, timeout: Duration | None = None) -> Steps[EventBatch]:
        """Returns up to `count` of the next events; an empty batch if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none comes. Damage
        raises `Damaged`, a frame that holds no event raises `UndecodableEvent`, and events that
        were dropped to make room raise `Overtaken`; each is raised once, and the next read goes on
        after it.
        """
        batch = yield from self._next(count, timeout)
        if batch is None and timeout is not None:
            raise self._empty(timeout)
        return batch or EventBatch([], None, None)

    @lends
    def take(self, *, timeout: Duration | None = None) -> Steps[Loan[Event]]:
        """Lends the next event: `with queue.take() as event`.

        At the end of the block the event is acknowledged, durably. After an exception in the block
        it comes again, as it does after a crash. Raises `Empty` if there is none, or if none comes
        within `timeout` seconds.
        """
        batch = yield from self._next(1, timeout)
        if batch is None:
            raise self._empty(timeout or 0)
        return Taken(batch)

    @verb
    def sync(self) -> Steps[None]:
        """Makes all that was put durable."""
        ticket = self._writer.ticket()
        yield from self._writer.settling(ticket)
        # Under the weak policies the events are only written by now.
        yield ticket

    def __len__(self) -> int:
        """Returns how many events are not acknowledged."""
        with self._writer.lock:
            self._writer.check()
            return self._room.unread()

    def maintain(self) -> None:
        """Does what is due. The background thread calls it."""
        self._check_process()
        self._maintenance.run_due()

    def info(self) -> BeatsInfo:
        """Returns facts on the queue, for people and for scripts."""
        with self._writer.lock:
            self._writer.check()
            kept_files, kept_bytes = count_kept(self._directory)
            place, unread = self._deliveries.place, self._room.unread()
            return BeatsInfo(
                kind="beats",
                path=self.path,
                state="open",
                owner=os.getpid(),
                records=unread + place.frame_index,
                segments=len(self._writer.segments.bases),
                bytes=self._writer.used_bytes,
                damage=tuple(self._reading.damage),
                losses=self._losses.unaccepted,
                quarantined_files=kept_files,
                quarantined_bytes=kept_bytes,
                maintenance=self._maintenance.state,
                syncs=self._writer.commit.syncs,
                version=self.version,
                unread=unread,
                position={
                    "segment": place.segment,
                    "position": place.position,
                    "index": place.frame_index,
                },
                outstanding=self._deliveries.outstanding,
                dropped=self._room.dropped_events,
            )

    @property
    def version(self) -> str:
        """The version of the segments that it writes."""
        return self._version

    @property
    def damage(self) -> list[Damage]:
        """What it has met so far that could not be read or looked wrong; see `forebay.Damage`."""
        with self._writer.lock:
            return list(self._reading.damage)

    def __repr__(self) -> str:
        return f"<BeatsQueue {self.path} {'closed' if self._closed else self.version}>"

    def _end(self) -> None:
        """Finishes the segments as Beats does, and leaves a valid `state.dat`."""
        self._writer.stop()
        self._maintenance.stop()
        try:
            self._reading.close()
            # Hold the lock to the end: no place may be saved later, when another process may own
            # the directory.
            with self._state.lock:
                # A place that cannot be saved now was not promised: those events come again.
                with contextlib.suppress(Closed, OSError), self._writer.lock:
                    self._writer.check()
                    self._room.settle()
                self._writer.close()
        finally:
            self._give_back_directory()

    def _refuse(self, error: Closed) -> None:
        self._writer.fail(error)

    def _abandon(self, error: Closed) -> None:
        self._writer.disown(error)
        self.changes = self._writer.changes
        self._reading.abandon()

    def _build(self, opened: Opened) -> None:
        """Makes the parts of the queue for a recovered directory."""
        self._access = opened.access
        self._losses = opened.losses
        self._state = opened.state
        missing: set[int] = set()
        try:
            with contextlib.suppress(OSError):
                keep_reserve(self._directory)
            self._version = self.options.layout_name or self._found_version(opened)
            for segment_id, name in opened.segments.names.items():
                size = self._size_of(name)
                opened.segments.sizes[segment_id] = size or 0
                if size is None:
                    missing.add(segment_id)
        except BaseException:
            opened.contents.close()
            opened.mark.close()
            raise
        self._writer = BeatsWriter(
            self._filesystem,
            self._directory,
            opened.segments,
            missing,
            opened.contents,
            opened.mark,
            options=self.options,
            layout_name=self.version,
            key=self._access.key,
            clock=self._clock,
        )
        self._deliveries = Deliveries(opened.place)
        if self.version == "v0":
            self._state.oldest_header_bytes = LAYOUTS["v0"].header_bytes
        self._room = Room(
            self._directory,
            self._writer,
            self._deliveries,
            self._state,
            self._losses,
            self._access,
            self.options,
        )
        self._reading = Reading(
            self._directory,
            self._writer,
            self._deliveries,
            self._room,
            self._state,
            self._losses,
            self._access,
        )
        self._reading.damage += opened.damage
        for damage in opened.damage:
            _logger.warning("%s, byte %d: %s", damage.path, damage.position, damage.reason)
        self.changes = self._writer.changes

    def _size_of(self, name: str) -> int | None:
        """Returns how large a segment is; 0 if it cannot be opened, None if it is missing."""
        try:
            file = self._directory.open(name)
        except FileNotFoundError:
            return None
        except (OSError, ForebayError):
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _found_version(self, opened: Opened) -> str:
        """Returns the version of the newest readable segment: the Beat that wrote it reads it."""
        default = "v2" if self._access.key is None else "v3-seed"
        for segment_id in reversed(opened.segments.bases):
            name = opened.segments.names[segment_id]
            with contextlib.suppress(ForebayError, FileNotFoundError):
                segment = EventSegment(self._directory, segment_id, name, self._access, None)
                segment.close()
                return segment.header.layout.name
        if opened.is_of_beats and self._access.key is not None:
            # No released Beat reads the seed's versions: it would overwrite such segments.
            return "v2-aes"
        return default

    def _encode(self, events: Iterable[Event | Mapping[str, object]]) -> list[bytes]:
        now_ns = self._clock.now_ms() * 1_000_000
        return [encode_event(_as_event(event, now_ns)) for event in events]

    def _put(self, payloads: list[bytes], timeout: Duration | None) -> Steps[None]:
        if not LAYOUTS[self.version].writable:
            raise UnsupportedVersion(self._why_not_writable())
        writer, room = self._writer, self._room
        seconds_left = countdown(self._clock, timeout)
        for pieces, size in self._pieces(payloads):
            try:
                ticket = yield from when_there_is_room(
                    writer, partial(writer.put, pieces, size), room.make_room, seconds_left
                )
                yield from writer.acknowledging(ticket)
            finally:
                if room.messages:
                    self._reading.log()
            self._maintenance.notice()
        if not payloads:
            self._check()

    def _next(self, count: int, timeout: Duration | None) -> Steps[EventBatch | None]:
        """Returns up to `count` events, or waits for the first; None if there is none."""
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        seconds_left = countdown(self._clock, 0 if timeout is None else timeout)
        return (
            yield from when_found(self.changes, partial(self._look, count), seconds_left, ITEMS)
        )

    def _look(self, count: int) -> Steps[EventBatch | None]:
        batch: EventBatch | None = yield Work(
            partial(self._reading.deliver, count), self._reading.take_back
        )
        return batch

    def _empty(self, timeout: Duration) -> Empty:
        return Empty(f"{self.path}: no event in {as_seconds(timeout)} s")

    def _why_not_writable(self) -> str:
        return (
            f"{self.path} holds segments of version {self.version}, which this program only reads; "
            "Beats 7.10 to 7.13, which wrote them, read no other. Read and acknowledge what is "
            'there, copy it with "forebay convert", or give version= to go on in another one'
        )

    def _pieces(self, payloads: list[bytes]) -> list[tuple[list[bytes], int]]:
        """Cuts a batch into parts that can find room one after the other in a bounded queue."""
        segment_bytes = self.options.segment_bytes
        layout = LAYOUTS[self.version]
        room = segment_bytes - layout.header_bytes - FRAME_BYTES
        sizes = []
        for payload in payloads:
            size = compressed_size_max(len(payload)) + FRAME_BYTES
            if (size if layout.compression == "block" else len(payload) + FRAME_BYTES) > room:
                raise RecordTooLarge(
                    f"an event of {len(payload)} bytes does not fit into a segment of "
                    f"segment_bytes = {segment_bytes}"
                )
            sizes.append(size)
        if self.options.max_bytes is None or self.options.when_full == "reject":
            return [(payloads, self._bound(sum(sizes)))] if payloads else []
        pieces = []
        first, total = 0, 0
        for number, size in enumerate(sizes):
            if number > first and total + size > segment_bytes // 2:
                pieces.append((payloads[first:number], self._bound(total)))
                first, total = number, 0
            total += size
        if first < len(payloads):
            pieces.append((payloads[first:], self._bound(total)))
        return pieces

    def _bound(self, size: int) -> int:
        """Returns the most that events take in the files, headers of new segments included."""
        segments = 2 + 2 * size // self.options.segment_bytes
        return size + segments * (HEADER_BYTES_MAX + _STREAM_BYTES)

    def _check(self) -> None:
        with self._writer.lock:
            self._writer.check()

    def _give_back_directory(self) -> None:
        if self._locks is not None:
            self._locks.close()
        self._directory.close()


def _as_event(event: Event | Mapping[str, Any], now_ns: int) -> Event:
    if isinstance(event, Event):
        return event
    if not isinstance(event, Mapping):
        raise InvalidEvent(f"an event is a map or an Event, not {type(event).__name__}")
    unknown = [key for key in event if key not in _EVENT_KEYS]
    if unknown:
        raise InvalidEvent(f"an event has no {unknown[0]!r}; it has {', '.join(_EVENT_KEYS)}")
    return Event(
        event.get("timestamp_ns", now_ns),
        event.get("flags", 0),
        event.get("meta", {}),
        event.get("fields", {}),
    )
