"""Makes a deadline queue of the directory that the original program left.

All its runs and logs together say which items are live. Those become one run of the queue, with
their ids, deadlines and counts. The manifest that names the run is the moment at which the
directory is ours; the original's files are kept in `quarantine/` after it. A list of them, the file
`takeover`, is written before the manifest and goes last, so that a crash at any point is made good
by the next open: without a manifest it begins again, with one it only moves what is on the list.

What cannot be read of the original's files is put on record in `losses` first. A directory in which
no file holds a whole entry is refused: its names may be those of another program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import BURIED_BIT, Item, Key
from forebay.formats.deadline_manifest import NAME as MANIFEST
from forebay.formats.deadline_manifest import Manifest
from forebay.formats.deadline_mark import NAME as MARK
from forebay.frames import Damage
from forebay.queues.deadline_files import merged_items, original_names
from forebay.queues.deadline_names import TAKEOVER, file_names
from forebay.queues.deadline_writing import SetWriter
from forebay.storage import atomic, quarantine
from forebay.storage.documents import decode_document, encode_document
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.losses import Losses

_NUMBER = 1
_LAST_MS = BURIED_BIT - 1


def take_over(filesystem: Filesystem, directory: Directory) -> None:
    """Takes over a directory of the original program, if it is one, or goes on with that."""
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
        # A run of an attempt that a crash ended.
        directory.unlink(name)
    _note_losses(directory, found)
    queue_id, next_id = filesystem.random_bytes(16), max(ids, default=0) + 1
    items = _fitted(merged_items(directory, originals, []), next_id)
    row = SetWriter(filesystem, directory, _NUMBER, "none", queue_id).write_items(items)
    atomic.replace(directory, TAKEOVER, encode_document(originals))
    manifest = Manifest(
        queue_id,
        next_id + len(ids) - len(set(ids)),
        sets=(row,) if row.kinds else (),
    )
    atomic.replace(directory, MANIFEST, manifest.encode())
    _finish(directory)


def _fitted(items: Iterable[Item], next_id: int) -> Iterator[Item]:
    """Yields items by key, with deadlines that the queue knows and with ids that differ.

    A crash in the middle of a requeue of the original leaves two copies of an item, under two
    deadlines. Nothing tells which is the right one, so both are kept.
    """
    seen: set[int] = set()
    for deadline_ms, group in groupby(items, lambda item: min(item.key.deadline_ms, _LAST_MS)):
        fitted = []
        for item in group:
            id = item.key.id
            if id in seen:
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
    """Keeps the original's files aside; may be done any number of times until it is finished."""
    try:
        data = atomic.read_small(directory, TAKEOVER) or b""
        taken = decode_document(data, f"{directory.path}/{TAKEOVER}")
    except Damaged:
        # The files stay where they are, as foreign ones: what they hold is in the queue.
        taken = []
    for name in taken:
        with contextlib.suppress(FileNotFoundError):
            quarantine.keep_file(directory, name)
    # If it comes back after a power cut, there is nothing left to do.
    directory.unlink(TAKEOVER)
