"""JSON records of every type of value, and what a table must hold of each: a model in plain Python.

It shares nothing with the decoder. A record is written from tokens whose meaning is known when they
are made, so nothing has to be parsed to know what is expected.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

SCHEMA = (
    "s STRING, n BIGINT, i INT, h SMALLINT, y TINYINT, f DOUBLE, e FLOAT, d DECIMAL(10,2), "
    "o BOOLEAN, t TIMESTAMP, w DATE, b BINARY, a ARRAY<STRING>, m MAP<STRING, DOUBLE>, "
    "u STRUCT<s: STRING, d: DECIMAL(4,1)>"
)
_STRINGS = ["", "a", "é", "日本", '"', "\\", "a\nb", "\U0001f600", "2024", "1.10", "null", "\u2028"]
_INTEGERS = [0, 1, -1, 127, 128, 200, -128, -129, 32767, 32768, 2**31 - 1, 2**31, 2**63 - 1, 2**63]
_INTEGERS += [-(2**63), 10**20, 12345678, 123456789, 1700000000, 10**38, 10**40]
_FRACTIONS = ["1.10", "1.005", "0.001", "1e2", "1E+2", "-0.0", "1e400", "-1e400", "1e39", "1e-400"]
_FRACTIONS += ["12345678901234567890.120", "3.4028235e38", "99999999.99", "0.1", "1.0", "5e-1"]
# Text, and the time that it is; None: it is none.
_TIMES: list[tuple[str, datetime | None]] = [
    ("2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("2024-01-02T03:04:05.000001Z", datetime(2024, 1, 2, 3, 4, 5, 1, tzinfo=UTC)),
    ("2024-01-02 03:04:05.123456+02:00", datetime(2024, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)),
    ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ("1066-10-14", datetime(1066, 10, 14, tzinfo=UTC)),
    ("2024", datetime(2024, 1, 1, tzinfo=UTC)),
    ("12:30", None),
    ("1700000000", None),
    ("20240102", None),
    ("yesterday", None),
    ("2024-02-30T00:00:00Z", None),
]
_DATES: list[tuple[str, date | None]] = [
    ("2024-02-29", date(2024, 2, 29)),
    ("9999-12-31", date(9999, 12, 31)),
    ("0001-01-01", date(1, 1, 1)),
    ("2024", date(2024, 1, 1)),
    ("2024-02-30", None),
    ("20240102", None),
    ("19000", None),
]
_LONE = ["\\ud800", "\\udc00\\ud800", "a\\udfff"]


class Rejected(Exception):
    """The record is to be rejected."""


@dataclass(frozen=True)
class Token:
    """A JSON value: its text, its kind, and what it means."""

    raw: str
    kind: str
    value: Any = None

    @property
    def bad(self) -> bool:
        """Says whether a lone surrogate is in it."""
        return self.kind == "lone" or (
            self.kind in ("array", "object") and any(one.bad for _, one in self.value)
        )


@dataclass(frozen=True)
class Record:
    """A record: its bytes, and its members as they stand in it."""

    text: bytes
    members: list[tuple[str, Token]]

    def decoded(self) -> dict[str, Any]:
        """Returns the columns; raises `Rejected`."""
        if any(token.bad for _, token in self.members):
            raise Rejected
        row = dict.fromkeys(COLUMNS)
        for name, token in self.members:
            if name in COLUMNS and token.kind != "null":
                row[name] = COLUMNS[name](token)
        return row

    def rescued(self) -> str | None:
        """Returns the members that are not declared, numbers as they were written."""
        rest = {name: token for name, token in self.members if name not in COLUMNS}
        if not rest:
            return None
        return f"{{{','.join(f'{json.dumps(name)}:{one.raw}' for name, one in rest.items())}}}"


def make_record(draw: random.Random) -> Record:
    """Makes a record: most fields as they are declared, some of any kind."""
    names = draw.sample([*COLUMNS, "x", "z"], draw.randrange(1, 6))
    if draw.random() < 0.4:
        # The key by which duplicates are told.
        names = ["s", "t"]
    members = [(name, _member(draw, name)) for name in names]
    gap = draw.choice(["", " ", "\n\t "])
    parts = [f"{_name(draw, name)}{gap}:{gap}{token.raw}" for name, token in members]
    text = f"{gap}{{{gap}{f'{gap},{gap}'.join(parts)}{gap}}}{gap}"
    return Record(text.encode(), members)


def _name(draw: random.Random, name: str) -> str:
    return f'"\\u{ord(name):04x}"' if draw.random() < 0.05 else f'"{name}"'


def _member(draw: random.Random, name: str) -> Token:
    if draw.random() < 0.2 or name not in _USUAL:
        return any_token(draw)
    return _USUAL[name](draw)


def any_token(draw: random.Random, depth: int = 0) -> Token:
    """Makes a value of any kind."""
    makers = [_null, _boolean, _integer, _fraction, _string, _string]
    if depth < 2:
        makers += [_array, _object]
    if draw.random() < 0.03:
        return Token(f'"{draw.choice(_LONE)}"', "lone")
    return draw.choice(makers)(draw)


def _null(draw: random.Random) -> Token:
    return Token("null", "null")


def _boolean(draw: random.Random) -> Token:
    value = draw.random() < 0.5
    return Token("true" if value else "false", "boolean", value)


def _integer(draw: random.Random) -> Token:
    value = draw.choice([draw.choice(_INTEGERS), draw.randrange(-200, 200)])
    return Token(str(value), "integer", value)


def _fraction(draw: random.Random) -> Token:
    raw = draw.choice(
        [draw.choice(_FRACTIONS), f"{draw.uniform(-1000, 1000):.{draw.randrange(1, 20)}f}"]
    )
    return Token(raw, "fraction", raw)


def _string(draw: random.Random) -> Token:
    return _text(draw, draw.choice(_STRINGS))


def _text(draw: random.Random, value: str) -> Token:
    return Token(json.dumps(value, ensure_ascii=draw.random() < 0.5), "string", value)


def _array(draw: random.Random) -> Token:
    items = [any_token(draw, 2) for _ in range(draw.randrange(3))]
    raw = f"[{', '.join(item.raw for item in items)}]"
    return Token(raw, "array", [("", item) for item in items])


def _object(draw: random.Random) -> Token:
    members = {name: any_token(draw, 2) for name in draw.sample("sdkq", draw.randrange(3))}
    raw = f"{{{', '.join(f'{json.dumps(name)}: {one.raw}' for name, one in members.items())}}}"
    return Token(raw, "object", [*members.items()])


def _of(*values: Any) -> Callable[[random.Random], Token]:
    return lambda draw: _text(draw, draw.choice(values))


_USUAL: dict[str, Callable[[random.Random], Token]] = {
    "s": _string,
    "n": _integer,
    "i": _integer,
    "h": _integer,
    "y": _integer,
    "f": _fraction,
    "e": _fraction,
    "d": _fraction,
    "o": _boolean,
    "t": _of(*(text for text, _ in _TIMES)),
    "w": _of(*(text for text, _ in _DATES)),
    "b": _of("aGk=", "", "AP8=", "no base64!"),
    "a": _array,
    "m": _object,
    "u": _object,
}


def _as_string(token: Token) -> str | None:
    return token.value if token.kind == "string" else token.raw


def _as_integer(bits: int) -> Callable[[Token], int]:
    def convert(token: Token) -> int:
        if token.kind != "integer" or not -(1 << bits - 1) <= token.value < 1 << bits - 1:
            raise Rejected
        return int(token.value)

    return convert


def _as_double(token: Token) -> float:
    if token.kind not in ("integer", "fraction"):
        raise Rejected
    value = float(token.raw)
    if value in (float("inf"), float("-inf")):
        raise Rejected
    return value


def _as_float(token: Token) -> float:
    try:
        found: float = struct.unpack("<f", struct.pack("<f", _as_double(token)))[0]
    except OverflowError:
        raise Rejected from None
    return found


def _as_decimal(precision: int, scale: int) -> Callable[[Token], Decimal]:
    def convert(token: Token) -> Decimal:
        if token.kind not in ("integer", "fraction"):
            raise Rejected
        value = Decimal(token.raw)
        if abs(value) >= 10 ** (precision - scale) or value != round(value, scale):
            raise Rejected
        return abs(round(value, scale)) if not value else round(value, scale)

    return convert


def _as_boolean(token: Token) -> bool:
    if token.kind != "boolean":
        raise Rejected
    return bool(token.value)


def _known(known: list[tuple[str, Any]]) -> Callable[[Token], Any]:
    def convert(token: Token) -> Any:
        found = dict(known).get(token.value) if token.kind == "string" else None
        if found is None:
            raise Rejected
        return found

    return convert


def _as_binary(token: Token) -> bytes:
    if token.kind != "string":
        raise Rejected
    try:
        return base64.b64decode(token.value, validate=True)
    except ValueError:
        raise Rejected from None


def _as_array(token: Token) -> list[str | None]:
    if token.kind != "array":
        raise Rejected
    return [None if one.kind == "null" else _as_string(one) for _, one in token.value]


def _as_map(token: Token) -> list[list[Any]]:
    if token.kind != "object":
        raise Rejected
    return [[name, None if one.kind == "null" else _as_double(one)] for name, one in token.value]


def _as_struct(token: Token) -> dict[str, Any]:
    if token.kind != "object":
        raise Rejected
    inner = dict(token.value)
    row: dict[str, Any] = {"s": None, "d": None}
    for name, convert in (("s", _as_string), ("d", _as_decimal(4, 1))):
        if name in inner and inner[name].kind != "null":
            row[name] = convert(inner[name])
    return row


COLUMNS: dict[str, Callable[[Token], Any]] = {
    "s": _as_string,
    "n": _as_integer(64),
    "i": _as_integer(32),
    "h": _as_integer(16),
    "y": _as_integer(8),
    "f": _as_double,
    "e": _as_float,
    "d": _as_decimal(10, 2),
    "o": _as_boolean,
    "t": _known(_TIMES),
    "w": _known(_DATES),
    "b": _as_binary,
    "a": _as_array,
    "m": _as_map,
    "u": _as_struct,
}
