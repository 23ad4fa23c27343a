"""Prints the items of deadline queues, of their files, and damage in its place."""

from __future__ import annotations

import binascii
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forebay import DeadlineItem
from forebay.cli import exits
from forebay.cli.deadline_folder import Folder
from forebay.cli.framing import join
from forebay.cli.inspection import owner_of
from forebay.cli.output import say, write_bytes
from forebay.cli.printing import Printer, framing_of
from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.formats.deadline.items import BURIED_BIT, FileKind, Item, Key, Stats, file_name
from forebay.formats.deadline.wal import Dequeued, Record
from forebay.queues.deadline.names import list_files
from forebay.queues.deadline.original import is_deadline_file, scan_file, scan_folder


@dataclass(frozen=True, slots=True)
class Format:
    """How to print: as the verbs' options say."""

    as_json: bool
    framing: str | None
    salvage: bool
    count: int | None


def print_deadline(path: str, *, raw: bool, **options: Any) -> int:
    """Prints the live items of a queue by deadline, without a lock; `raw`: all its files hold.

    The options are those of `Format`.
    """
    if raw:
        _print(_raw_records(path), Format(**options))
        return exits.OK
    with Folder(path) as folder:
        _print(_live_records(folder), Format(**options))
    return exits.OK


def print_deadline_files(path: str, *, raw: bool, **options: Any) -> int:
    """Prints one file as it is, or the live items of a folder of the original program."""
    records = _file_records(path) if is_deadline_file(path) else scan_folder(path, raw=raw)
    _print(records, Format(**options))
    return exits.OK


def print_pending(path: str, **options: Any) -> int:
    """Prints the items that are due first, now or later; they stay."""
    with Folder(path) as folder:
        records = (
            record
            for record in _live_records(folder)
            if not (isinstance(record, Item) and record.buried)
        )
        return exits.OK if _print(records, Format(**options)) else exits.NOTHING


def items_text(
    items: Sequence[DeadlineItem], framing: str, *, as_json: bool, tokens: bool = False
) -> bytes:
    """Returns items as they are printed: the values, or a line of JSON each.

    With tokens each value has its token and a tab before it; in JSON the token is a field.
    """
    if as_json:
        return b"".join(
            json_line(as_record(item), token_text(item) if tokens else None) for item in items
        )
    if tokens:
        return join([f"{token_text(item)}\t".encode() + item.value for item in items], framing)
    return join([item.value for item in items], framing)


def token_text(item: DeadlineItem) -> str:
    """Returns what tells who holds an item: its id, and how often it was given out."""
    id, dequeue_count = item.token
    return f"{id}.{dequeue_count}"


def as_record(item: DeadlineItem) -> Item:
    """Makes of an item what the files hold, which is what is printed."""
    return Item(
        Key(*item.key),
        item.value,
        Stats(item.enqueue_ms, item.requeue_ms, item.dequeue_count),
        item.buried,
        item.reason.encode(),
    )


def json_line(record: Record, token: str | None = None) -> bytes:
    """Returns a record as one line of JSON."""
    id, deadline_ms = record.key.id, record.key.deadline_ms
    if isinstance(record, Dequeued):
        key = b'"id":%d,"deadline_ms":%d' % (id, deadline_ms)
        row = (key, record.dequeue_count, record.time_ms)
        return b'{"kind":"deadline","type":"dequeued",%b,"dequeue_count":%d,"time_ms":%d}\n' % row
    if not isinstance(record, Item):
        return b'{"kind":"deadline","type":"tombstone","id":%d,"deadline_ms":%d}\n' % (
            id,
            deadline_ms,
        )
    stats = record.stats
    end = b""
    if record.buried:
        deadline_ms &= ~BURIED_BIT
        end = b',"reason":%b' % json.dumps(record.reason.decode(errors="replace")).encode()
    elif token is not None:
        end = b',"token":"%b"' % token.encode()
    return (
        b'{"kind":"deadline","type":"%b","id":%d,"deadline_ms":%d,"enqueue_ms":%d,'
        b'"requeue_ms":%d,"dequeue_count":%d,"value_b64":"%b"%b}\n'
        % (
            b"buried" if record.buried else b"pending",
            id,
            deadline_ms,
            stats.enqueue_ms,
            stats.requeue_ms,
            stats.dequeue_count,
            binascii.b2a_base64(record.value, newline=False),
            end,
        )
    )


def _print(records: Iterator[Record | Damage], format: Format) -> int:
    """Prints records up to the count that is asked for; gives how many."""
    framing = framing_of(format.framing, format.as_json)
    printer = Printer(as_json=format.as_json, framing=framing, salvage=format.salvage)
    printed = 0
    for record in records:
        if printed == format.count:
            break
        if isinstance(record, Damage):
            if record.torn:
                printer.end(record)
            else:
                printer.damage(record)
            continue
        if format.as_json:
            write_bytes(json_line(record))
        elif isinstance(record, Item):
            write_bytes(join([record.value], framing))
        printed += 1
    return printed


def _live_records(folder: Folder) -> Iterator[Record | Damage]:
    """Yields what was found when the files were opened, then the items, then a torn end."""
    # The owner first: one that ends meanwhile has finished what it was writing.
    owner = owner_of(folder.path)
    yield from folder.damage
    yield from folder.items()
    if owner is None:
        yield from folder.torn


def _raw_records(path: str) -> Iterator[Record | Damage]:
    """Yields what every run and log holds, a file after the other."""
    for number, kind in list_files(os.listdir(path)):
        file = os.path.join(path, file_name(number, kind))
        try:
            yield from _file_records(file)
        except NotAQueue as error:
            yield Damage(file, 0, os.path.getsize(file), str(error))
        except FileNotFoundError:
            say(f"{file} was merged away before it was read")


def _file_records(path: str) -> Iterator[Record | Damage]:
    """Yields what a file holds; what looks like items in a run of counts is what they stand for."""
    counts = path.endswith(FileKind.DEQUEUED_RUN)
    for record in scan_file(path):
        if counts and isinstance(record, Item):
            yield Dequeued(record.key, record.stats.dequeue_count, record.stats.enqueue_ms)
        else:
            yield record
