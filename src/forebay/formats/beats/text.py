"""Events as JSON text, for people, pipes and tables. Page: docs/formats/beats.md.

JSON has no bytes and no NaN, and is always UTF-8, so these values become maps with one key:

    {"$bytes_b64": "…"}    bytes
    {"$float": "nan"}      nan, inf, -inf
    {"$str_b64": "…"}      text that is not UTF-8

A map key that is not UTF-8 becomes the text `$str_b64:` followed by its base64. The text of an
event reads back as the same event, except for the bits of a NaN. Rejects what an event cannot hold.

Also returns events as columns in Arrow's layout: numbers, and text with the end of each value.
Where possible it creates no object per field of an event. An event that cannot be decoded has no
row; it is listed with its reason, so that nothing is lost silently.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from forebay.errors import InvalidEvent, UndecodableEvent
from forebay.formats.beats.events import Event, decode_event
from forebay.kernels import compiled
from forebay.kernels.beats import NESTING_MAX, Transcoder

_BYTES = "$bytes_b64"
_FLOAT = "$float"
_TEXT = "$str_b64"
_TEXT_KEY = f"{_TEXT}:"
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KEYS = ("timestamp_ns", "flags", "meta", "fields")
# Keys that `forebay cat` adds: its lines can be put into a queue unchanged.
_IGNORED_KEYS = ("kind", "segment", "timestamp_ns_str")
_NANOSECONDS = re.compile(r"-?[0-9]{1,19}")


def event_document(event: Event) -> dict[str, Any]:
    """Returns an event as values that `json` accepts."""
    return {
        "timestamp_ns": event.timestamp_ns,
        "flags": event.flags,
        "meta": _plain(event.meta),
        "fields": _plain(event.fields),
    }


def event_text(event: Event) -> str:
    """Returns an event as one line of JSON."""
    return json_text(event_document(event))


def json_text(value: object) -> str:
    """Returns the canonical text of a plain value: no spaces, and no needless escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class TextDecoder:
    """Returns the parts of events as text, where possible without an object per field.

    One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._transcoder = Transcoder() if compiled else None

    def decode(self, data: bytes) -> tuple[int, int, bytes, bytes]:
        """Returns timestamp, flags, and meta and fields as JSON in UTF-8.

        Raises UndecodableEvent if the bytes hold no event.
        """
        parts = self._transcoder.event(data) if self._transcoder is not None else None
        return parts if parts is not None else decode_parts(data)


def decode_parts(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Returns the same as `TextDecoder.decode`, by decoding the whole event."""
    event = decode_event(data)
    meta, fields = json_text(_plain(event.meta)), json_text(_plain(event.fields))
    return event.timestamp_ns, event.flags, meta.encode(), fields.encode()


