"""A log behind the protocol of all kinds of queue: scan, put and lend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from forebay.damage import Damage
from forebay.errors import InvalidOption
from forebay.formats.fflg import LAYOUTS
from forebay.queues.log.check import end_damage, newest_version
from forebay.queues.log.consumer import Start
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import RecordBatch
from forebay.queues.log.staged import Record
from forebay.queues.shared.rows import Lent, Limits, Rows, value_json


def scan(
    path: str, *, start: Start = "earliest", until: Start | None = None
) -> Iterator[Rows | Damage]:
    """Yields the records from one place up to another, and damage where it occurs between them."""
    with LogReader(path) as reader:
        # Look for the owner first: one that closes meanwhile has finished what it was writing.
        owner = reader.owner()
        stop = None if until is None else reader.resolve(until)
        for item in reader.scan(start, stop):
            yield item if isinstance(item, Damage) else rows_of(item)
        end = end_damage(reader, owner)
        if end is not None and (stop is None or stop >= reader.end):
            yield end


def peek(path: str, *, consumer: str) -> Iterator[Rows | Damage]:
    """Yields what a consumer reads next, without removing it."""
    yield from scan(path, start=_place(path, consumer))


def tail(path: str, *, count: int, follow: bool = False) -> Iterator[Rows | Damage | int]:
    """Yields the last records; with `follow` it goes on for ever with what is appended.

    A number says how many records were removed before they could be read; 0 means nothing is new.
    """
    with LogReader(path) as reader:
        offset = max(reader.begin, reader.end - count)
        while True:
            for item in reader.scan(offset) if offset < reader.end else ():
                yield item if isinstance(item, Damage) else rows_of(item)
            offset = max(offset, reader.end)
            if not follow:
                return
            yield 0
            if reader.has_news():
                reader.refresh()
            if offset < reader.begin:
                yield reader.begin - offset
                offset = reader.begin


def next_ms(path: str, *, consumer: str) -> int | None:
    """Returns 0 if a consumer has records to read, else None."""
    with LogReader(path) as reader:
        return 0 if reader.consumers().get(consumer, reader.begin) < reader.end else None


def limits(log: Log) -> Limits:
    """Returns the limits of what a log accepts."""
    version = log.options.version
    if version is None:
        with LogReader(log.path) as reader:
            version = newest_version(reader)
    layout = LAYOUTS[version]
    room = log.options.segment_bytes - layout.header_bytes - layout.frame_bytes
    empty = f"version {version} cannot store" if layout.zero_size_ends else None
    return Limits(room, layout.frame_bytes, log.options.max_bytes, empty)


def put(log: Log, values: list[bytes]) -> tuple[int, int]:
    """Appends records; returns the first offset and the last."""
    first = log.append_many(values)
    return first, first + len(values) - 1


def lender(log: Log, *, consumer: str) -> Callable[[int], AbstractContextManager[Lent]]:
    """Returns a function that lends a consumer's next records; a block's end saves its place."""
    source = log.consumer(consumer)

    @contextlib.contextmanager
    def lend(count: int) -> Iterator[Lent]:
        records = source.read(count)
        yield Lent(_rows_of_records(records))
        if records:
            source.commit()

    return lend


def rows_of(batch: RecordBatch) -> Rows:
    """Returns the records of a batch as rows to print."""
    times = batch.times

    def line(index: int) -> bytes:
        time_ms = None if times is None else batch.epoch_ms + times[index]
        return _line(batch.offset + index, time_ms, batch.values[index])

    return Rows(batch.values, line)


def _rows_of_records(records: Sequence[Record]) -> Rows:
    def line(index: int) -> bytes:
        record = records[index]
        return _line(record.offset, record.time_ms, record.value)

    return Rows([record.value for record in records], line)


def _line(offset: int, time_ms: int | None, value: bytes) -> bytes:
    time = b"null" if time_ms is None else b"%d" % time_ms
    row = (offset, time, value_json(value))
    return b'{"kind":"log","offset":%d,"time_ms":%b,%b}\n' % row


def _place(path: str, consumer: str) -> int:
    with LogReader(path) as reader:
        places = reader.consumers()
    if consumer not in places:
        raise InvalidOption(f"{path} has no consumer {consumer!r}")
    return places[consumer]
