"""Opens the directory of a deadline queue and puts it in order, whatever state a crash left.

Promises that on return everything that is served is durable, and that recovery takes no space that
grows with the logs. What lies above the durable mark is rewritten in place and synced: after a
failed sync the cache may show bytes that the disk lacks. Small logs at the end are instead copied
into a new one, which takes all later changes: recovery never appends to a log that it found. The
manifest names the logs that count, with their ends, before the new one gets its own name.

Torn and damaged bytes of logs go to `quarantine/`. A loss is on record in `losses` before the
evidence of it goes. Runs that the manifest does not name were just being written, or are merged
already, and are removed. Recovery may crash at any point and run again.

A directory that the original program left is taken over (`take_over`): its live items become one
run of the queue, with their ids, deadlines and counts. The manifest that names the run is the
moment at which the directory is ours; the original's files are kept in `quarantine/` after it. A
list of them, the file `takeover`, is written before the manifest and removed last: without a
manifest the next open begins again, with one it only moves the files on the list. A directory in
which no file holds a whole entry is refused: its names may be those of another program.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.deadline.items import (
    BURIED_BIT,
    NEXT_ID_MAX,
    FileKind,
    Item,
    Key,
    file_name,
)
from forebay.formats.deadline.manifest import NAME, LogRow, Manifest
from forebay.formats.deadline.manifest import NAME as MANIFEST
from forebay.formats.deadline.mark import NAME as MARK
from forebay.formats.deadline.mark import End, Mark
from forebay.formats.deadline.wal import COPIED, Origin
from forebay.kernels.deadline import BATCH_BYTES, FRESH
from forebay.queues.deadline.compaction import SetWriter
from forebay.queues.deadline.journal import IDS_AT_ONCE, WalFile, create_wal
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.mark import MarkFile
from forebay.queues.deadline.names import (
    TAKEOVER,
    file_names,
    list_files,
    original_names,
    refuse_foreign,
    wal_name,
)
from forebay.queues.deadline.original import merged_items
from forebay.queues.deadline.picture import Picture, read_manifest, take_picture
from forebay.queues.deadline.replay import FoundLog
from forebay.queues.deadline.runs import RunSet
from forebay.queues.deadline.schedule import ITEM, Memory, put_records, record_size, replay
from forebay.queues.shared.names import DEADLINE
from forebay.storage import atomic, quarantine
from forebay.storage.atomic import decode_document, encode_document
from forebay.storage.filesystem import Directory, Filesystem, write_all
from forebay.storage.losses import Losses
from forebay.storage.staging import blank_staged

_NUMBER = 1
_LAST_MS = BURIED_BIT - 1
# Items of the original program with higher ids get new ones: unused ids must remain.
_ID_KEPT_MAX = NEXT_ID_MAX - 2**40


def take_over(filesystem: Filesystem, directory: Directory) -> None:
    """Takes over a directory of the original program, if it is one, or continues to do so."""
    names = directory.names()
    if MANIFEST in names:
        if TAKEOVER in names:
            _finish(directory)
        return
    originals = original_names(names)
    if not originals or MARK in names:
        return
    found: list[Damage] = []
    ids = [item.key.id for item in merged_items(directory, originals, found)]
    if found and not ids:
        raise NotAQueue(
            f"{directory.path} is not a deadline queue: {originals[0]} has the name of a file of "
            "the original program, and holds none of its entries"
        )
    for name in file_names(names):
        # A run of an attempt that a crash interrupted.
        directory.unlink(name)
    _note_losses(directory, found)
    kept = {id for id in ids if id <= _ID_KEPT_MAX}
    queue_id, next_id = filesystem.random_bytes(16), max(kept, default=0) + 1
    items = _fitted(merged_items(directory, originals, []), next_id)
    row = SetWriter(filesystem, directory, _NUMBER, "none", queue_id).write_items(items)
    atomic.replace(directory, TAKEOVER, encode_document(originals))
    manifest = Manifest(
        queue_id,
        next_id + len(ids) - len(kept),
        sets=(row,) if row.kinds else (),
    )
    atomic.replace(directory, MANIFEST, manifest.encode())
    _finish(directory)


def _fitted(items: Iterable[Item], next_id: int) -> Iterator[Item]:
    """Yields items by key, with deadlines and ids that the queue can hold; each id occurs once.

    A crash in the middle of a requeue of the original leaves two copies of an item, under two
    deadlines. Which is the right one is unknown, so both are kept.
    """
    seen: set[int] = set()
    for deadline_ms, group in groupby(items, lambda item: min(item.key.deadline_ms, _LAST_MS)):
        fitted = []
        for item in group:
            id = item.key.id
            if id in seen or id > _ID_KEPT_MAX:
                id, next_id = next_id, next_id + 1
            seen.add(id)
            fitted.append(replace(item, key=Key(deadline_ms, id)))
        yield from sorted(fitted, key=lambda item: item.key.id)


def _note_losses(directory: Directory, found: Iterable[Damage]) -> None:
    """Puts on record what cannot be read; an unfinished end was never acknowledged."""
    losses = Losses.load(directory)
    for damage in found:
        if not damage.torn:
            losses.note(damage, gone=True)
    losses.save()


def _finish(directory: Directory) -> None:
    """Moves the original's files aside; may run again until it has finished."""
    try:
        data = atomic.read_small(directory, TAKEOVER) or b""
        taken = decode_document(data, f"{directory.path}/{TAKEOVER}")
    except Damaged:
        # The files stay where they are, as foreign ones: their contents are in the queue.
        taken = []
    for name in taken:
        with contextlib.suppress(FileNotFoundError):
            quarantine.keep_file(directory, name)
    # If it comes back after a power cut, nothing is left to do.
    directory.unlink(TAKEOVER)