def parse_event(text: str | bytes, timestamp_ns: int | None = None) -> Event:
    """Parses an event from a line of JSON; `timestamp_ns` is used if it has no time."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidEvent(f"an event is a JSON map, not of type {type(document).__name__}")
    return make_event(document, timestamp_ns)


def make_event(document: Mapping[str, Any], timestamp_ns: int | None = None) -> Event:
    """Makes an event from a map with any of `timestamp_ns`, `flags`, `meta` and `fields`."""
    unknown = [key for key in document if key not in _KEYS + _IGNORED_KEYS]
    if unknown:
        raise InvalidEvent(f"an event has no key {unknown[0]!r}; it has {', '.join(_KEYS)}")
    time = _exact_time(document, timestamp_ns)
    if time is None:
        raise InvalidEvent("the event has no timestamp_ns")
    meta, fields = document.get("meta", {}), document.get("fields", {})
    return Event(time, document.get("flags", 0), _rich(meta, 2), _rich(fields, 2))


def _exact_time(document: Mapping[str, Any], timestamp_ns: int | None) -> Any:
    """Returns the time; the text is preferred, because a program may have rounded the number."""
    time, text = document.get("timestamp_ns", timestamp_ns), document.get("timestamp_ns_str")
    if isinstance(text, str) and _NANOSECONDS.fullmatch(text) and time in (int(text), float(text)):
        return int(text)
    return time


def _plain(value: Any) -> Any:
    """Returns a value in a form that `json` accepts."""
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        data = _bytes_of_bad_text(value)
        return value if data is None else {_TEXT: _base64(data)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: _base64(bytes(value))}
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def _plain_key(key: str) -> str:
    data = _bytes_of_bad_text(key)
    return key if data is None else _TEXT_KEY + _base64(data)


def _bytes_of_bad_text(value: str) -> bytes | None:
    if value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")
    return None


def _rich(value: Any, depth: int) -> Any:
    """Returns the value that a plain value represents."""
    if depth > NESTING_MAX + 2:
        raise InvalidEvent(f"the event is nested deeper than {NESTING_MAX}")
    if isinstance(value, list):
        return [_rich(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key in (_BYTES, _FLOAT, _TEXT):
            return _tagged(key, item)
    return {_rich_key(key): _rich(item, depth + 1) for key, item in value.items()}


def _rich_key(key: Any) -> Any:
    if isinstance(key, str) and key.startswith(_TEXT_KEY):
        return _unbase64(_TEXT, key.removeprefix(_TEXT_KEY)).decode("utf-8", "surrogateescape")
    return key


def _tagged(key: str, item: Any) -> Any:
    if not isinstance(item, str):
        raise InvalidEvent(f"{key} is of type {type(item).__name__}, not text")
    if key == _FLOAT:
        if item not in _FLOATS:
            raise InvalidEvent(f"{_FLOAT} is {item[:40]!r}; must be nan, inf or -inf")
        return _FLOATS[item]
    data = _unbase64(key, item)
    return data if key == _BYTES else data.decode("utf-8", "surrogateescape")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unbase64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidEvent(f"{key} is not base64") from None


# Arrow's ends have 32 bits, which limits the size of a batch.
TEXT_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class Text:
    """A column of text in UTF-8: the values joined in `data`, cut at `ends`, which start with 0."""

    data: bytes
    ends: array[int]


@dataclass(slots=True)
class EventColumns:
    """Some events, column by column. `numbers` holds the payload number of each row.

    `bad` lists the payloads that are not events: number and reason. `taken` is how many payloads
    were used: fewer than given if the text would have grown too large.
    """

    taken: int
    numbers: array[int]
    timestamps_ns: array[int]
    flags: array[int]
    meta: Text
    fields: Text
    bad: list[tuple[int, str]] = field(default_factory=list)


def decode_columns(
    payloads: Sequence[bytes], decoder: TextDecoder, text_bytes_max: int = TEXT_BYTES_MAX
) -> EventColumns:
    """Decodes payloads into columns, at least one of them."""
    rows: list[tuple[int, int, bytes, bytes]] = []
    bad: list[tuple[int, str]] = []
    room = text_bytes_max
    taken = 0
    for payload in payloads:
        try:
            row = decoder.decode(payload)
        except UndecodableEvent as error:
            bad.append((taken, str(error)))
            taken += 1
            continue
        room -= len(row[2]) + len(row[3])
        if room < 0 and rows:
            break
        rows.append(row)
        taken += 1
    timestamps, flags, metas, fields = zip(*rows, strict=True) if rows else ((), (), (), ())
    skipped = {number for number, _ in bad}
    numbers = (number for number in range(taken) if number not in skipped)
    return EventColumns(
        taken,
        array("q", numbers if bad else range(taken)),
        array("q", timestamps),
        array("I", flags),
        _text(metas),
        _text(fields),
        bad,
    )


def _text(parts: Sequence[bytes]) -> Text:
    return Text(b"".join(parts), array("i", accumulate(map(len, parts), initial=0)))
