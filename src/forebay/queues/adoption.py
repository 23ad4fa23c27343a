"""Takes in what other processes left in `inbox/`: complete segments of records.

The owner does it within a second, and whoever opens a stopped queue does it first. A batch is taken
whole, once, in one synced step (see `storage/inbox.py`). A batch with a part that does not verify
is not taken: its files go to `quarantine/` and the log says so.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from forebay.errors import Damaged, ForebayError
from forebay.formats.fflg import HEADER_BYTES_MAX, Frames, Header, decode_header, segment_name
from forebay.frames import Damage
from forebay.queues.recovery import clear_adoption
from forebay.queues.writer import LogWriter
from forebay.storage import inbox, quarantine
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)


def adopt_all(directory: Directory, segments: SegmentList, writer: LogWriter) -> int:
    """Adopts every batch that is ready; gives the number of records taken."""
    try:
        work = directory.directory(inbox.DIRECTORY)
    except FileNotFoundError:
        return 0
    try:
        taken = 0
        for name, manifest in inbox.read_manifests(work):
            if manifest is None:
                _refuse(directory, work, name, [], "the manifest does not verify")
                continue
            ledger = inbox.read_ledger(directory)
            if manifest.batch <= ledger.adopted.get(manifest.writer, -1):
                for done in [*(part.name for part in manifest.parts), name]:
                    inbox.remove(work, done)
                continue
            try:
                headers = [_check_part(work, part) for part in manifest.parts]
            except (ForebayError, FileNotFoundError) as error:
                _refuse(directory, work, name, [part.name for part in manifest.parts], error)
                continue
            taken += _adopt(directory, work, segments, writer, manifest, headers, ledger)
            inbox.remove(work, name)
        return taken
    finally:
        work.close()


def _refuse(
    directory: Directory, work: Directory, name: str, parts: list[str], reason: object
) -> None:
    _logger.error("inbox/%s is not adopted: %s", name, reason)
    for refused in [name, *parts]:
        with contextlib.suppress(FileNotFoundError):
            quarantine.keep_file(directory, refused, work)
    work.sync()


def _check_part(work: Directory, part: inbox.Part) -> tuple[Header, int]:
    """Verifies every frame of a part; gives its header and the ms of its last record."""
    path = f"{work.path}/{part.name}"
    file = work.open(part.name)
    try:
        size = file.size()
        data = file.pread(size, 0)
    finally:
        file.close()
    header = decode_header(data[:HEADER_BYTES_MAX], path)
    if not header.layout.checked or not part.count:
        raise Damaged(Damage(path, 0, size, "not a part of version 2 with records"))
    times: list[int] = []
    values, stop = Frames(header).scan(data, header.layout.header_bytes, 0, part.count, times)
    if len(values) != part.count or stop != size or size != part.size:
        reason = f"{len(values)} good records of {part.count}, {stop} bytes of {part.size}"
        raise Damaged(Damage(path, stop, size - stop, reason))
    if times != sorted(times):
        raise Damaged(Damage(path, 0, size, "its times fall"))
    return header, times[-1]


def _adopt(
    directory: Directory,
    work: Directory,
    segments: SegmentList,
    writer: LogWriter,
    manifest: inbox.Manifest,
    headers: list[tuple[Header, int]],
    ledger: inbox.Ledger,
) -> int:
    with writer.lock:
        writer.check()
        # With the lock held: under load somebody would always have appended meanwhile.
        writer.roll()
        writer.sync_now()
        return _adopt_locked(directory, work, segments, writer, manifest, headers, ledger)


def _adopt_locked(
    directory: Directory,
    work: Directory,
    segments: SegmentList,
    writer: LogWriter,
    manifest: inbox.Manifest,
    headers: list[tuple[Header, int]],
    ledger: inbox.Ledger,
) -> int:
    moves, placed = [], []
    base, time_ms = writer.written, writer.last_ms
    for part, (header, last_ms) in zip(manifest.parts, headers, strict=True):
        # A later epoch shifts all its times: they never fall from one segment to the next.
        epoch_ms = max(header.epoch_ms, time_ms)
        new = replace(header, base_offset=base, epoch_ms=epoch_ms)
        moves.append(inbox.Move(part.name, segment_name(base), new.encode().hex()))
        placed.append((base, part.size))
        base, time_ms = base + part.count, epoch_ms + last_ms
    adopted = {**ledger.adopted, manifest.writer: manifest.batch}
    try:
        inbox.write_ledger(directory, inbox.Ledger(adopted, moves))
        inbox.finish_moves(directory, work, moves)
    except OSError as error:
        if _may_be_decided(directory):
            # Appending on would give the offsets out twice.
            writer.fail(error)
        raise
    for start, size in placed:
        segments.add(start, segment_name(start))
        segments.sizes[start] = size
    count = base - writer.written
    if placed:
        writer.adopted(placed[-1][0], base, placed[-1][1], time_ms)
    clear_adoption(directory)
    return count


def _may_be_decided(directory: Directory) -> bool:
    """Says whether an adoption that failed is in the ledger all the same, or nobody knows."""
    try:
        return bool(inbox.read_ledger(directory).moves)
    except (OSError, ForebayError):
        return True
