"""Records as lines of JSON.

A record that is a JSON object goes as it is; any other text becomes `{"value": …}`, and bytes
that are not UTF-8 `{"value_b64": …}`. No object is made for what a record holds.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from forebay.forward.outputs import Context, EventRecord, Gap, Record


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: all of its fields are skipped, and checked on the way."""


_decoder = msgspec.json.Decoder(_Object)
_GAP = "forebay_gap"


def json_lines(records: Sequence[Record]) -> bytes:
    """Returns records as lines."""
    values = [record.value for record in records]
    body = b"\n".join([*values, b""])
    if isinstance(records[0], EventRecord) or not _are_lines(body, len(values)):
        return b"\n".join([*map(line_of, records), b""])
    return body


def _are_lines(body: bytes, count: int) -> bool:
    """Says whether bytes are so many JSON objects in UTF-8, one on each line: the usual case."""
    if body.count(b"\n") != count or b"\r" in body:
        return False
    try:
        found = len(_decoder.decode_lines(body))
        return found == count and (body.isascii() or body.decode() is not None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def line_of(record: Record) -> bytes:
    """Returns a record as one line, without its end."""
    if isinstance(record, EventRecord):
        if record.meta == b"{}":
            return record.value
        return with_field(record.value, b'"@metadata":' + record.meta)
    return as_object(record.value)


def as_object(value: bytes) -> bytes:
    """Returns bytes as a JSON object on one line."""
    if is_object(value):
        if b"\n" in value or b"\r" in value:
            # Between tokens: in a text they would not be JSON.
            return value.replace(b"\n", b" ").replace(b"\r", b" ")
        return value
    try:
        return b'{"value":' + msgspec.json.encode(value.decode()) + b"}"
    except UnicodeDecodeError:
        return b'{"value_b64":"' + base64.b64encode(value) + b'"}'


def is_object(value: bytes) -> bool:
    """Says whether bytes are one JSON object in UTF-8."""
    try:
        _decoder.decode(value)
        # What is skipped is checked for all but UTF-8.
        return value.isascii() or value.decode() is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def with_field(document: bytes, field: bytes) -> bytes:
    """Returns a JSON object with one more field at its end."""
    inner = document.rstrip()[:-1].rstrip()
    return inner + (b"" if inner.endswith(b"{") else b",") + field + b"}"


def gap_document(gap: Gap, context: Context) -> bytes:
    """Returns the record that tells of a gap."""
    facts = {
        "queue": context.queue,
        "first": gap.first,
        "last": None if gap.end is None else gap.end - 1,
        "count": gap.count,
        "reason": gap.reason,
    }
    return msgspec.json.encode({_GAP: facts})
