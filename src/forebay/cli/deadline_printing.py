"""Prints what the files of a deadline queue hold, and damage in its place."""

from __future__ import annotations

import binascii

from forebay.cli import exits
from forebay.cli.framing import join
from forebay.cli.output import write_bytes
from forebay.cli.printing import Printer, framing_of
from forebay.formats.deadline import Item
from forebay.formats.deadline_wal import Dequeued, Record
from forebay.frames import Damage
from forebay.queues.deadline_files import is_deadline_file, scan_file, scan_folder


def print_deadline_files(
    path: str, *, raw: bool, salvage: bool, framing: str | None, as_json: bool, count: int | None
) -> int:
    """Prints one file as it is, or the live items of a folder; of entries, values are printed."""
    framing = framing_of(framing, as_json)
    printer = Printer(as_json=as_json, framing=framing, salvage=salvage)
    items = scan_file(path) if is_deadline_file(path) else scan_folder(path, raw=raw)
    left = count
    for item in items:
        if left == 0:
            break
        if isinstance(item, Damage):
            if item.torn:
                printer.end(item)
            else:
                printer.damage(item)
            continue
        if as_json:
            write_bytes(_json_line(item))
        elif isinstance(item, Item):
            write_bytes(join([item.value], framing))
        left = None if left is None else left - 1
    return exits.OK


def _json_line(record: Record) -> bytes:
    key = b'"id":%d,"deadline_ms":%d' % (record.key.id, record.key.deadline_ms)
    if isinstance(record, Dequeued):
        row = (key, record.dequeue_count, record.time_ms)
        return b'{"kind":"deadline","type":"dequeued",%b,"dequeue_count":%d,"time_ms":%d}\n' % row
    if not isinstance(record, Item):
        return b'{"kind":"deadline","type":"tombstone",%b}\n' % key
    stats = record.stats
    return (
        b'{"kind":"deadline","type":"pending",%b,"enqueue_ms":%d,"requeue_ms":%d,'
        b'"dequeue_count":%d,"value_b64":"%b"}\n'
        % (
            key,
            stats.enqueue_ms,
            stats.requeue_ms,
            stats.dequeue_count,
            binascii.b2a_base64(record.value, newline=False),
        )
    )
