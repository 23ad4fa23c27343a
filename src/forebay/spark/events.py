"""Beats queues as the source sees them: their ranges, and how one is read.

The offset of an event is its segment and its place in it, as one number (`queues/beats/place.py`).
Frames do not tell their place, so a segment is read by one task. An end that a crash left
unfinished costs nothing that was promised: it is no damage among the records, only in its table.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow
from pyarrow import compute

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, InvalidOption, UnsupportedVersion
from forebay.formats.beats.text import EventColumns, Text, TextDecoder, decode_columns
from forebay.formats.beats.versions import segment_name
from forebay.queues.beats.place import SEGMENTS_MAX, Place, offset_of, split_offset
from forebay.queues.beats.reader import BeatsReader, Payloads
from forebay.queues.beats.segments import is_harmless
from forebay.spark import bounds as bounds_of
from forebay.spark.bounds import Extent, end_offset, lose
from forebay.spark.event_live import BeatsLive
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Wanted
from forebay.spark.rows import CONSTANT, Rows
from forebay.spark.typed_text import typed

BY_OFFSET = True
NO_STREAM = ""
KIND = "beats"
# The name under which the place of `state.dat` is known.
STATE = "state"
_COLUMNS = ("offset", "timestamp", "value", "position", "timestamp_ns", "flags", "meta", "fields")
_TEXT_BYTES_MAX = 16 << 20
_REMEDY = "mode PERMISSIVE or DROPMALFORMED reads round it, table=damage lists it"
_logger = logging.getLogger(__name__)


def open_reader(path: str, options: SourceOptions, *, durable_only: bool = False) -> BeatsReader:
    """Opens a Beats queue without owning it."""
    if options.start_ms is not None or options.end_ms is not None:
        raise InvalidOption(
            f"startingTimestamp, endingTimestamp: {path} is a Beats queue, whose times do not "
            "rise; filter by the column timestamp"
        )
    reader = BeatsReader(path, salvage=True, key_file=options.key_file, durable_only=durable_only)
    if reader.segments.bases[-1:] > [SEGMENTS_MAX - 2]:
        reader.close()
        raise UnsupportedVersion(f"{path} numbers its segments beyond {SEGMENTS_MAX}")
    return reader


def queue_id(reader: BeatsReader) -> str:
    """Returns the id of the queue; empty if another program wrote it, or its file is lost."""
    return "" if reader.tail is None else reader.tail.queue_id.hex()


def bounds(reader: BeatsReader, options: SourceOptions) -> tuple[int, int]:
    """Returns the offsets at which a batch read begins and ends."""
    extent = _extent(reader)
    start = bounds_of.first_offset(extent, options, "earliest")
    return start, end_offset(extent, options)


def begin(reader: BeatsReader) -> int:
    """Returns the offset of the earliest event that can be there."""
    return offset_of(reader.numbers[0], 0) if reader.numbers else 0


def gone(reader: BeatsReader) -> str | None:
    """Says which segments were acknowledged and removed; None if none."""
    place = reader.place()
    first = reader.segments.bases[0] if reader.segments.bases else place.segment
    # An empty first segment may be removed by recovery; then nothing is acknowledged yet.
    if not min(first, place.segment):
        return None
    return f"{reader.path} begins at segment {first}: those before it were acknowledged and removed"


def first_offset(reader: BeatsReader, options: SourceOptions) -> int:
    """Returns the offset at which a stream begins: the latest, if the options do not say."""
    return bounds_of.first_offset(_extent(reader), options, "latest")


def follow(path: str, options: SourceOptions) -> BeatsLive:
    """Opens a Beats queue for a stream."""
    return BeatsLive(open_reader(path, options, durable_only=True))


def holds(reader: BeatsReader, incarnation: int, end: int) -> bool:
    """Says whether a queue still has what it had up to `end`: segments do not shrink."""
    segment, index = split_offset(end)
    return segment in reader.segments.names or index == 0


def resume(
    reader: BeatsReader,
    first: int,
    before: dict[str, Any],
    place: dict[str, Any],
    options: SourceOptions,
) -> Iterator[Range]:
    """Yields the ranges of a stream's batch: the spans that its place names."""
    if reader.tail is not None and place["id"] not in ("", reader.tail.queue_id.hex()):
        lose(options, f"{reader.path} was made again: events that were planned of it are gone")
        return
    for start, end in place["spans"]:
        segment, index = split_offset(start)
        name = reader.segments.names.get(segment)
        if name is None:
            lose(options, f"{reader.path}: {end - start} events of segment {segment} went unread")
            continue
        position = before.get("position", 0) if start == before.get("offset") else 0
        size = reader.size_of(name)
        yield Range(
            KIND, reader.path, start, end, name, segment, 0, size, position=position if index else 0
        )


