"""Finds head and mark of a fifo, also where the files that hold them are lost, or of another queue.

Both are told from those of another queue by the version that the entries have: it holds bytes of
the queue's id, which is in `fifo-tail`. What is lost is made again from the tape: entries that were
popped may come again then, and that is told as damage.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from forebay.errors import Damaged
from forebay.formats.entry import (
    OLD_VERSION,
    file_name,
    find_version,
    is_version_of,
    version_of,
)
from forebay.frames import Damage
from forebay.kernels.entry import METADATA_BYTES, find
from forebay.queues.fifo_bounds import Bounds
from forebay.queues.fifo_head import SLOT_STRIDE, Head, Slots, read_slots
from forebay.queues.fifo_names import BOUNDS, COPY, HEAD, TAIL, list_files
from forebay.queues.fifo_scanner import EntryBatch, FifoScanner, Place
from forebay.queues.options import FILE_BYTES_DEFAULT, FILE_BYTES_MIN
from forebay.storage import atomic, quarantine, staging
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.tail import Tail, TailFile
from forebay.storage.tape import MISSING, open_or_reason

_logger = logging.getLogger(__name__)
_SIDE_FILES = (HEAD, TAIL, BOUNDS, COPY, staging.NAME, atomic.RESERVE)
_CHUNK_BYTES = 1 << 20
# The most that can be written and not be durable: some files, and a large batch.
_WAITING_FILES_MAX = 64
_WAITING_BYTES_MAX = 1 << 26
_COMES_AGAIN = "what was popped may come again"


class Marks(NamedTuple):
    """Where a queue begins and up to where it is durable; None: there is none, or it is lost.

    `head_is_stored` says that the head is from its file, and `trouble` what is wrong with that.
    """

    head: Head | None
    tail: Tail | None
    queue_id: bytes
    head_is_stored: bool
    trouble: list[Damage]


def find_marks(
    filesystem: Filesystem, directory: Directory, file_bytes: int = FILE_BYTES_DEFAULT
) -> Marks:
    """Finds the marks of a directory, and changes nothing.

    `file_bytes` is the size of files where none is there to tell.
    """
    tail = read_tail(directory)
    slots = _read_slots(directory)
    head = slots.head
    files = list_files(directory)
    if head is not None and tail is not None and not is_version_of(head.version, tail.queue_id):
        # One of the two is of another queue.
        if _sniff(directory, files, [version_of(tail.queue_id)]) is not None:
            head, slots = None, slots._replace(head=None, size=0)
        else:
            tail = None
    if head is not None and tail is not None and _claims_too_much(tail, head):
        path = f"{directory.path}/{TAIL}"
        reason = f"it claims {tail.written - tail.durable} entries that no file could hold"
        return Marks(head, None, tail.queue_id, True, [Damage(path, 0, 0, reason)])
    if head is not None:
        same_boot = tail is not None and tail.boot_id == filesystem.boot_id()
        trouble = head_trouble(directory, slots, tail, same_boot=same_boot)
        queue_id = tail.queue_id if tail is not None else _queue_id(filesystem, head.version)
        if tail is not None and head.number < (tail.begin or 0):
            # An older copy of it, or what an older slot says.
            return Marks(_move_on(directory, head, tail), tail, queue_id, False, [])
        return Marks(head, tail, queue_id, True, trouble)
    if tail is None and not files:
        return Marks(None, None, filesystem.random_bytes(16), False, [])
    return _without_head(filesystem, directory, files, tail, file_bytes)


def _claims_too_much(tail: Tail, head: Head) -> bool:
    """Says whether a mark counts more entries above what is durable than can ever wait there.

    Room is made for each of them, at its least size: a number alone must not fill the disk.
    """
    waiting = (tail.written - tail.durable) * METADATA_BYTES
    return waiting > _WAITING_FILES_MAX * head.file_bytes + _WAITING_BYTES_MAX


def head_trouble(
    directory: Directory, slots: Slots, tail: Tail | None, *, same_boot: bool
) -> list[Damage]:
    """Says what is wrong with the slots of the head of a queue that nobody has open.

    A power cut tears the slot that is being written, and then nothing is wrong.
    """
    clean = tail is not None and tail.clean
    if not slots.bad or (clean and slots.copies > 1) or not (clean or same_boot):
        return []
    path = f"{directory.path}/{HEAD}"
    reason = f"a mark in it does not verify: {_COMES_AGAIN}"
    return [Damage(path, slots.bad[0] * SLOT_STRIDE, SLOT_STRIDE, reason, count=0)]


def read_tail(directory: Directory) -> Tail | None:
    """Returns the durable mark; None if there is none, or it cannot be read."""
    try:
        file = TailFile.open(directory, write=False, name=TAIL)
        if file is None:
            return None
        try:
            return file.read()
        finally:
            file.close()
    except Damaged:
        return None


def set_side_files_aside(
    directory: Directory, names: list[str], *, whole: bool = False
) -> list[str]:
    """Moves what stands in the place of a side file and cannot be read into `quarantine/`.

    Returns which. Of the staging buffer a part may do, unless it must be `whole`.
    """
    moved = [
        name for name in _SIDE_FILES if name in names and not _is_readable(directory, name, whole)
    ]
    for name in moved:
        _logger.warning("%s/%s cannot be read; kept aside", directory.path, name)
        quarantine.keep_file(directory, name)
    return moved


def _is_readable(directory: Directory, name: str, whole: bool) -> bool:
    file = open_or_reason(directory, name)
    if isinstance(file, str):
        return file == MISSING
    try:
        file.pread(file.size(), 0)
        return (name == staging.NAME and not whole) or not file.holes
    finally:
        file.close()


def _read_slots(directory: Directory) -> Slots:
    try:
        return read_slots(directory)
    except Damaged:
        return Slots(None, [], 0, 0)


def _queue_id(filesystem: Filesystem, version: bytes) -> bytes:
    """Makes an id for a queue whose entries have a version."""
    random = filesystem.random_bytes(16)
    return random if version == OLD_VERSION else version[4:] + random[4:]


def _without_head(
    filesystem: Filesystem,
    directory: Directory,
    files: list[int],
    tail: Tail | None,
    file_bytes: int,
) -> Marks:
    """Makes a head from what is on the tape: before the oldest entry that is there."""
    version = None
    if tail is not None:
        version = _sniff(directory, files, [version_of(tail.queue_id), OLD_VERSION])
    version = version or _sniff(directory, files)
    if version is None:
        # Nothing is there that anybody could read.
        version = OLD_VERSION if tail is None else version_of(tail.queue_id)
    queue_id = tail.queue_id if tail is not None else _queue_id(filesystem, version)
    file_bytes = _file_bytes(directory, files, file_bytes)
    head = _first_head(directory, files, tail, version, file_bytes)
    path = f"{directory.path}/{HEAD}"
    reason = f"no mark of this queue in it verifies, or it is gone: {_COMES_AGAIN}"
    trouble = [Damage(path, 0, 0, reason, count=0)] if files else []
    if tail is not None and tail.begin is not None:
        head = _move_on(directory, head, tail)
        if tail.clean:
            trouble = []
    return Marks(head, tail, queue_id, False, trouble)


def _move_on(directory: Directory, head: Head, tail: Tail) -> Head:
    """Moves a head that is too old to the oldest entry that must be there."""
    begin = tail.begin or 0
    mark = tail.segment * head.file_bytes + tail.position
    bounds = Bounds(directory, head.version)
    scanner = FifoScanner(directory, head.file_bytes, head.version, bounds)
    place = head.place
    try:
        for item in scanner.scan(place, Place(mark, begin, 0)):
            if isinstance(item, EntryBatch):
                place = item.end
    finally:
        scanner.close()
    if place.number < begin:
        # Nothing verifies there any more: it is damage when its turn comes.
        place = Place(place.position, begin, place.last_id)
    lent = tuple(row for row in head.lent if row.number >= begin)
    return head._replace(
        position=place.position, number=place.number, last_id=place.last_id, lent=lent
    )


def _first_head(
    directory: Directory, files: list[int], tail: Tail | None, version: bytes, file_bytes: int
) -> Head:
    if not files:
        # Everything had left, or the files are gone: the mark tells how many there were.
        assert tail is not None
        last_id = max(0, (tail.time_ms << 16) - 1)
        position = tail.segment * file_bytes + tail.position
        return Head(file_bytes, version, position, tail.durable, last_id)
    bounds = Bounds(directory, version)
    for number in files:
        start = number * file_bytes
        first = bounds.get(number)
        if first is not None and first.position < file_bytes:
            return Head(file_bytes, version, start + first.position, first.number, first.last_id)
        data = _read(directory, number, file_bytes)
        # Any number will do: with so many bytes passed over, each is one that they leave room for.
        position, low = find(data, 0, 0, 0, 0xFFFF, version, 0x10000 * METADATA_BYTES)
        if position >= 0:
            newest = low if tail is None else tail.durable
            return Head(file_bytes, version, start + position, newest - (newest - low) % 0x10000)
    position = files[0] * file_bytes
    return Head(file_bytes, version, position, 0 if tail is None else tail.durable)


def _file_bytes(directory: Directory, files: list[int], otherwise: int) -> int:
    """Returns the commonest size: one of them may be the one that was damaged."""
    sizes = []
    for number in files:
        file = open_or_reason(directory, file_name(number))
        if isinstance(file, str):
            continue
        try:
            if file.size() >= FILE_BYTES_MIN:
                sizes.append(file.size())
        finally:
            file.close()
    return max(set(sizes), key=sizes.count) if sizes else otherwise


def _sniff(
    directory: Directory, files: list[int], wanted: list[bytes] | None = None
) -> bytes | None:
    """Returns the version of the first entry on the tape; with `wanted`, of the first of these."""
    for number in files:
        data = _read(directory, number, _CHUNK_BYTES)
        if wanted is None:
            found = find_version(data)
            if found is not None:
                return found
        for version in wanted or ():
            if find(data, 0, 0, 0, 0xFFFF, version, 0x10000 * METADATA_BYTES)[0] >= 0:
                return version
    return None


def _read(directory: Directory, number: int, size: int) -> bytes:
    file = open_or_reason(directory, file_name(number))
    if isinstance(file, str):
        return b""
    try:
        return file.pread(size, 0)
    finally:
        file.close()
