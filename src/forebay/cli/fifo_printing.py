"""Prints the entries of a fifo, and damage in its place."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

from forebay import Entry, FifoReader
from forebay.cli import exits
from forebay.cli.fifo_inspection import end_damage
from forebay.cli.framing import join
from forebay.cli.inspection import owner_of
from forebay.cli.output import write_bytes
from forebay.cli.printing import Printer, framing_of
from forebay.damage import Damage


def print_fifo(
    path: str, *, salvage: bool, framing: str | None, as_json: bool, count: int | None
) -> int:
    """Prints what has not left a fifo, without a lock; that has expired is printed as well."""
    framing = framing_of(framing, as_json)
    printer = Printer(as_json=as_json, framing=framing, salvage=salvage)
    with FifoReader(path) as reader:
        # The owner first: one that ends meanwhile has finished what it was writing.
        owner = owner_of(reader.path)
        left = count
        for item in reader.scan():
            if left == 0:
                return exits.OK
            if isinstance(item, Damage):
                printer.damage(item)
                continue
            columns = (item.ids[:left], item.ttls[:left], item.values[:left])
            write_bytes(_json_lines(*columns) if as_json else join(columns[2], framing))
            left = None if left is None else left - len(columns[2])
        if left != 0:
            printer.end(end_damage(reader, owner))
    return exits.OK


def entries_text(entries: Sequence[Entry], framing: str, *, as_json: bool) -> bytes:
    """Returns entries as they are printed: the values, or a line of JSON each."""
    values = [entry.value for entry in entries]
    if not as_json:
        return join(values, framing)
    ids = [entry.id for entry in entries]
    return _json_lines(ids, [entry.ttl_seconds for entry in entries], values)


def _json_lines(ids: list[int], ttls: list[int], values: list[bytes]) -> bytes:
    return b"".join(
        b'{"kind":"fifo","id":%d,"time_ms":%d,"ttl_seconds":%d,"expires_ms":%b,"value_b64":"%b"}\n'
        % (
            entry_id,
            entry_id >> 16,
            ttl,
            b"%d" % ((entry_id >> 16) + ttl * 1000) if ttl else b"null",
            binascii.b2a_base64(value, newline=False),
        )
        for entry_id, ttl, value in zip(ids, ttls, values, strict=True)
    )
