"""The archiver: brings the finished segments of a queue to an address, and says what it did.

Reads the queue as any reader does, without its lock; an owner may be at work. It owns one file in
the queue, its cursor. What it promises is in docs/archive.md; the order of its steps is what keeps
the promises: the objects, then the manifest, then what was read back, then the cursor, then
trimming. Retention is the other way round: the manifest forgets, then the objects go.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from forebay.clock import Clock, SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, Locked, NotAQueue
from forebay.kernels.buffers import crc32
from forebay.queues.archive import manifest as manifests
from forebay.queues.archive.manifest import Finished, HostQueue, Manifest, Row, superseded_by
from forebay.queues.archive.store import Archiving, archiving, read_back, read_manifest
from forebay.queues.shared.handle import Closing
from forebay.queues.shared.reports import Progress
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.objects import (
    Folder,
    host_name,
    is_address,
    joined,
    open_folder,
    plain_path,
    shown,
)
from forebay.storage.readable import ReadableFile, open_readable

# Small enough to stay in the cache of the processor between its reading and its writing.
_CHUNK_BYTES = 1 << 18
# After so much, or so long, the manifest is written, so that a run that is killed goes on there.
_PUBLISH_BYTES = 1 << 30
_PUBLISH_SECONDS = 10.0
_DAY_MS = 86_400_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """What one pass of an archiver did.

    - `path`, `address`: the queue, and where its archive is.
    - `begin`, `end`: the offsets that the archive holds now, and the one after the last.
    - `waiting`: how many records on the host are not in it yet, because their segment is not
      finished; for a Beats queue None.
    - `segments`, `bytes`: how many segments went up in this pass, and their size.
    - `verified`: how many segments were read back from the target and found good.
    - `trimmed`: how many records this pass removed from the host; 0 if an owner does that.
    - `removed`: how many segments retention removed from the target.
    - `lost`: how many records were dropped on the host before they went up.
    - `damage`: what could not be read on the host, or did not verify at the target.
    """

    path: str
    address: str
    begin: int
    end: int
    waiting: int | None
    segments: int
    bytes: int
    verified: int
    trimmed: int
    removed: int
    lost: int
    damage: tuple[Damage, ...] = ()


@dataclass(slots=True)
class _Pass:
    """What a pass has done so far."""

    segments: int = 0
    bytes: int = 0
    verified: int = 0
    trimmed: int = 0
    removed: int = 0
    lost: int = 0
    damage: list[Damage] = field(default_factory=list)


def archive(
    path: str | os.PathLike[str],
    address: str | os.PathLike[str],
    *,
    host: str | None = None,
    name: str | None = None,
    trim: bool = False,
    keep_days: float | None = None,
    keep_bytes: int | None = None,
    key_file: str | os.PathLike[str] | None = None,
    group_readable: bool = False,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Brings the finished segments of a log or a Beats queue to `ADDRESS/HOST/NAME`, once.

    What is there already stays. The queue may be in use; its lock is not taken, except with `trim`
    at the end if nobody owns it.

    - `host`, `name`: of the archive; None: the name of this machine, and the last part of `path`.
    - `trim`: logs only: the host need not keep what was archived, read back and verified.
    - `keep_days`, `keep_bytes`: what the target keeps; None: everything.
    - `key_file`: the key of an encrypted Beats queue, whose copies are verified with it.
    - `group_readable`: of a directory: modes 0640 and 0750 instead of 0600 and 0700.
    - `progress`: called with the bytes that went up and those that are to; it may raise to stop.

    Raises `Locked` while another archiver works on the same queue and address.
    """
    with Archiver(
        path,
        address,
        host=host,
        name=name,
        trim=trim,
        keep_days=keep_days,
        keep_bytes=keep_bytes,
        key_file=key_file,
        group_readable=group_readable,
    ) as archiver:
        return archiver.run(progress)


