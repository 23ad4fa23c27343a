"""What an archive needs to know of a Beats queue: which segments are finished, and if a copy is.

Only of directories that Forebay owns: their record `contents` says which segments are finished and
durable, and how many events each holds. Offsets are those of `place.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from forebay.damage import Damage
from forebay.errors import ForebayError, NotAQueue
from forebay.queues.archive.manifest import NUMBER_MAX, STARTS, Finished, HostQueue, Manifest, Row
from forebay.queues.beats.access import read_key
from forebay.queues.beats.contents import Held, encode_contents, read_contents
from forebay.queues.beats.mark import Mark, MarkFile, encode_mark
from forebay.queues.beats.names import CONTENTS_NAME, MARK_NAME, STATE_NAME
from forebay.queues.beats.place import offset_of, split_offset
from forebay.queues.beats.reader import BeatsReader
from forebay.queues.beats.recovery import measure_segment
from forebay.queues.beats.segments import Access, EventSegment, damage_of
from forebay.storage.filesystem import Directory
from forebay.storage.readable import Store

# A version is recognised by more than a header: a reader asks the object itself.
HEAD_BYTES = 0
# An owner removes what was acknowledged, whoever else reads.
HAS_CURSORS = False


def on_host(path: str, *, without: str, key_file: str | None = None) -> HostQueue:
    """Returns what is on the host."""
    del without
    with BeatsReader(path, salvage=True, key_file=key_file) as reader:
        mark = reader.tail
        if mark is None:
            raise NotAQueue(f"{path} belongs to another program; archived are queues that we own")
        _, held = read_contents(reader.directory)
        finished = []
        for number in reader.segments.bases:
            if reader.is_unfinished(number) or (number not in held and not mark.clean):
                break
            name = reader.segments.names[number]
            count = _count(reader, number, name, held.get(number), key_file)
            if count:
                finished.append(Finished(name, offset_of(number, 0), offset_of(number, count)))
        numbers = reader.segments.bases
        begin = offset_of(numbers[0], 0) if numbers else offset_of(mark.segment, 0)
        return HostQueue(
            path=reader.path,
            kind="beats",
            queue_id=mark.queue_id.hex(),
            incarnation=mark.incarnation,
            # Numbers of segments are not used again, so nothing finished is ever replaced.
            starts=(NUMBER_MAX,) * STARTS,
            begin=begin,
            end=finished[-1].end if finished else begin,
            written=offset_of(mark.segment, mark.events or 0),
            time_ms=0,
            segments=finished,
        )


def _count(
    reader: BeatsReader, number: int, name: str, held: Held | None, key_file: str | None
) -> int:
    """Returns how many events a finished segment holds; counts what a Beat left."""
    if held is not None and held.events is not None:
        return held.events
    access = Access(read_key(key_file), None, {} if held is None else {number: held})
    with closing(EventSegment(reader.directory, number, name, access, None)) as segment:
        return measure_segment(segment, None).count


def side_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the files that a reader of a Beats queue expects beside the segments."""
    queue_id = bytes.fromhex(manifest.queue_id)
    held = {}
    for row in manifest.segments:
        number, _ = split_offset(row.first)
        held[number] = Held(row.end - row.first, row.bytes)
    number, events = split_offset(manifest.end)
    total = sum(each.events or 0 for each in held.values())
    mark = Mark(
        queue_id=queue_id,
        boot_id=bytes(16),
        written=total,
        durable=total,
        segment=number,
        position=1,
        raw_size=held[number].size if number in held else 0,
        clean=True,
        incarnation=manifest.incarnation,
        events=events,
    )
    return {MARK_NAME: encode_mark(mark), CONTENTS_NAME: encode_contents(queue_id, held)}


def joined_files(
    directory: Directory, manifest: Callable[[], Manifest]
) -> dict[str, Callable[[], bytes] | None]:
    """Returns the side files of a queue of which nothing was acknowledged and removed."""

    def content() -> bytes:
        file = MarkFile.open(directory, write=False)
        if file is None:
            return b""
        with closing(file):
            mark = file.read()
        return b"" if mark is None else encode_mark(mark._replace(places=None))

    def contents() -> bytes:
        queue_id, held = read_contents(directory)
        if queue_id is None:
            return b""
        for row in manifest().segments:
            number, _ = split_offset(row.first)
            held.setdefault(number, Held(row.end - row.first, row.bytes))
        return encode_contents(queue_id, held)

    return {MARK_NAME: content, CONTENTS_NAME: contents, STATE_NAME: None}


def damage_in(store: Store, row: Row, *, key_file: str | None = None) -> Damage | None:
    """Reads all frames of a segment; returns the first that does not verify, None if all do."""
    number, _ = split_offset(row.first)
    held = Held(row.end - row.first, row.bytes)
    access = Access(read_key(key_file), None, {number: held})
    path = f"{store.path}/{row.name}"
    try:
        segment = EventSegment(store, number, row.name, access, None)
    except (ForebayError, FileNotFoundError) as error:
        return damage_of(error, path, held, newest=False)
    with closing(segment):
        found = segment.scan(segment.start, finished=True)
        return next((item for item in found if isinstance(item, Damage)), None)
