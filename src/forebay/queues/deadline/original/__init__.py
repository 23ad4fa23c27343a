"""The files of deadline queues as they lie there: one file entry by entry, or a folder merged.

Read only, without a lock, and without a queue around them. A folder is one that the original
program left: all its runs and logs together say which items are live.

Writes the items of a deadline queue as the original program's run, which that program reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline.items import (
    Entry,
    FileKind,
    Item,
    RunEncoder,
    file_name,
    parse_file_name,
    scan_run,
)
from forebay.formats.deadline.original import in_unsigned_order, merge, scan_log
from forebay.formats.deadline.wal import Record, decode_header, repair_header, scan_wal
from forebay.queues.deadline.bytes import read_whole
from forebay.queues.deadline.names import original_names
from forebay.queues.deadline.runs import open_run
from forebay.storage.atomic import TEMPORARY
from forebay.storage.filesystem import Directory, DiskFilesystem, File, Filesystem, write_all

_RUNS = {
    *(FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN),
    *(FileKind.COMBINED_RUN, FileKind.DEQUEUED_RUN),
}
_LOGS = {FileKind.LOG, FileKind.CLOSED_LOG, FileKind.CLOSED_LOG_OF_SEED}
# Files with these ends are known by them, whatever they are called; a log must have its number.
_KNOWN_BY_END = set(FileKind) - _LOGS - {FileKind.WAL}


def is_file(path: str) -> bool:
    """Says whether a path names a run or a log of a deadline queue."""
    return _parse(os.path.basename(path)) is not None


def scan_file(path: str) -> Iterator[Record | Damage]:
    """Yields what a run or a log holds, in its own order, and what is damaged."""
    folder, name = os.path.split(os.path.abspath(path))
    directory = DiskFilesystem().open_directory(folder)
    try:
        yield from _scan(directory, name)
    finally:
        directory.close()


def scan_folder(path: str, *, raw: bool) -> Iterator[Record | Damage]:
    """Yields the live items of a folder by deadline and id; with `raw` all that its files hold."""
    directory = DiskFilesystem().open_directory(path)
    try:
        names = original_names(directory.names())
        if raw:
            for name in names:
                yield from _scan(directory, name)
            return
        found: list[Damage] = []
        for item in merged_items(directory, names, found):
            yield from _taken(found)
            yield item
        yield from _taken(found)
    finally:
        directory.close()


def merged_items(directory: Directory, names: list[str], found: list[Damage]) -> Iterator[Item]:
    """Yields the live items of the original's files by deadline and id; damage goes to a list."""
    runs = [_sorted(directory, name, found) for name in names]
    for entry in merge(runs, full=True):
        assert isinstance(entry, Item)
        yield entry


def _parse(name: str) -> tuple[int, FileKind] | None:
    """Returns number and kind of a file; of a run by any name, 0 and its kind."""
    ends = (kind for kind in _KNOWN_BY_END if name.endswith(kind))
    return parse_file_name(name) or next(((0, kind) for kind in ends), None)


def _scan(directory: Directory, name: str) -> Iterator[Record | Damage]:
    parsed = _parse(name)
    assert parsed is not None
    number, kind = parsed
    path = os.path.join(directory.path, name)
    if kind in _RUNS:
        yield from _scan_run(directory, name, path)
        return
    data = read_whole(directory, name)[0]
    if kind is FileKind.WAL:
        yield from _scan_wal(data, number, path)
    else:
        yield from (scan_log if kind in _LOGS else scan_run)(data, path)


def _scan_run(directory: Directory, name: str, path: str) -> Iterator[Record | Damage]:
    file: File = directory.open(name)
    try:
        run = open_run(file, path)
        yield from run.damage
        yield from run.scan()
    except Damaged as error:
        yield error.damage
    finally:
        file.close()


def _scan_wal(data: bytes, number: int, path: str) -> Iterator[Record | Damage]:
    try:
        header = decode_header(data, path)
    except (Damaged, NotAQueue) as error:
        mended = repair_header(data, number)
        if mended is None:
            if not isinstance(error, Damaged):
                raise
            yield error.damage
            return
        header = mended
    yield from scan_wal(data, path, header)


def _sorted(directory: Directory, name: str, found: list[Damage]) -> Iterator[Entry]:
    """Yields the entries of a file by key; damage goes to a list."""
    parsed = parse_file_name(name)
    entries = _without_damage(_scan(directory, name), found)
    if parsed is not None and parsed[1] in _LOGS:
        return iter(sorted(entries, key=attrgetter("key")))
    return in_unsigned_order(entries)


def _without_damage(items: Iterator[Record | Damage], found: list[Damage]) -> Iterator[Entry]:
    for item in items:
        if isinstance(item, Damage):
            found.append(item)
        else:
            yield item  # type: ignore[misc]


def _taken(found: list[Damage]) -> Iterator[Damage]:
    while found:
        yield found.pop(0)


_BATCH_ITEMS = 1_000


def export_run(items: Iterable[Item], target: str, *, filesystem: Filesystem | None = None) -> None:
    """Writes pending items, sorted by key, into a new directory.

    One run of version 1, named only when all of it is durable.
    """
    name = file_name(0, FileKind.PENDING_RUN_1)
    encoder = RunEncoder()
    directory = (filesystem or DiskFilesystem()).open_directory(target, create=True)
    try:
        file = directory.create(name + TEMPORARY)
        try:
            position = 0
            for batch in _batches(items):
                data = encoder.encode(batch)
                write_all(file, data, position)
                position += len(data)
            write_all(file, encoder.finish(), position)
            file.sync()
        except BaseException:
            directory.unlink(name + TEMPORARY)
            raise
        finally:
            file.close()
        directory.rename(name + TEMPORARY, name)
        directory.sync()
    finally:
        directory.close()


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH_ITEMS)):
        yield batch
