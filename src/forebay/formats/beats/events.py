"""Beats events: the payload of a frame as Python values. Page: docs/formats/beats.md.

Reads CBOR (from version 1 on) and JSON (version 0), which differ in their first byte. Writes only
CBOR that the original reader accepts. Before it encodes a byte it rejects values that Beats would
not read back. When reading it rejects tags, and nesting and numbers beyond the limits.

Text that is not UTF-8 is a `str` with the bad bytes as lone surrogates ("surrogateescape"), so that
it is written back unchanged.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.errors import InvalidEvent, InvalidOption, RecordTooLarge, UndecodableEvent
from forebay.extras import optional
from forebay.formats.beats.bytes import EVENT_BYTES_MAX
from forebay.kernels import beats as kernel
from forebay.kernels.beats import NESTING_MAX, is_simple

if TYPE_CHECKING:
    import cbor2
else:
    cbor2 = optional("cbor2", "beats")

Value = Any
INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
FLAGS_MAX = 255
_KEYS = frozenset(["timestamp", "flags", "meta", "fields"])
_FLAGS_READ_MAX = 2**32 - 1
# The longest 64-bit numbers: -9223372036854775808, 18446744073709551615.
_DIGITS_MAX = 20
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REASONS = {
    kernel.TRUNCATED: "it ends within a value",
    kernel.TOO_DEEP: f"it is nested deeper than {NESTING_MAX}",
    kernel.TAGGED: "it holds a tag, which Beats never writes",
    kernel.KEY_NOT_TEXT: "a key of a map is not text",
    kernel.TRAILING: "bytes follow the event",
    kernel.MALFORMED: "it is not CBOR",
    kernel.SIMPLE_VALUE: "it holds an undefined simple value",
    kernel.NOT_A_MAP: "it is not a map",
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `timestamp_ns` counts from 1970, UTC; bit 0 of `flags` is "guaranteed send"."""

    timestamp_ns: int
    flags: int = 0
    meta: dict[str, Value] = field(default_factory=dict)
    fields: dict[str, Value] = field(default_factory=dict)


def encode_event(event: Event) -> bytes:
    """Returns the CBOR of an event; raises InvalidEvent if Beats would not read it back."""
    _check_integer("timestamp_ns", event.timestamp_ns, INT64_MIN, INT64_MAX)
    _check_integer("flags", event.flags, 0, FLAGS_MAX)
    for name, value in (("meta", event.meta), ("fields", event.fields)):
        if not isinstance(value, dict):
            raise InvalidEvent(f"{name} is {_kind(value)}; Beats needs a map, even if empty")
    document = {
        "timestamp": int(event.timestamp_ns),
        "flags": int(event.flags),
        "meta": event.meta if is_simple(event.meta) else _prepare(event.meta, "meta", 2),
        "fields": event.fields if is_simple(event.fields) else _prepare(event.fields, "fields", 2),
    }
    data = cbor2.dumps(document, default=_write_raw)
    if len(data) > EVENT_BYTES_MAX:
        raise RecordTooLarge(f"an event of {len(data)} bytes; at most {EVENT_BYTES_MAX}")
    return data


class _Raw:
    """A value that is already CBOR, because the library would not write it as Beats does."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def _write_raw(encoder: cbor2.CBOREncoder, value: object) -> None:
    assert isinstance(value, _Raw)
    encoder.write(value.data)


def _prepare(value: Value, where: str, depth: int) -> Value:
    """Returns a value in the form that the library must write; rejects what Beats does not read."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _prepare_text(value, where)
    if isinstance(value, int):
        _check_integer(where, value, INT64_MIN, UINT64_MAX)
        return int(value)
    if isinstance(value, float):
        # Half floats make Beats panic, and the library would write these three as half floats.
        return float(value) if math.isfinite(value) else _Raw(struct.pack(">Bd", 0xFB, value))
    if isinstance(value, dict):
        return _prepare_map(value, where, depth)
    if isinstance(value, list | tuple):
        _check_depth(where, depth)
        return [_prepare(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime):
        return _time_text(value, where)
    if isinstance(value, timedelta):
        nanoseconds = value // timedelta(microseconds=1) * 1000
        _check_integer(where, nanoseconds, INT64_MIN, INT64_MAX)
        return nanoseconds
    raise InvalidEvent(f"{where} is {_kind(value)}, which an event cannot hold")


def _prepare_map(value: dict[Value, Value], where: str, depth: int) -> dict[str, Value]:
    _check_depth(where, depth)
    prepared = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidEvent(f"{where} has a key that is {_kind(key)}; Beats reads text only")
        if not key:
            raise InvalidEvent(f"{where} has an empty key; Beats drops what follows it")
        prepared[_prepare_text(key, where)] = _prepare(item, f"{where}.{key}", depth + 1)
    return prepared


def _prepare_text(value: str, where: str) -> Value:
    if value.isascii() or _SURROGATES.search(value) is None:
        return str(value)
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidEvent(f"{where}: a lone surrogate is not text") from None
    # The head of a byte string, with the major type of text.
    head = cbor2.dumps(data)[: -len(data)]
    return _Raw(bytes([head[0] | 0x20]) + head[1:] + data)


def _time_text(value: datetime, where: str) -> str:
    """Returns a time as Beats writes it: UTC, with milliseconds, truncated and not rounded."""
    if value.tzinfo is None:
        raise InvalidEvent(f"{where} is a time without a time zone")
    utc = value.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03}Z".rjust(24, "0")


