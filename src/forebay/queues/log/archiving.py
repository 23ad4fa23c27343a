"""What an archive needs to know of a log: which segments are finished, and whether a copy is good.

A segment is finished once the next one exists, or the log was closed, and all of it is durable:
then neither the owner nor a recovery changes it any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.formats.fflg import HEADER_BYTES_MAX
from forebay.queues.archive.manifest import Finished, HostQueue, Manifest, Row
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import UNREADABLE, OpenSegment, damage_of
from forebay.storage.filesystem import Directory
from forebay.storage.readable import Store
from forebay.storage.segments import scan_segment
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import Tail, TailFile, encode_tail

# The first bytes of a segment, which a manifest repeats.
HEAD_BYTES = HEADER_BYTES_MAX
HAS_CURSORS = True


def on_host(path: str, *, without: str, key_file: str | None = None) -> HostQueue:
    """Returns what is on the host; `without` is the cursor of the archiver itself."""
    del key_file
    with LogReader(path, salvage=True) as reader:
        tail = reader.tail
        if tail is None:
            raise NotAQueue(f"{path} has no tail that is true; open it once, then archive it")
        finished = []
        for base, following in itertools.pairwise([*reader.segments.bases, None]):
            assert base is not None
            end = reader.written if following is None else following
            if (following is None and not tail.clean) or not base < end <= tail.durable:
                break
            finished.append(Finished(reader.segments.names[base], base, end))
        return HostQueue(
            path=reader.path,
            kind="log",
            queue_id=tail.queue_id.hex(),
            incarnation=tail.incarnation,
            starts=tail.starts,
            begin=reader.begin,
            end=finished[-1].end if finished else reader.begin,
            written=reader.end,
            time_ms=tail.time_ms,
            segments=finished,
            readers=_readers(reader, without),
        )


def _readers(reader: LogReader, without: str) -> dict[str, int]:
    cursors = {name: place for name, place in reader.cursors().items() if name != without}
    try:
        return {**cursors, **reader.consumers()}
    except Damaged:
        # It is not known where they are: the owner trims nothing then.
        return {**cursors, "?": 0}


def side_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the files that a reader of a log expects beside the segments."""
    last = manifest.segments[-1] if manifest.segments else None
    tail = Tail(
        queue_id=bytes.fromhex(manifest.queue_id),
        boot_id=bytes(16),
        written=manifest.end,
        durable=manifest.end,
        segment=last.first if last is not None else manifest.end,
        position=last.bytes if last is not None else 0,
        time_ms=manifest.time_ms,
        clean=True,
        incarnation=manifest.incarnation,
        starts=manifest.starts,
        begin=manifest.begin,
    )
    return {TAIL: encode_tail(tail)}


def joined_files(
    directory: Directory, manifest: Callable[[], Manifest]
) -> dict[str, Callable[[], bytes] | None]:
    """Returns the `tail` of a log that begins where its archive begins."""

    def content() -> bytes:
        file = TailFile.open(directory, write=False)
        if file is None:
            return b""
        tail = file.read()
        file.close()
        if tail is None or tail.begin is None:
            return b""
        return encode_tail(tail._replace(begin=min(tail.begin, manifest().begin)))

    return {TAIL: content}


def damage_in(store: Store, row: Row, *, key_file: str | None = None) -> Damage | None:
    """Reads all frames of a segment; returns the first that does not verify, None if all do."""
    del key_file
    try:
        segment = OpenSegment(store, row.name, row.first)
    except (*UNREADABLE, FileNotFoundError) as error:
        return damage_of(error, f"{store.path}/{row.name}")
    try:
        if segment.damage is not None:
            return segment.damage
        count = row.end - row.first
        for item in scan_segment(
            segment.file,
            segment.path,
            segment.frames,
            position=segment.frames.layout.header_bytes,
            expected=count,
            limit=count,
        ):
            if isinstance(item, Damage):
                return item
        return None
    finally:
        segment.file.close()
