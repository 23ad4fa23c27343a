"""Adopts what other processes left in `inbox/` of a log: complete segments of records.

The owner does so within a second; opening a stopped log does it first. A batch is adopted as a
whole, once, in one synced step (see `storage/inbox.py`); if a crash comes after that step, the next
open finishes the adoption. A batch with a part that does not verify is not adopted: its files go to
`quarantine/` and an error is logged. Parts that no manifest names, left by writers that died or
came too late, are removed a day after they were made.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.fflg import HEADER_BYTES_MAX, Frames, Header, decode_header, segment_name
from forebay.kernels.fflg import verify
from forebay.queues.log.writer import LogWriter
from forebay.queues.shared.mark import End
from forebay.storage import inbox, quarantine
from forebay.storage.atomic import TEMPORARY
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses
from forebay.storage.readable import Content, open_readable, read_whole
from forebay.storage.segments import CHUNK_BYTES, SegmentList

_logger = logging.getLogger(__name__)
# The latest time of a record: allows a clock that is set far ahead, but keeps sums of times within
# what a header can hold.
TIME_MS_MAX = 2**60
# The kind that a manifest must name, if it names one.
_KIND = "log"


class _Refused(Exception):
    """A batch that must not enter the queue; its files go to quarantine.

    `damage` is set if the batch was good when it was handed in: then it is a loss.
    """

    def __init__(self, reason: object, damage: Damage | None = None) -> None:
        super().__init__(str(reason))
        self.damage = damage


def adopt_all(
    directory: Directory,
    segments: SegmentList,
    writer: LogWriter,
    now_ms: int,
    losses: Losses | None = None,
) -> int:
    """Adopts every batch that is ready; returns the number of records adopted.

    A batch with any fault, and anything else in the inbox that looks like a manifest, is refused
    and moved to quarantine. A batch that was good when it was handed in and is now damaged is noted
    in `losses`.
    """
    work = _open_inbox(directory)
    if work is None:
        return 0
    losses = Losses.load(directory) if losses is None else losses
    try:
        # List the names before the manifests: then a manifest names every listed part that is
        # published by now.
        names = work.names()
        manifests = inbox.read_manifests(work)
        _remove_orphans(work, names, manifests, now_ms)
        taken = 0
        for name, manifest in manifests:
            if manifest is None:
                path = f"{work.path}/{name}"
                parts = _named_by_rubbish(work, name)
                damage = Damage(path, 0, 0, "a batch whose manifest does not verify; refused")
                _refuse(directory, work, losses, name, parts, _Refused(damage.reason, damage))
                continue
            ledger = inbox.own_ledger(directory)
            if manifest.batch <= ledger.adopted.get(manifest.writer, -1):
                for done in [*(part.name for part in manifest.parts), name]:
                    inbox.remove(work, done)
                continue
            try:
                headers = _check_batch(work, manifest)
            except _Refused as error:
                parts = [part.name for part in manifest.parts]
                _refuse(directory, work, losses, name, parts, error)
                continue
            taken += _adopt(directory, segments, writer, work, manifest, headers, ledger)
            inbox.remove(work, name)
        if manifests:
            _forget_one_time_writers(directory, work)
        return taken
    finally:
        work.close()


def _open_inbox(directory: Directory) -> Directory | None:
    try:
        return directory.directory(inbox.DIRECTORY)
    except FileNotFoundError:
        return None
    except NotAQueue as error:
        _logger.error("%s; kept in quarantine/", error)
        quarantine.keep_file(directory, inbox.DIRECTORY)
        return None


def _remove_orphans(
    work: Directory,
    names: list[str],
    manifests: list[tuple[str, inbox.Manifest | None]],
    now_ms: int,
) -> None:
    """Removes parts and half-written manifests that were not published within a day."""
    named: set[str] = set()
    for _, manifest in manifests:
        if manifest is None:
            # It may name any of the parts; by the next time it is in quarantine.
            return
        named.update(part.name for part in manifest.parts)
    for name in names:
        made_ms = inbox.made_ms(name) if name.endswith((inbox.PART, TEMPORARY)) else None
        if made_ms is not None and now_ms - made_ms > inbox.ORPHAN_MS and name not in named:
            _logger.warning("inbox/%s was never published; removed", name)
            inbox.remove(work, name)


def _named_by_rubbish(work: Directory, manifest: str) -> list[str]:
    """Returns the parts whose names occur in a manifest that does not verify."""
    try:
        data = read_whole(work, manifest, inbox.MANIFEST_BYTES_MAX) or b""
    except Damaged:
        return []
    return [name for name in work.names() if name.endswith(inbox.PART) and name.encode() in data]


def _forget_one_time_writers(directory: Directory, work: Directory) -> None:
    """Drops the ledger lines of one-time writers once their manifests are gone."""
    ledger = inbox.own_ledger(directory)
    waiting = {manifest.writer for _, manifest in inbox.read_manifests(work) if manifest}
    kept = {
        writer: batch
        for writer, batch in ledger.adopted.items()
        if not writer.startswith(inbox.ONE_TIME) or writer in waiting
    }
    if len(kept) < len(ledger.adopted):
        # Sync first: a manifest that comes back after a power cut must find its line.
        work.sync()
        inbox.write_ledger(directory, replace(ledger, adopted=kept))


def _refuse(
    directory: Directory,
    work: Directory,
    losses: Losses,
    name: str,
    parts: list[str],
    error: _Refused,
) -> None:
    """Sets a batch aside; if it was good when handed in, puts the loss on record first."""
    _logger.error("inbox/%s is not adopted: %s", name, error)
    if error.damage is not None:
        losses.note(error.damage, gone=True)
        losses.save()
    for refused in [name, *parts]:
        with contextlib.suppress(FileNotFoundError):
            quarantine.keep_file(directory, refused, work)


def _check_batch(work: Directory, manifest: inbox.Manifest) -> list[tuple[Header, int]]:
    """Verifies a batch; returns the header of each part and the ms of its last record."""
    if manifest.kind not in ("", _KIND):
        raise _Refused(f"made for a queue of kind {manifest.kind!r:.60}; this is a {_KIND}")
    total = sum(part.count for part in manifest.parts)
    with contextlib.suppress(ForebayError, FileNotFoundError):
        return [_check_part(work, part) for part in manifest.parts]
    try:
        # Try once more: what a disk fails to read the first time may be whole.
        return [_check_part(work, part) for part in manifest.parts]
    except (ForebayError, FileNotFoundError) as error:
        # One bad part costs the whole batch: it is adopted as a whole or not at all.
        damage = Damage(f"{work.path}/{manifest.parts[0].name}", 0, 0, "", count=total)
        if isinstance(error, Damaged):
            damage = replace(error.damage, count=total)
        raise _Refused(error, replace(damage, reason=f"a batch that is refused: {error}")) from None


def _check_part(work: Directory, part: inbox.Part) -> tuple[Header, int]:
    """Verifies every frame of a part; returns its header and the ms of its last record."""
    path = f"{work.path}/{part.name}"
    file = open_readable(work, part.name)
    try:
        size = file.size()
        header = decode_header(file.pread(HEADER_BYTES_MAX, 0), path)
        if not header.layout.checked:
            raise Damaged(Damage(path, 0, size, "not a part of version 2 with records"))
        count, stop, last_ms = _count_frames(file, size, Frames(header), part.count)
    finally:
        file.close()
    if count != part.count or stop != size or size != part.size:
        reason = (
            f"{count} good records of {part.count} whose times do not fall, "
            f"in {stop} of {part.size} bytes"
        )
        raise Damaged(Damage(path, stop, size - stop, reason))
    if header.epoch_ms + last_ms > TIME_MS_MAX:
        raise Damaged(Damage(path, 0, size, f"times after {TIME_MS_MAX} ms"))
    return header, last_ms


def _count_frames(file: Content, size: int, frames: Frames, limit: int) -> tuple[int, int, int]:
    """Counts good frames, chunk by chunk; returns also where they stop and the ms of the last."""
    count, position, last_ms = 0, frames.layout.header_bytes, 0
    chunk_bytes = CHUNK_BYTES
    while count < limit and position < size:
        data = file.pread(min(chunk_bytes, size - position), position)
        found, stop, last_ms = verify(data, 0, count, frames.seed, limit - count, last_ms)
        count, position = count + found, position + stop
        chunk_bytes = CHUNK_BYTES
        if not found:
            wanted = frames.frame_size(data, 0)
            if wanted is None or not len(data) < wanted <= size - position:
                break
            chunk_bytes = wanted
    return count, position, last_ms


def _adopt(
    directory: Directory,
    segments: SegmentList,
    writer: LogWriter,
    work: Directory,
    manifest: inbox.Manifest,
    headers: list[tuple[Header, int]],
    ledger: inbox.Ledger,
) -> int:
    with writer.lock:
        writer.check()
        # Roll and sync with the lock held: under load another append would always come in between.
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
        if _may_be_decided(directory, moves):
            # Further appends would use the same offsets twice.
            writer.fail(error)
        raise
    for start, size in placed:
        segments.add(start, segment_name(start))
        segments.sizes[start] = size
    count = base - writer.written
    if placed:
        last, size = placed[-1]
        writer.adopted(End(base, last, size, headers[-1][0].salt), time_ms)
    clear_adoption(directory)
    return count


def _may_be_decided(directory: Directory, moves: list[inbox.Move]) -> bool:
    """Says whether an adoption that failed is in the ledger nevertheless, or may be.

    Other moves in the ledger are those of an earlier adoption that is finished: only its ledger
    could not be cleared.
    """
    try:
        return bool(moves) and inbox.read_ledger(directory).moves == moves
    except (OSError, ForebayError):
        return True


def finish_adoption(directory: Directory) -> bool:
    """Finishes an adoption that a crash interrupted; says whether there was one."""
    ledger = inbox.own_ledger(directory)
    if not ledger.moves:
        return False
    # Create the inbox again if it was removed: the missing segments then show when they are read.
    work = directory.directory(inbox.DIRECTORY, create=True)
    try:
        inbox.finish_moves(directory, work, ledger.moves)
    finally:
        work.close()
    return True


def clear_adoption(directory: Directory) -> None:
    """Forgets the moves of an adoption that is finished and published."""
    ledger = inbox.own_ledger(directory)
    if ledger.moves:
        inbox.write_ledger(directory, inbox.Ledger(ledger.adopted, []))
