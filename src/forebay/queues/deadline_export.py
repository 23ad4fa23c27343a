"""Writes the items of a deadline queue as the original program's run, which that program reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from forebay.formats.deadline import FileKind, Item, RunEncoder, file_name
from forebay.storage.atomic import TEMPORARY
from forebay.storage.filesystem import DiskFilesystem, Filesystem, write_all

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