_logger = logging.getLogger(__name__)
# The size of a batch of copies, unless it is one record: how much a bad bit costs.
_BATCH_BYTES = 512
# Logs of at most this many bytes together are copied; larger ones stay where they are.
_COPY_BYTES_MAX = 64 << 10
# With more logs than this, all of them are copied, if there is room.
_LOGS_MAX = 32
_REWRITE_BYTES = 1 << 20


@dataclass(slots=True)
class Opened:
    """A directory in order.

    `kept` are the logs whose content is in `segment` beside that of `wal`; `tell` is damage that
    was not reported to a caller yet.
    """

    manifest: ManifestFile
    boot_id: bytes
    wal: WalFile
    segment: Memory
    sets: list[RunSet]
    next_id: int
    next_number: int
    floor_ms: int
    damage: list[Damage]
    losses: Losses
    kept: list[LogRow] = field(default_factory=list)
    tell: list[Damage] = field(default_factory=list)
    # The manifest was lost: the order of the sets is a guess, and some may be duplicates.
    guessed: bool = False

    def write_mark(self, directory: Directory, live: int) -> MarkFile:
        """Writes a mark by which everything that exists is durable, as it is."""
        manifest, wal = self.manifest.manifest, self.wal
        end = End(wal.number, wal.position, wal.batch_count, self.next_id, live)
        salt = wal.batches.header.salt
        mark = Mark(manifest.queue_id, self.boot_id, manifest.generation, salt, end, end)
        return MarkFile.create(directory, mark)


def open_deadline_directory(filesystem: Filesystem, directory: Directory) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    take_over(filesystem, directory)
    refuse_foreign(directory, directory.names())
    recovery = Recovery(filesystem, directory)
    try:
        return recovery.run()
    except BaseException:
        recovery.close()
        raise


