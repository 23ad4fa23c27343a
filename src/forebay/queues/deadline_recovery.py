"""Opens the directory of a deadline queue and brings it into order, whatever a crash left.

Promises that on return everything that is served is durable. Logs whose runs are not in the
manifest are read, oldest first, and what they leave is written into one new log and synced, because
after a failed sync the cache may show bytes that the disk lacks. The manifest names it as the
oldest that counts before it gets its own name: with the old logs beside it, a requeue that these
have lost would be there in part. Torn and damaged bytes of logs go to `quarantine/`. Runs that the
manifest does not name were just being written, or are merged already, and go. It may crash at any
point and run again.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from forebay.errors import Damaged
from forebay.formats.deadline import FileKind, file_name
from forebay.formats.deadline_manifest import NAME, Manifest, SetRow, decode_manifest
from forebay.frames import Damage
from forebay.kernels.deadline_memory import Memory
from forebay.kernels.deadline_replay import put_records, record_size, replay
from forebay.kernels.deadline_wal import BATCH_BYTES, DEQUEUED
from forebay.queues.deadline_journal import WalFile, create_wal
from forebay.queues.deadline_logs import FoundLog, read_logs
from forebay.queues.deadline_manifest import ManifestFile
from forebay.queues.deadline_names import is_temporary, list_files, refuse_foreign, wal_name
from forebay.queues.deadline_runs import RunSet, open_set
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.staging import read_staged

_logger = logging.getLogger(__name__)
IDS_AT_ONCE = 1 << 20
# A batch of the new log has so many bytes at most, or one record.
_BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class Opened:
    """A directory that is in order."""

    manifest: ManifestFile
    wal: WalFile
    segment: Memory
    sets: list[RunSet]
    next_id: int
    next_number: int
    floor_ms: int
    damage: list[Damage]
    # The manifest was lost: the order of the sets is a guess, and some may be there twice.
    guessed: bool = False


def open_deadline_directory(filesystem: Filesystem, directory: Directory) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = directory.names()
    refuse_foreign(directory, names)
    manifest, guessed = _read_manifest(filesystem, directory, list_files(names))
    _name_new_log(directory, names, wal_name(manifest.oldest_wal))
    for name in names:
        if is_temporary(name):
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(name)
    files = list_files(directory.names())
    files = _remove_leftovers(directory, manifest, files)
    recovery = Recovery(filesystem, directory, manifest, files)
    try:
        opened = recovery.run()
        opened.guessed = guessed
        return opened
    except BaseException:
        recovery.close()
        raise


def _read_manifest(
    filesystem: Filesystem, directory: Directory, files: list[tuple[int, FileKind]]
) -> tuple[Manifest, bool]:
    """Gives the manifest; of a queue that has lost it, one that names all runs, and True."""
    data = atomic.read_small(directory, NAME)
    path = f"{directory.path}/{NAME}"
    if data is not None:
        try:
            return decode_manifest(data, path), False
        except Damaged as error:
            _logger.warning("%s: %s; all runs that are there count", path, error.damage.reason)
            quarantine.keep_bytes(directory, NAME, data)
    rows = []
    for number, group in groupby(files, itemgetter(0)):
        kinds = frozenset(kind for _, kind in group if kind is not FileKind.WAL)
        if kinds:
            rows.append(SetRow(number, kinds))
    return Manifest(filesystem.random_bytes(16), sets=tuple(rows)), bool(rows)


def _name_new_log(directory: Directory, names: list[str], wal: str) -> None:
    """Gives the log of a recovery its name, if that was all that was left to do."""
    if wal + atomic.TEMPORARY in names and wal not in names:
        directory.rename(wal + atomic.TEMPORARY, wal)
        directory.sync()


def _remove_leftovers(
    directory: Directory, manifest: Manifest, files: list[tuple[int, FileKind]]
) -> list[tuple[int, FileKind]]:
    """Removes what does not count; gives what does."""
    named = {(row.number, kind) for row in manifest.sets for kind in row.kinds}
    kept = []
    for number, kind in files:
        wal = kind is FileKind.WAL
        if number >= manifest.oldest_wal if wal else (number, kind) in named:
            kept.append((number, kind))
        else:
            directory.unlink(file_name(number, kind))
    return kept


class Recovery:
    """One look at a directory, and what brings it into order."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        manifest: Manifest,
        files: list[tuple[int, FileKind]],
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._manifest = manifest
        self._wals = [number for number, kind in files if kind is FileKind.WAL]
        highest = max([0, manifest.oldest_wal, *(number for number, _ in files)])
        self._number = highest + 1
        self._segment = Memory(self._number)
        self._sets: list[RunSet] = []
        self._wal: WalFile | None = None
        self._damage: list[Damage] = []
        self._floor_ms = manifest.floor_ms
        self._highest_id = 0

    def run(self) -> Opened:
        """Brings the directory into order."""
        for row in self._manifest.sets:
            opened = open_set(self._directory, row)
            self._sets.append(opened)
            for kind in row.kinds - opened.files.keys():
                self._keep_run(file_name(row.number, kind))
            self._damage += opened.damage
            for file in opened.files.values():
                self._highest_id = max(self._highest_id, file.run.footer.max_id)
        self._replay()
        self._segment.show_all()
        wal = self._wal = self._write_log()
        next_id = max(self._manifest.next_id, self._highest_id + 1)
        manifest = ManifestFile(self._directory, self._manifest)
        manifest.change(
            lambda before: replace(
                before,
                next_id=next_id + IDS_AT_ONCE,
                floor_ms=self._floor_ms,
                oldest_wal=self._number,
                sets=tuple(each.row() for each in self._sets),
            )
        )
        name = wal_name(self._number)
        self._directory.rename(name + atomic.TEMPORARY, name)
        self._directory.sync()
        for number in self._wals:
            # One that could not be read at all is in quarantine.
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(wal_name(number))
        return Opened(
            manifest,
            wal,
            self._segment,
            self._sets,
            next_id,
            self._number + 1,
            self._floor_ms,
            self._damage,
        )

    def close(self) -> None:
        """Closes what was opened."""
        for each in self._sets:
            each.close()
        if self._wal is not None:
            self._wal.file.close()

    def _replay(self) -> None:
        """Reads the logs into memory; what of them does not verify is kept aside and noted."""
        staged = read_staged(self._directory)
        for log, part in read_logs(self._directory, map(wal_name, self._wals), staged):
            if isinstance(part, Damage):
                self._keep(log, part)
                continue
            replay(self._segment, part)
            self._highest_id = max(self._highest_id, *(row[2] for row in part))
            given_out = (row[1] for row in part if row[0] == DEQUEUED)
            self._floor_ms = max(self._floor_ms, max(given_out, default=0))

    def _keep(self, log: FoundLog, damage: Damage) -> None:
        """Keeps bytes of a log that do not verify."""
        end = damage.position + damage.length
        kept = log.data[damage.position : end].rstrip(b"\0")
        if kept:
            quarantine.keep_bytes(self._directory, f"{log.name}-{damage.position}", kept)
        if not damage.torn:
            _logger.warning("%s, byte %d: %s", damage.path, damage.position, damage.reason)
            self._damage.append(damage)

    def _keep_run(self, name: str) -> None:
        """Keeps a run that cannot be read at all: nothing names it from now on."""
        path = f"{self._directory.path}/{name}"
        try:
            quarantine.keep_file(self._directory, name)
        except FileNotFoundError:
            self._damage.append(Damage(path, 0, 0, "the file is missing"))
        else:
            self._damage.append(Damage(path, 0, 0, "it cannot be read; kept in quarantine/"))

    def _write_log(self) -> WalFile:
        """Writes what the logs leave into a new one; durable on return, under another name."""
        wal = create_wal(self._filesystem, self._directory, self._number, atomic.TEMPORARY)
        try:
            buffer = bytearray(_BATCH_BYTES)
            row = 0
            while row < self._segment.used:
                needed = BATCH_BYTES + record_size(self._segment, row)
                if needed > len(buffer):
                    buffer = bytearray(needed)
                row, size = put_records(self._segment, row, buffer, len(buffer))
                if size:
                    wal.write_records(buffer, size)
            wal.file.sync()
            self._directory.sync()
            wal.durable = wal.position
        except BaseException:
            wal.file.close()
            raise
        return wal