def _check_integer(where: str, value: Value, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEvent(f"{where} is {_kind(value)}, not an integer")
    if not least <= value <= most:
        raise InvalidEvent(f"{where} is out of range: it must be {least} to {most}")


def _check_depth(where: str, depth: int) -> None:
    if depth > NESTING_MAX:
        raise InvalidEvent(f"{where[:80]}… is nested deeper than {NESTING_MAX}")


def _kind(value: Value) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def join_events(payloads: Iterable[bytes]) -> bytes:
    """Returns encoded events as one buffer, each after its size in 4 bytes, little-endian."""
    return b"".join([len(payload).to_bytes(4, "little") + payload for payload in payloads])


def split_events(buffer: bytes | bytearray | memoryview, count: int) -> list[bytes]:
    """Returns the `count` encoded events of one buffer; rejects one with more or fewer."""
    payloads: list[bytes] = []
    position, end = 0, len(buffer)
    while position < end:
        start = position + 4
        position = start + int.from_bytes(buffer[position:start], "little")
        payloads.append(bytes(buffer[start:position]))
    if position > end or len(payloads) != count:
        what = "no whole number of" if position > end else str(len(payloads))
        raise InvalidOption(f"count = {count}: the buffer holds {what} records")
    return payloads


def decode_event(data: bytes) -> Event:
    """Reads an event; raises UndecodableEvent if the bytes do not hold one."""
    document = _decode_json(data) if data[:1] == b"{" else _decode_cbor(data)
    unknown = document.keys() - _KEYS
    if unknown:
        raise UndecodableEvent(f"the event has the unknown key {ascii(min(unknown))[:80]}")
    timestamp_ns = document.get("timestamp", 0)
    flags = document.get("flags", 0)
    _check_read_integer("timestamp", timestamp_ns, INT64_MIN, INT64_MAX)
    _check_read_integer("flags", flags, 0, _FLAGS_READ_MAX)
    maps = document.get("meta", {}), document.get("fields", {})
    if not isinstance(maps[0], dict) or not isinstance(maps[1], dict):
        raise UndecodableEvent("meta or fields of the event is not a map")
    return Event(timestamp_ns, flags, *maps)


def _check_read_integer(name: str, value: Value, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UndecodableEvent(f"{name} of the event is not an integer in its range")


def _decode_cbor(data: bytes) -> dict[str, Value]:
    state = kernel.check_cbor(data)
    if state < 0:
        raise UndecodableEvent(f"not an event: {_REASONS[state]}")
    try:
        document = cbor2.loads(data)
    except cbor2.CBORDecodeError:
        document = _decode_bad_text(data)
    if state == kernel.UNDEFINED:
        document = _replace(document, cbor2.undefined)
    assert isinstance(document, dict)
    return document


def _decode_bad_text(data: bytes) -> Value:
    try:
        return cbor2.loads(data, str_errors="surrogateescape")
    except cbor2.CBORDecodeError as error:
        raise UndecodableEvent(f"not an event: {error}") from None


def _replace(value: Value, undefined: object) -> Value:
    """Returns a value with None for every `undefined`, as Beats reads it."""
    if isinstance(value, dict):
        return {key: _replace(item, undefined) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, undefined) for item in value]
    return None if value is undefined else value


def _decode_json(data: bytes) -> dict[str, Value]:
    text = data.decode("utf-8", "replace")
    # The parser recurses: text with very many brackets must not reach it.
    if data.count(b"[") + data.count(b"{") > NESTING_MAX and _nesting(text) > NESTING_MAX:
        raise UndecodableEvent(f"not an event: {_REASONS[kernel.TOO_DEEP]}")
    try:
        document = json.loads(
            text, parse_int=_read_int, parse_float=_read_float, parse_constant=_refuse_constant
        )
    except ValueError as error:
        raise UndecodableEvent(f"not an event: {error}") from None
    if not isinstance(document, dict):
        raise UndecodableEvent(f"not an event: {_REASONS[kernel.NOT_A_MAP]}")
    return _mended(document) if _ESCAPED_SURROGATE.search(text) else document


def _nesting(text: str) -> int:
    """Returns how deep the brackets of a JSON text are nested, ignoring those in strings."""
    depth = deepest = 0
    for sign in re.sub(r'"(?:[^"\\]|\\.)*"?', "", text):
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def _read_int(text: str) -> int:
    if len(text) > _DIGITS_MAX or not INT64_MIN <= int(text) <= UINT64_MAX:
        raise ValueError("a number has more than 64 bits")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _mended(value: Value) -> Value:
    """Returns a value with U+FFFD for every lone surrogate, which is not a character."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return [_mended(item) for item in value] if isinstance(value, list) else value