def plan(reader: BeatsReader, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
    """Yields the ranges of a queue from offset `start` to `end`: one a segment."""
    for segment in reader.numbers:
        first, last = offset_of(segment, 0), offset_of(segment + 1, 0)
        if last <= start or first >= end:
            continue
        name = reader.segments.names.get(segment, segment_name(segment))
        size = reader.size_of(name)
        yield Range(KIND, reader.path, max(start, first), min(end, last), name, segment, 0, size)


def read(wanted: Wanted, parts: Iterable[Range]) -> Iterator[Any]:
    """Yields the events of ranges as Arrow record batches."""
    decoder = TextDecoder()
    for queue, some in itertools.groupby(parts, key=lambda part: part.queue):
        with BeatsReader(queue, salvage=True, key_file=wanted.key_file) as reader:
            for part in some:
                yield from _read_one(reader, wanted, part, decoder)


def read_damage(wanted: Wanted, part: Range) -> Iterator[Damage]:
    """Yields what does not verify in a range, what holds no event, and unfinished ends."""
    decoder = TextDecoder()
    with BeatsReader(part.queue, salvage=True, key_file=wanted.key_file) as reader:
        for item in _scan(reader, part):
            if isinstance(item, Damage):
                yield item
                continue
            for _, _, bad in _decoded(item, decoder):
                yield from bad


def consumer_rows(reader: BeatsReader) -> Iterator[dict[str, Any]]:
    """Yields a row for the place in `state.dat`."""
    for name, offset in _places(reader).items():
        yield {
            "queue": reader.path,
            "kind": KIND,
            "name": name,
            "type": "state",
            "offset": offset,
        }


def segment_rows(reader: BeatsReader) -> Iterator[dict[str, Any]]:
    """Yields a row for each segment; the count is null where the header does not tell it."""
    for segment in reader.segments.bases:
        name = reader.segments.names[segment]
        row = {
            "queue": reader.path,
            "kind": KIND,
            "segment": name,
            "first_offset": offset_of(segment, 0),
            "bytes": reader.size_of(name),
            "sealed": segment != reader.segments.bases[-1],
        }
        opened = reader.open_segment(segment)
        if opened is not None and not isinstance(opened, Damage):
            row["version"] = opened.header.layout.version
            row["count"] = opened.header.count or None
            row["sealed"] = row["sealed"] or bool(opened.header.count)
            opened.close()
        yield row


def _extent(reader: BeatsReader) -> Extent:
    newest = reader.numbers[-1] + 1 if reader.numbers else 0
    end = offset_of(newest, 0)
    return Extent(reader.path, begin(reader), end, end, lambda: _places(reader))


def _places(reader: BeatsReader) -> dict[str, int]:
    place = reader.place()
    return {STATE: offset_of(place.segment, place.frame_index)}


def _scan(reader: BeatsReader, part: Range) -> Iterator[Payloads | Damage]:
    """Yields the frames of a range, and the damage in it with its offset.

    Raises `DataLoss` if what was planned is not there any more.
    """
    segment, index = split_offset(part.start)
    stop = part.end - offset_of(segment, 0)
    start = Place(segment, part.position, index) if part.position else Place(segment)
    reached = 0
    # One that went since the plan was made is no damage: its owner may have removed it.
    lacking = segment in reader.missing and not part.size
    there = lacking or segment in reader.segments.names
    found = reader.scan_segment(segment, start) if there else ()
    for item in found:
        first = item.index if isinstance(item, Payloads) else item.offset or 0
        if first >= stop:
            break
        if isinstance(item, Payloads):
            reached = item.index + len(item.payloads)
            if reached > index:
                yield item.part(index, stop)
            continue
        reached = max(reached, first + (1 if item.count is None else item.count))
        if reached > index:
            yield replace(item, offset=offset_of(segment, first))
    if lacking:
        return
    if reached < stop and not (_is_whole(part) and part.segment in reader.directory.names()):
        raise DataLoss(f"{part.queue}: {part.segment} was removed or cut before it was read")


def _is_whole(part: Range) -> bool:
    """Says whether a range goes to the end of its segment, wherever that is."""
    return part.end == offset_of(part.base + 1, 0)


def _read_one(
    reader: BeatsReader, wanted: Wanted, part: Range, decoder: TextDecoder
) -> Iterator[Any]:
    rows = Rows(wanted.schema, part)
    try:
        for item in _scan(reader, part):
            if isinstance(item, Damage):
                yield from _damage_rows(wanted, rows, item)
                continue
            for some, columns, bad in _decoded(item, decoder):
                if len(columns.numbers):
                    yield _record_batch(rows, some, columns)
                for damage in bad:
                    yield from _damage_rows(wanted, rows, damage)
    except DataLoss as error:
        if wanted.fail_on_data_loss:
            raise
        _logger.warning("%s", error)


def _damage_rows(wanted: Wanted, rows: Rows, damage: Damage) -> Iterator[Any]:
    harmless = is_harmless(damage)
    if wanted.mode == "FAILFAST" and not harmless:
        raise Damaged(damage, _REMEDY)
    if wanted.mode == "PERMISSIVE" and "damage" in wanted.schema.names and not harmless:
        yield rows.of_damage(damage)
    else:
        _logger.warning("%s, byte %s: %s", damage.path, damage.position, damage.reason)


def _decoded(
    item: Payloads, decoder: TextDecoder
) -> Iterator[tuple[Payloads, EventColumns, list[Damage]]]:
    """Yields events as columns, some at a time, and the frames that hold no event as damage."""
    while item.payloads:
        columns = decode_columns(item.payloads, decoder, _TEXT_BYTES_MAX)
        bad = [
            Damage(
                item.path,
                item.positions[number],
                len(item.payloads[number]),
                reason,
                offset=offset_of(item.segment, item.index + number),
                count=1,
            )
            for number, reason in columns.bad
        ]
        yield item, columns, bad
        item = item.part(item.index + columns.taken, item.index + len(item.payloads))


def _record_batch(rows: Rows, item: Payloads, columns: EventColumns) -> Any:
    count = len(columns.numbers)
    made = _Columns(item, columns)
    arrays = []
    for field in rows.schema:
        if field.name in CONSTANT:
            name = item.path.rpartition("/")[2]
            arrays.append(rows.constant(field.name, count, name))
        elif field.name in _COLUMNS:
            arrays.append(made.column(field))
        else:
            # Damage, and what only other kinds have.
            arrays.append(pyarrow.nulls(count, field.type))
    return pyarrow.record_batch(arrays, schema=rows.schema)


class _Columns:
    """The columns of some events, each made when it is asked for."""

    def __init__(self, item: Payloads, columns: EventColumns) -> None:
        self._item = item
        self._columns = columns

    def column(self, field: Any) -> Any:
        """Returns one column, in the type of its field."""
        made = getattr(self, f"_{field.name}")()
        if field.name in ("meta", "fields") and field.type != made.type:
            return typed(made, field.type)
        return made

    def _numbers(self) -> Any:
        return _integers(self._columns.numbers)

    def _offset(self) -> Any:
        return compute.add(self._numbers(), offset_of(self._item.segment, self._item.index))

    def _position(self) -> Any:
        return pyarrow.array(self._item.positions, pyarrow.int64()).take(self._numbers())

    def _timestamp_ns(self) -> Any:
        return _integers(self._columns.timestamps_ns)

    def _timestamp(self) -> Any:
        times = self._timestamp_ns()
        # Division goes towards zero; times before 1970 must go down as well.
        low = compute.if_else(compute.less(times, 0), compute.subtract(times, 999), times)
        return compute.divide(low, 1000).cast(pyarrow.timestamp("us", tz="UTC"))

    def _flags(self) -> Any:
        return pyarrow.array(self._columns.flags, pyarrow.int64())

    def _meta(self) -> Any:
        return _text(self._columns.meta)

    def _fields(self) -> Any:
        return _text(self._columns.fields)

    def _value(self) -> Any:
        parts = (
            '{"timestamp_ns":',
            self._timestamp_ns().cast(pyarrow.string()),
            ',"flags":',
            self._flags().cast(pyarrow.string()),
            ',"meta":',
            self._meta(),
            ',"fields":',
            self._fields(),
            "}",
        )
        joined = compute.binary_join_element_wise(*parts, "")
        return joined.cast(pyarrow.binary())


def _integers(numbers: Any) -> Any:
    return pyarrow.Array.from_buffers(
        pyarrow.int64(), len(numbers), [None, pyarrow.py_buffer(numbers)]
    )


def _text(text: Text) -> Any:
    buffers = [None, pyarrow.py_buffer(text.ends), pyarrow.py_buffer(text.data)]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(text.ends) - 1, buffers)
