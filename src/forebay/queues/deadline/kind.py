"""A deadline queue as one kind of queue among others: scan, put and lend through one protocol."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.formats.deadline.items import (
    BURIED_BIT,
    VALUE_BYTES_MAX,
    FileKind,
    Item,
    file_name,
)
from forebay.formats.deadline.wal import Dequeued, Record
from forebay.kernels.deadline import BATCH_BYTES, FRESH_BYTES
from forebay.queues.deadline.check import next_deadline
from forebay.queues.deadline.item import DeadlineItem, as_record
from forebay.queues.deadline.names import list_files
from forebay.queues.deadline.original import scan_file
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.deadline.reader import DeadlineReader
from forebay.queues.shared.rows import Lent, Limits, Rows, value_json
from forebay.storage.filesystem import DiskFilesystem, lock_owner

_BATCH_RECORDS = 256
# No other process can take its items while this one is alive.
_OWN_SECONDS = 10.0**8


def scan(path: str, *, raw: bool = False) -> Iterator[Rows | Damage]:
    """Yields the live items by deadline, buried ones last; `raw`: all that the files hold."""
    return in_batches(_raw_records(path) if raw else _live_records(path))


def peek(path: str) -> Iterator[Rows | Damage]:
    """Yields the items that are due first, now or later, without removing them."""
    records = _live_records(path)
    return in_batches(each for each in records if not (isinstance(each, Item) and each.buried))


def next_ms(path: str) -> int | None:
    """Returns when the next item is due; None if there is none."""
    with DeadlineReader(path, salvage=True) as reader:
        return next_deadline(reader)


def limits(queue: DeadlineQueue) -> Limits:
    """Returns the limits of a queue: an item alone is a batch of the log, with its head."""
    return Limits(VALUE_BYTES_MAX, BATCH_BYTES + FRESH_BYTES, queue.options.max_bytes)


def put(
    queue: DeadlineQueue,
    values: list[bytes],
    *,
    delay: float | None = None,
    deadline: int | None = None,
) -> tuple[int, int]:
    """Enqueues items, due after a delay, at a deadline in ms, or now; returns first and last id."""
    ids = queue.enqueue_many(values, delay=delay, deadline_ms=deadline)
    return ids[0], ids[-1]


def kick(queue: DeadlineQueue, id: int | None = None, *, count: int | None = None) -> int:
    """Makes a buried item pending again, or the `count` oldest ones; returns how many."""
    return queue.kick(id, count=count)


def lender(queue: DeadlineQueue) -> Callable[[int], AbstractContextManager[Lent]]:
    """Returns a function that lends items that are due; they are released as each block ends."""
    return partial(_lend, queue)


def lease(queue: DeadlineQueue, count: int, *, seconds: float) -> Lent:
    """Leases items, which are due again after some time; each has its token before its value.

    A lease is a requeue: after the delay any caller may get the item. It is durable on return, so
    a token that was reported stays valid after this process has ended.
    """
    items = queue.dequeue_many(count, lease_seconds=_OWN_SECONDS)
    for item in items:
        queue.requeue(item, delay=seconds)
    queue.sync()
    return Lent(_rows_of(items, tokens=True), queue.damage)


@contextlib.contextmanager
def _lend(queue: DeadlineQueue, count: int) -> Iterator[Lent]:
    items = queue.dequeue_many(count, lease_seconds=_OWN_SECONDS)
    yield Lent(_rows_of(items), queue.damage)
    if items:
        queue.release_many(items)
        queue.sync()


def in_batches(records: Iterable[Record | Damage]) -> Iterator[Rows | Damage]:
    """Yields records in batches, and each damage where it occurs."""
    batch: list[Record] = []
    for record in records:
        damage = isinstance(record, Damage)
        if batch and (damage or len(batch) == _BATCH_RECORDS):
            yield _rows_of_records(batch)
            batch = []
        if isinstance(record, Damage):
            yield record
        else:
            batch.append(record)
    yield _rows_of_records(batch)


def _live_records(path: str) -> Iterator[Record | Damage]:
    """Yields the damage found when the files were opened, then the items, then a torn end."""
    with DeadlineReader(path, salvage=True) as reader:
        # Ask for the owner first: if it ends meanwhile, it has finished what it was writing.
        owner = lock_owner(reader.path)
        yield from reader.picture.damage
        yield from reader.entries()
        if owner is None:
            yield from reader.picture.torn


def _raw_records(path: str) -> Iterator[Record | Damage]:
    """Yields what every run and log holds, one file after the other."""
    directory = DiskFilesystem().open_directory(path)
    try:
        names = directory.names()
    finally:
        directory.close()
    for number, kind in list_files(names):
        file = os.path.join(path, file_name(number, kind))
        try:
            yield from file_records(file)
        except NotAQueue as error:
            yield Damage(file, 0, 0, str(error))
        except FileNotFoundError:
            yield Damage(file, 0, 0, "it was merged away before it was read", torn=True)


def file_records(path: str) -> Iterator[Record | Damage]:
    """Yields what a file holds; rows that look like items in a run of counts become counts."""
    counts = path.endswith(FileKind.DEQUEUED_RUN)
    for record in scan_file(path):
        if counts and isinstance(record, Item):
            yield Dequeued(record.key, record.stats.dequeue_count, record.stats.enqueue_ms)
        else:
            yield record


def _rows_of_records(records: list[Record]) -> Rows:
    values = [record.value if isinstance(record, Item) else None for record in records]
    return Rows(values, lambda index: _line(records[index]))


def _rows_of(items: Sequence[DeadlineItem], *, tokens: bool = False) -> Rows:
    """Returns items to print; each token comes before the value, or as a field."""

    def line(index: int) -> bytes:
        item = items[index]
        return _line(as_record(item), _token(item) if tokens else None)

    if tokens:
        return Rows([b"%b\t%b" % (_token(item), item.value) for item in items], line)
    return Rows([item.value for item in items], line)


def _token(item: DeadlineItem) -> bytes:
    """Returns the token that identifies a lease: the item's id, and how often it was dequeued."""
    return b"%d.%d" % item.token


def _line(record: Record, token: bytes | None = None) -> bytes:
    id, deadline_ms = record.key.id, record.key.deadline_ms
    if isinstance(record, Item):
        what = b"buried" if record.buried else b"pending"
        deadline_ms = deadline_ms & ~BURIED_BIT if record.buried else deadline_ms
    else:
        what = b"dequeued" if isinstance(record, Dequeued) else b"tombstone"
    head = b'{"kind":"deadline","type":"%b","id":%d,"id_str":"%d","deadline_ms":%d'
    line = head % (what, id, id, deadline_ms)
    if isinstance(record, Dequeued):
        line += b',"dequeue_count":%d,"time_ms":%d' % (record.dequeue_count, record.time_ms)
    if isinstance(record, Item):
        stats = record.stats
        times = b',"enqueue_ms":%d,"requeue_ms":%d,"dequeue_count":%d,%b'
        row = (stats.enqueue_ms, stats.requeue_ms, stats.dequeue_count, value_json(record.value))
        line += times % row
        if record.buried:
            line += b',"reason":%b' % json.dumps(record.reason.decode(errors="replace")).encode()
        elif token is not None:
            line += b',"token":"%b"' % token
    return line + b"}\n"