class Archiver(Closing):
    """Archives one queue to one address, again and again. One thread at a time may use it.

    Its parameters are those of `archive`. It holds the cursor of the archive until it is closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        address: str | os.PathLike[str],
        *,
        host: str | None = None,
        name: str | None = None,
        trim: bool = False,
        keep_days: float | None = None,
        keep_bytes: int | None = None,
        key_file: str | os.PathLike[str] | None = None,
        group_readable: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.path = os.path.abspath(plain_path(os.fspath(path)))
        self._room = _room_of(self.path, trim=trim)
        host = _checked("host", host_name() if host is None else host)
        name = _checked("name", os.path.basename(self.path) if name is None else name)
        _check_least("keep_days", keep_days)
        _check_least("keep_bytes", keep_bytes)
        self._keep_days, self._keep_bytes = keep_days, keep_bytes
        self._trim = trim
        self._key_file = None if key_file is None else os.fspath(key_file)
        self._clock = clock or SystemClock()
        target = joined(_absolute(os.fspath(address)), host, name)
        self.address = shown(target)
        self._cursor_name = f"archive-{crc32(self.address.encode()):08x}"
        self._cursor: Cursor | None = None
        self._directory = DiskFilesystem().open_directory(self.path)
        try:
            found = self._look()
            if self._room.HAS_CURSORS:
                # Before anything is read: from here on the owner keeps what is not archived.
                self._cursor = Cursor.open(
                    self._directory,
                    self._cursor_name,
                    start=found.begin,
                    incarnation=found.incarnation,
                )
            self._folder: Folder = open_folder(target, create=True, group_readable=group_readable)
        except BaseException:
            self.close()
            raise

    def run(self, progress: Progress | None = None) -> ArchiveReport:
        """Brings up what is finished by now, and does what follows; returns what it did."""
        done = _Pass()
        host = self._look()
        before = read_manifest(self._folder)
        manifest = self._begin(host, before)
        if before is not None and host.kind == "log":
            # Only a limit of the user removes what the cursor holds.
            done.lost += max(0, host.begin - max(manifest.end, manifest.begin))
        manifest = self._bring_up(host, manifest, before, done, progress or _no_progress)
        if self._cursor is not None:
            place = self._pass_verified(self._cursor, host, manifest, done)
            if self._trim:
                self._trim_host(host, place, done)
        manifest = self._retain(manifest, done)
        waiting = host.written - max(manifest.end, host.begin) if host.kind == "log" else None
        return ArchiveReport(
            path=self.path,
            address=self.address,
            begin=manifest.segments[0].first if manifest.segments else manifest.end,
            end=manifest.end,
            waiting=None if waiting is None else max(0, waiting),
            segments=done.segments,
            bytes=done.bytes,
            verified=done.verified,
            trimmed=done.trimmed,
            removed=done.removed,
            lost=done.lost,
            damage=tuple(done.damage),
        )

    def close(self) -> None:
        """Frees the cursor."""
        if self._cursor is not None:
            self._cursor.close()
        self._directory.close()
        folder: Folder | None = getattr(self, "_folder", None)
        if folder is not None:
            folder.close()

    def __repr__(self) -> str:
        return f"<Archiver {self.path} to {self.address}>"

    def _look(self) -> HostQueue:
        return self._room.on_host(self.path, without=self._cursor_name, key_file=self._key_file)

    def _begin(self, host: HostQueue, before: Manifest | None) -> Manifest:
        """Returns the manifest to go on with; refuses that of another queue."""
        if before is None:
            return Manifest(
                host.kind, host.queue_id, host.incarnation, host.starts, begin=host.begin
            )
        if (before.kind, before.queue_id) != (host.kind, host.queue_id):
            raise NotAQueue(
                f"{self.address} is the archive of another queue, with the id {before.queue_id}; "
                f"that of {self.path} is {host.queue_id}: give it another name"
            )
        return superseded_by(before, host)

    def _bring_up(
        self,
        host: HostQueue,
        manifest: Manifest,
        before: Manifest | None,
        done: _Pass,
        progress: Progress,
    ) -> Manifest:
        """Brings up what is not there yet; returns the manifest that was written last."""
        there = {row.first: row for row in manifest.segments}
        missing = [each for each in host.segments if self._is_new(each, there, manifest)]
        total = sum(self._size_of(each) for each in missing)
        saved, since, unsaved = before, time.monotonic(), 0
        for each in missing:

            def tell(count: int) -> None:
                progress(done.bytes + count, total)

            row = self._send(each, manifest.incarnation, done, tell)
            if row is None:
                continue
            manifest = manifests.with_row(manifest, row)
            manifest = replace(manifest, time_ms=max(manifest.time_ms, host.time_ms))
            done.segments += 1
            done.bytes += row.bytes
            unsaved += row.bytes
            if unsaved >= _PUBLISH_BYTES or time.monotonic() - since >= _PUBLISH_SECONDS:
                self._publish(manifest)
                saved, since, unsaved = manifest, time.monotonic(), 0
        if manifest != saved:
            self._publish(manifest)
        return manifest

    def _is_new(self, each: Finished, there: dict[int, Row], manifest: Manifest) -> bool:
        row = there.get(each.first)
        if each.end <= manifest.begin:
            # Retention has removed it, or it is older than the archive.
            return False
        return row is None or row.end < each.end

    def _size_of(self, each: Finished) -> int:
        try:
            file = self._directory.open(each.name)
        except (OSError, NotAQueue):
            return 0
        size: int = file.size()
        file.close()
        return size

    def _send(
        self, each: Finished, incarnation: int, done: _Pass, tell: Callable[[int], None]
    ) -> Row | None:
        """Brings up one segment; returns its row, None if it cannot be read, or is gone."""
        try:
            file = open_readable(self._directory, each.name)
        except FileNotFoundError:
            done.lost += each.end - each.first
            return None
        except Damaged as error:
            done.damage.append(error.damage)
            return None
        source = _Source(file, self._room.HEAD_BYTES, tell)
        with contextlib.closing(file):
            name = f"{each.name}-{incarnation}"
            try:
                self._folder.write(name, source.chunks())
            except Damaged as error:
                done.damage.append(error.damage)
                return None
        return Row(
            each.name,
            name,
            each.first,
            each.end,
            source.size,
            f"{source.crc:08x}",
            source.head.hex(),
            self._clock.now_ms(),
        )

    def _publish(self, manifest: Manifest) -> None:
        self._folder.write(manifests.NAME, iter([manifest.encode()]))

    def _pass_verified(
        self, cursor: Cursor, host: HostQueue, manifest: Manifest, done: _Pass
    ) -> int:
        """Moves the cursor past what was read back and is good, as far as it may go.

        Returns where it is then.
        """
        cursor.limit_to(host.lost_from(cursor.incarnation), host.incarnation)
        # Never past another reader, unless that was asked for: the archive alone must not make the
        # host lose anything.
        most = manifest.end if self._trim else min(host.readers.values(), default=0)
        place = max(cursor.offset, manifest.begin)
        for row in manifest.segments:
            if row.end <= place:
                continue
            if row.end > most or row.first > self._next(place, host):
                break
            found = read_back(self._folder, manifest.kind, row, self._key_file)
            if found is not None:
                done.damage.append(found)
                break
            done.verified += 1
            place = row.end
            cursor.advance(place, host.incarnation)
        return cursor.offset

    def _next(self, place: int, host: HostQueue) -> int:
        """Returns where the first record at or after a place is on the host."""
        for each in host.segments:
            if each.end > place:
                return max(place, each.first)
        return place

    def _trim_host(self, host: HostQueue, place: int, done: _Pass) -> None:
        """Removes what all readers have passed, if nobody owns the log; an owner does that."""
        lowest = min([place, *host.readers.values()])
        # The newest segment stays.
        older = host.segments if host.written > host.end else host.segments[:-1]
        if not any(each.end <= lowest for each in older):
            return
        # Imported here: most programs that archive own no log.
        from forebay.queues.log.queue import Log

        try:
            log = Log(self.path, background=False, trim_interval_seconds=None)
        except Locked:
            return
        with log:
            done.trimmed += log.trim()

    def _retain(self, manifest: Manifest, done: _Pass) -> Manifest:
        """Removes from the target what it need not keep."""
        rows = list(manifest.segments)
        size = manifest.size
        gone: list[Row] = []
        while len(rows) > 1 and self._is_too_much(rows[0], size):
            gone.append(rows.pop(0))
            size -= gone[-1].bytes
        if gone:
            manifest = replace(
                manifest,
                begin=rows[0].first,
                segments=tuple(rows),
                forgotten=(*manifest.forgotten, *(row.object for row in gone)),
            )
            # Before any object goes: a reader must never be shown one that is not there.
            self._publish(manifest)
        if manifest.forgotten:
            for name in manifest.forgotten:
                self._folder.remove(name)
            manifest = replace(manifest, forgotten=())
            self._publish(manifest)
        done.removed += len(gone)
        return manifest

    def _is_too_much(self, row: Row, size: int) -> bool:
        age_ms = self._clock.now_ms() - row.archived_ms
        too_old = self._keep_days is not None and age_ms > self._keep_days * _DAY_MS
        return too_old or (self._keep_bytes is not None and size > self._keep_bytes)


class _Source:
    """A file on the host, on its way: its bytes in chunks, and what a row says of them."""

    def __init__(self, file: ReadableFile, head_bytes: int, tell: Callable[[int], None]) -> None:
        self._file = file
        self._head_bytes = head_bytes
        self._tell = tell
        self.size = self.crc = 0
        self.head = b""

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes; raises `Damaged` if some cannot be read."""
        total = self._file.size()
        while chunk := self._file.pread(min(_CHUNK_BYTES, total - self.size), self.size):
            for hole in self._file.holes[:1]:
                length = hole.end - hole.start
                raise Damaged(Damage(self._file.path, hole.start, length, hole.reason))
            if not self.size:
                self.head = chunk[: self._head_bytes]
            self.crc = crc32(chunk, self.crc)
            self.size += len(chunk)
            self._tell(self.size)
            yield chunk


def _room_of(path: str, *, trim: bool) -> Archiving:
    # Imported here: the kinds import the store of archives.
    from forebay.queues.kinds import sure_kind_of

    kind = sure_kind_of(path)
    room = archiving(kind.name)
    if room is None:
        raise InvalidOption(f"{path} is {kind.title}: only logs and Beats queues are archived")
    if trim and not kind.has_consumers:
        raise InvalidOption(
            f"trim: {path} is {kind.title}, whose segments go when their events are acknowledged"
        )
    return room


def _absolute(address: str) -> str:
    return address if is_address(address) else os.path.abspath(plain_path(address))


def _checked(what: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InvalidOption(
            f"{what} = {name!r}: must be 1 to 200 of A-Z a-z 0-9 . _ - and not start with . or -"
        )
    return name


def _check_least(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise InvalidOption(f"{name} = {value!r}: must be above 0")


def _no_progress(done: int, total: int | None) -> None:
    """Does nothing: the caller gave no `progress`."""