class Recovery:
    """One look at a directory, and the steps that put it in order."""

    def __init__(self, filesystem: Filesystem, directory: Directory) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._boot_id = filesystem.boot_id()
        data = read_manifest(directory)
        self._picture = take_picture(directory, self._boot_id, data)
        self._manifest = self._find_manifest(self._picture)
        numbers = [number for number, _ in list_files(self._picture.names)]
        logs = [log.number for log in self._picture.logs]
        self._number = max([0, self._manifest.oldest_wal, *numbers, *logs]) + 1
        self._wal: WalFile | None = None
        self._losses = Losses.load(directory)
        self._tell: list[Damage] = []

    def run(self) -> Opened:
        """Puts the directory in order."""
        picture = self._picture
        self._keep_odd_manifest()
        self._clear_odd(atomic.RESERVE)
        self._name_new_log()
        self._remove_leftovers()
        self._keep_torn()
        kept, copied = self._choose()
        for log in kept:
            self._make_durable(log)
        self._note_losses(copied)
        next_id = self._next_id()
        try:
            self._wal = self._write_log(copied, kept, next_id)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # There is no room for a copy: everything stays where it is.
            absent = [log for log in copied if log.trouble]
            for log in copied:
                if not log.trouble:
                    self._make_durable(log)
            kept = [*kept, *(log for log in copied if not log.trouble)]
            copied = absent
            self._wal = atomic.with_reserve(
                self._directory, lambda: self._write_log(absent, kept, next_id)
            )
        wal = self._wal
        rows = [self._row(log) for log in kept]
        manifest = self._name_files(rows, wal, next_id)
        self._put_aside(copied)
        # Its contents are in the logs by now.
        blank_staged(self._directory)
        picture.segment.number = self._number
        picture.segment.show_all()
        return Opened(
            manifest,
            self._boot_id,
            wal,
            picture.segment,
            picture.sets,
            next_id,
            self._number + 1,
            picture.floor_ms,
            picture.damage,
            self._losses,
            rows,
            self._tell,
            picture.guessed and bool(picture.sets),
        )

    def close(self) -> None:
        """Closes what was opened."""
        self._picture.close()
        if self._wal is not None:
            self._wal.file.close()

    def _find_manifest(self, picture: Picture) -> Manifest:
        manifest = picture.manifest
        if picture.guessed and not any(manifest.queue_id):
            manifest = replace(manifest, queue_id=self._filesystem.random_bytes(16))
        return manifest

    def _keep_odd_manifest(self) -> None:
        """Keeps aside what is in the place of the manifest but is no manifest of this queue."""
        damage = self._picture.manifest_damage
        if damage is None or NAME not in self._picture.names:
            return
        _logger.warning("%s: %s", damage.path, damage.reason)
        try:
            data = atomic.read_small(self._directory, NAME)
        except (OSError, ForebayError):
            # Something that a rename could not replace.
            quarantine.keep_file(self._directory, NAME)
            return
        if data:
            quarantine.keep_bytes(self._directory, NAME, data)

    def _clear_odd(self, name: str) -> None:
        """Keeps aside an unusable file, or whatever is in its place, if it can be made again."""
        try:
            file = self._directory.open(name, write=True)
            try:
                file.pread(file.size(), 0)
            finally:
                file.close()
        except FileNotFoundError:
            return
        except (OSError, ForebayError):
            quarantine.keep_file(self._directory, name)

    def _name_new_log(self) -> None:
        """Renames the log of an earlier recovery, if only that step was missing."""
        for log in self._picture.logs:
            if log.name.endswith(atomic.TEMPORARY):
                name = log.name.removesuffix(atomic.TEMPORARY)
                # Not synced: it counts under either name, until the next log makes it durable.
                self._directory.rename(log.name, name)
                log.name = name

    def _remove_leftovers(self) -> None:
        """Removes files that were just being written, and files that no longer count."""
        logs = {log.name for log in self._picture.logs}
        named = {file_name(row.number, kind) for row in self._manifest.sets for kind in row.kinds}
        DEADLINE.remove_temporary(self._directory, self._directory.names())
        for number, kind in list_files(self._directory.names()):
            name = file_name(number, kind)
            if name not in logs and name not in named:
                quarantine.remove(self._directory, name)

    def _keep_torn(self) -> None:
        """Keeps the bytes of logs that do not verify, as far as there is room."""
        logs = {log.path: log for log in self._picture.logs}
        for damage in [*self._picture.torn, *self._picture.damage]:
            log = logs.get(damage.path)
            if log is None:
                continue
            data = log.data[damage.position : damage.position + damage.length]
            try:
                quarantine.keep_rest(self._directory, log.name, damage.position, data)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def _choose(self) -> tuple[list[FoundLog], list[FoundLog]]:
        """Returns the logs that stay where they are, and those that are copied."""
        found = [log for log in self._picture.logs if log.header is not None and not log.gone]
        absent = [log for log in found if log.trouble]
        logs = [log for log in found if not log.trouble]
        if len(logs) > _LOGS_MAX:
            return [], [*logs, *absent]
        at, size = len(logs), 0
        while at > 0 and size + logs[at - 1].end <= _COPY_BYTES_MAX:
            at -= 1
            size += logs[at].end
        # Batches staged for a log that cannot be read are copied in any case.
        return logs[:at], [*logs[at:], *absent]

    def _make_durable(self, log: FoundLog) -> None:
        """Rewrites in place the part of a log that may not be on the disk."""
        mark, header = self._picture.mark, log.header
        assert header is not None
        if log.row is not None and log.row.end:
            return
        start = 0
        if mark is not None and mark.durable.log == log.number:
            start = mark.durable.position
        if mark is not None and (mark.durable.log > log.number or mark.clean):
            start = log.end
        if start >= log.end:
            return
        file = self._directory.open(log.name, write=True)
        try:
            for first, stop in self._good_ranges(log, start):
                for at in range(first, stop, _REWRITE_BYTES):
                    write_all(file, log.data[at : min(at + _REWRITE_BYTES, stop)], at)
            file.sync()
        finally:
            file.close()

    def _good_ranges(self, log: FoundLog, start: int) -> Iterator[tuple[int, int]]:
        """Yields where the bytes of a log are good: unreadable ones must not become zeros."""
        bad = sorted(
            (damage.position, damage.position + damage.length)
            for damage in self._picture.damage
            if damage.path == log.path
        )
        for first, stop in [*bad, (log.end, log.end)]:
            if start < min(first, log.end):
                yield start, min(first, log.end)
            start = max(start, stop)

    def _note_losses(self, copied: list[FoundLog]) -> None:
        """Puts on record what is lost, above all losses that leave no trace in the files."""
        staying = {log.path for log in self._picture.logs if log not in copied and log.header}
        for damage in self._picture.damage:
            if damage.count == 0:
                _logger.warning("%s, byte %d: %s", damage.path, damage.position, damage.reason)
                continue
            run = any(lost.damage.path == damage.path for lost in self._picture.lost_runs)
            gone = run or (damage.path.endswith(FileKind.WAL) and damage.path not in staying)
            gone = gone or not damage.path.endswith((FileKind.WAL, ".run"))
            _logger.error("%s, byte %d: %s", damage.path, damage.position, damage.reason)
            if self._losses.note(damage, gone=gone):
                self._tell.append(damage)
        # Before the manifest stops naming what is lost.
        self._losses.save()
        while (lost := self._losses.next_pending()) is not None:
            self._tell.append(lost)

    def _next_id(self) -> int:
        picture = self._picture
        highest = picture.highest_id
        for each in picture.sets:
            for file in each.files.values():
                highest = max(highest, file.run.footer.max_id)
        next_id = max(self._manifest.next_id, highest + 1)
        if picture.mark is not None:
            next_id = max(next_id, picture.mark.durable.next_id, picture.mark.written.next_id)
        return next_id

    def _row(self, log: FoundLog) -> LogRow:
        """Returns the row of a log in the manifest, for a log that stays."""
        if log.row is not None and log.row.end:
            return log.row
        assert log.header is not None
        first_id = log.first_id or 0
        ids = [
            row[2] + 1
            for part, stop in zip(log.parts, log.stops, strict=True)
            if isinstance(part, list) and stop <= log.end
            for row in part
            if row[0] == FRESH
        ]
        end_id = max([first_id, *ids])
        return LogRow(log.number, log.header.salt, log.end, first_id, end_id, log.copied or 0)

    def _write_log(self, copied: list[FoundLog], kept: list[FoundLog], next_id: int) -> WalFile:
        """Writes the contents of some logs to a new one; durable on return, under another name."""
        queue_id = self._manifest.queue_id
        memory = Memory(0)
        for log in copied:
            for part in log.read():
                if isinstance(part, list):
                    replay(memory, part)
        for key in self._picture.revived:
            memory.kill(*key)
        wal = create_wal(
            self._filesystem, self._directory, self._number, queue_id, atomic.TEMPORARY
        )
        try:
            before = kept[-1] if kept else None
            end = (0, 0) if before is None else (before.number, before.end)
            wal.write_origin(Origin(*end, True, next_id, len(memory.sorted(ITEM))))
            self._write_copies(wal, memory)
            wal.file.sync()
            self._directory.sync()
        except BaseException:
            wal.file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(wal_name(self._number) + atomic.TEMPORARY)
            raise
        return wal

    def _write_copies(self, wal: WalFile, memory: Memory) -> None:
        buffer = bytearray(_BATCH_BYTES)
        row = 0
        while row < memory.used:
            if not record_size(memory, row):
                # This row is dead: the size of the buffer is that of the first live one.
                row += 1
                continue
            needed = BATCH_BYTES + len(COPIED) + record_size(memory, row)
            if needed > len(buffer):
                buffer = bytearray(needed)
            room = memoryview(buffer)[len(COPIED) :]
            # A large record has a batch of its own: later batches are small again.
            row, size = put_records(memory, row, room, max(_BATCH_BYTES, needed) - len(COPIED))
            room.release()
            if size:
                wal.write_copies(buffer, size)

    def _name_files(self, rows: list[LogRow], wal: WalFile, next_id: int) -> ManifestFile:
        """Makes the present files count, by naming them in the manifest."""
        manifest = ManifestFile(self._directory, self._manifest)
        mark = self._picture.mark
        generation = max(self._manifest.generation, mark.generation if mark is not None else 0)
        logs = (*rows, wal.row())
        manifest.manifest = replace(manifest.manifest, generation=generation)
        manifest.change(
            lambda before: replace(
                before,
                next_id=next_id + IDS_AT_ONCE,
                floor_ms=self._picture.floor_ms,
                oldest_wal=logs[0].number,
                sets=tuple(each.row() for each in self._picture.sets if each.files),
                logs=logs,
            )
        )
        name = wal_name(self._number)
        self._directory.rename(name + atomic.TEMPORARY, name)
        self._directory.sync()
        return manifest

    def _put_aside(self, copied: list[FoundLog]) -> None:
        """Removes logs that were copied, and keeps aside files that cannot be read."""
        for log in self._picture.logs:
            if log.trouble:
                continue
            if log in copied or log.gone or not log.data.strip(b"\0"):
                quarantine.remove(self._directory, log.name)
        lost = [log.name for log in self._picture.logs if log.header is None or log.trouble]
        lost += [run.name for run in self._picture.lost_runs if run.there]
        for name in lost:
            with contextlib.suppress(FileNotFoundError):
                quarantine.keep_file(self._directory, name)
        for each in self._picture.sets:
            each.lost.clear()
        self._picture.sets[:] = [each for each in self._picture.sets if each.files]
