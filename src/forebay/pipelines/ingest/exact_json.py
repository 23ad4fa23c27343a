"""Converts values of a JSON record that Spark's `from_json` would alter into a form that it keeps.

For a STRING column, `from_json` formats a number again and loses digits. It reads a number too
large for a DOUBLE as infinity, and 200 for a TINYINT as -56. It rounds for a DECIMAL and accepts
text for one. It accepts a number for a TIMESTAMP, and treats a time without a date as a time of
today. A lone surrogate becomes a question mark.

`suspects` returns a regular expression that finds every record to which one of these may happen,
and few others: only those are processed here. For them `Exact` returns JSON in which each such
value of a STRING column is a string, or the reason why the record is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


EXACT_TYPE = pyarrow.struct(
    [(name, pyarrow.string()) for name in ("text", "json", "reason", "rescued")]
)
EXACT_DDL = "text STRING, json STRING, reason STRING, rescued STRING"
# Numbers that Spark would format differently in `_rescued`: a fraction, an exponent, many digits,
# -0.
RENDERED_NUMBER = r"[:\[,\s]-?(?:[0-9]+[.eE]|[0-9]{19}|(?<=-)0)"
# The start of an escape that gives a character by its number.
ESCAPE_MARK = "\\u"
ESCAPE = r"\\u"
_SURROGATE = r"\\u[dD][89a-fA-F]"
_FOUND_CHARACTERS = 40
# Half a step above the largest FLOAT: numbers from here on are rounded to infinity.
_FLOAT_END = float.fromhex("0x1.ffffffp+127")
_DATE = re.compile(r"\s*(?!0000)[0-9]{4}(?![0-9])")
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value must be: the name of a Spark type, and the shapes inside it."""

    kind: str
    text: str
    precision: int = 0
    scale: int = 0
    item: Shape | None = None
    fields: dict[str, Shape] = field(default_factory=dict)


def shape_of(kind: DataType) -> Shape:
    """Returns the shape of a type."""
    from pyspark.sql import types as T

    name, text = kind.typeName(), kind.simpleString()
    if isinstance(kind, T.StructType):
        return Shape(name, text, fields={one.name: shape_of(one.dataType) for one in kind})
    if isinstance(kind, T.ArrayType):
        return Shape(name, text, item=shape_of(kind.elementType))
    if isinstance(kind, T.MapType):
        return Shape(name, text, item=shape_of(kind.valueType))
    if isinstance(kind, T.DecimalType):
        return Shape("decimal", text, kind.precision, kind.scale)
    if isinstance(kind, T.StringType | T.CharType | T.VarcharType):
        return Shape("string", text)
    return Shape(name, text)


def suspects(columns: StructType) -> tuple[str, str | None]:
    """Returns two regular expressions, for Java, that find records which `Exact` must process.

    The first needs to be tried only on records that contain an escape by number. The second is None
    if no column needs it.
    """
    patterns: list[str] = []
    names: set[str] = set()
    for name, shape in _named(shape_of(columns)):
        leaf, depth = shape, 0
        while leaf.item is not None:
            leaf, depth = leaf.item, depth + 1
        if leaf.kind not in _SUSPECT:
            continue
        names.add(name)
        value = _SUSPECT[leaf.kind](leaf)
        if depth:
            # No expression can determine which of the nested values is meant.
            value = rf"[\[{{](?s:.*?){_HUGE}" if leaf.kind in ("float", "double") else r"[\[{]"
        patterns.append(rf'{re.escape(name)}"\s*+:\s*+{value}')
    if any(set(name) & set('"\\/') or not name.isprintable() for name in names):
        # The name may be written in several ways.
        return ESCAPE, "[{]"
    # All start with the same character: records without a match cost next to nothing.
    plain = f'"(?:{"|".join(patterns)})' if patterns else None
    if not all(map(str.isascii, names)):
        return ESCAPE, plain
    # A name may be written with escapes.
    return (rf"{_SURROGATE}|\\u00[2-7]" if names else _SURROGATE), plain


def _named(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Returns all fields with their names, including nested ones."""
    for name, inner in shape.fields.items():
        yield name, inner
        yield from _named(inner)
    if shape.item is not None:
        yield from _named(shape.item)


_HUGE = r"(?:[0-9.][eE]\+?[0-9]{2}|[0-9]{30})"
_SUSPECT: dict[str, Callable[[Shape], str]] = {
    "string": lambda _: r"[-0-9\[{]",
    "float": lambda _: r"-?(?:[0-9]{30}|[0-9.]++[eE]\+?[0-9]{2})",
    "double": lambda _: r"-?(?:[0-9]{30}|[0-9.]++[eE]\+?[0-9]{2})",
    "byte": lambda _: r"-?[0-9]{3}",
    "decimal": lambda shape: rf"(?!n|{_decimal(shape)}[\s,}}\]])",
    "timestamp": lambda _: r'(?!n|"[0-9]{4}-)',
    "date": lambda _: r'(?!n|"[0-9]{4}-)',
}


def _decimal(shape: Shape) -> str:
    whole = rf"-?[0-9]{{1,{max(1, shape.precision - shape.scale)}}}"
    return whole + (rf"(?:\.[0-9]{{1,{shape.scale}}})?" if shape.scale else "")


@dataclass(frozen=True, slots=True)
class Exact:
    """Processes records one by one; `convert` turns values of other formats into JSON.

    If it does, decimals arrive as text, and text is accepted for a DECIMAL.
    """

    shape: Shape
    convert: Callable[[bytes], tuple[str | None, str | None]] | None = None

    def __call__(self, values: pyarrow.Array) -> pyarrow.Array:
        """Returns `text`, `json`, `reason` and `rescued` for each value of an Arrow array.

        `text` is the original JSON, or null if the caller has it. `json` is the form that Spark
        keeps.
        """
        rows = [self._row(value) for value in values.to_pylist()]
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        arrays = [pyarrow.array(column, pyarrow.string()) for column in columns]
        return pyarrow.StructArray.from_arrays(arrays, fields=list(EXACT_TYPE))

    def _row(self, value: Any) -> tuple[str | None, str | None, str | None, str | None]:
        if value is None:
            return None, None, None, None
        if self.convert is None:
            return None, *self.look(value)
        text, reason = self.convert(value)
        if text is None:
            return None, None, reason, None
        return text, *self.look(text)

    def look(self, text: str) -> tuple[str | None, str | None, str | None]:
        """Returns the JSON for Spark, the reason of a rejection, and the undeclared members."""
        start = _skip(text, 0)
        if text[start : start + 1] != "{":
            # Spark reports what the value is.
            return text, None, None
        try:
            _, end = _scan(text, start)
        except ValueError:
            return None, "not JSON", None
        except RecursionError:
            return None, "nested too deeply", None
        if _skip(text, end) < len(text):
            return None, "not JSON", None
        members = list(_members(text, start))
        reasons: list[str] = []
        if re.search(_SURROGATE, text) is not None and _has_lone_surrogate(members):
            reasons.append("a lone surrogate")
        made = []
        for member in members:
            shape = self.shape.fields.get(member.name)
            raw = member.raw
            if shape is not None:
                try:
                    raw = self._fit(text, member.start, member.end, shape)
                except _MisfitError:
                    found = member.value if raw[:1] == '"' else raw
                    reasons.append(
                        f"{member.name} is not {shape.text}: {found[:_FOUND_CHARACTERS]}"
                    )
            made.append(f"{member.key}:{raw}")
        if reasons:
            # A lone surrogate is not text: it stays an escape.
            reason = "; ".join(reasons).encode("utf-8", "backslashreplace").decode()
            return None, reason, None
        return f"{{{','.join(made)}}}", None, self._rescued(text, members)

    def _rescued(self, text: str, members: list[_Member]) -> str | None:
        """Returns the undeclared members as an object; all of them if a name occurs twice."""
        unknown = [member for member in members if member.name not in self.shape.fields]
        if not unknown:
            return None
        if len({member.name for member in members}) < len(members) or _repeats_a_name(text):
            return text
        ordered = sorted(unknown, key=lambda member: member.name)
        return f"{{{','.join(f'{member.key}:{member.raw}' for member in ordered)}}}"

    def _fit(self, text: str, start: int, end: int, shape: Shape) -> str:
        """Returns the text of a value in a form that Spark keeps; raises if it does not fit."""
        raw = text[start:end]
        first = raw[:1]
        if first == "n":
            return raw
        if shape.fields and first == "{":
            made = []
            for member in _members(text, start):
                inner = shape.fields.get(member.name)
                fitted = member.raw
                if inner is not None:
                    fitted = self._fit(text, member.start, member.end, inner)
                made.append(f"{member.key}:{fitted}")
            return f"{{{','.join(made)}}}"
        if shape.item is not None and shape.kind == "array" and first == "[":
            fitted_items = [self._fit(text, *span, shape.item) for span in _items(text, start)]
            return f"[{','.join(fitted_items)}]"
        if shape.item is not None and shape.kind == "map" and first == "{":
            pairs = [
                f"{member.key}:{self._fit(text, member.start, member.end, shape.item)}"
                for member in _members(text, start)
            ]
            return f"{{{','.join(pairs)}}}"
        if shape.kind == "string":
            # Spark keeps the text of true and false.
            return raw if first in '"tf' else json.dumps(raw, ensure_ascii=False)
        check = _CHECKS.get(shape.kind)
        if check is not None and not check(raw, shape, self.convert is not None):
            raise _MisfitError
        return raw


def looking(exact: Exact) -> Callable[[pyarrow.Array], pyarrow.Array]:
    """Returns a function for Spark, which determines its kind by the annotations."""

    def look(values: pyarrow.Array) -> pyarrow.Array:
        return exact(values)

    return look


def _fits_double(raw: str, shape: Shape, converted: bool) -> bool:
    # Spark itself checks text and anything else that is not a number.
    if raw[:1] not in "-0123456789":
        return True
    value = abs(float(raw))
    return value < _FLOAT_END if shape.kind == "float" else value != float("inf")


def _fits_byte(raw: str, shape: Shape, converted: bool) -> bool:
    if raw[:1] not in "-0123456789" or len(raw) > len("-128"):
        return True
    return not raw.lstrip("-").isdecimal() or -128 <= int(raw) <= 127


def _fits_decimal(raw: str, shape: Shape, converted: bool) -> bool:
    if raw[:1] == '"':
        if not converted:
            return False
        raw = json.loads(raw)
    elif raw[:1] not in "-0123456789":
        return True
    try:
        number = Decimal(raw)
    except InvalidOperation:
        return False
    if not number.is_finite():
        return False
    if not number:
        return True
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).strip("0")
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    exponent += trailing
    # Digits before the point, and after it.
    whole, fraction = len(significant) + exponent, max(0, -exponent)
    return whole <= shape.precision - shape.scale and fraction <= shape.scale


def _fits_time(raw: str, shape: Shape, converted: bool) -> bool:
    return raw[:1] == '"' and _DATE.match(json.loads(raw)) is not None


# Whether a value fits; values that Spark itself rejects may pass.
_CHECKS: dict[str, Callable[[str, Shape, bool], bool]] = {
    "string": lambda *_: True,
    "float": _fits_double,
    "double": _fits_double,
    "byte": _fits_byte,
    "decimal": _fits_decimal,
    "timestamp": _fits_time,
    "date": _fits_time,
}


class _MisfitError(ValueError):
    """A value does not fit its type."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object: name and value, and their source texts."""

    name: str
    value: Any
    key: str
    raw: str
    start: int
    end: int


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Numbers stay texts: some have more digits than Python converts.
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_float=str, parse_int=str, parse_constant=_refuse
).raw_decode


def _members(text: str, start: int) -> Iterator[_Member]:
    """Returns the members of the object at a position of a text that was scanned before."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        name, key_end = _scan(text, at)
        value_start = _skip(text, _skip(text, key_end) + 1)
        value, end = _scan(text, value_start)
        yield _Member(name, value, text[at:key_end], text[value_start:end], value_start, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Returns the bounds of the items of the array at a position."""
    at = _skip(text, start + 1)
    while text[at] != "]":
        _, end = _scan(text, at)
        yield at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _has_lone_surrogate(members: list[_Member]) -> bool:
    try:
        for member in members:
            json.dumps([member.name, member.value], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _repeats_a_name(text: str) -> bool:
    """Returns whether an object in a text has the same name twice."""
    repeated = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        repeated = repeated or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=note, parse_float=str, parse_int=str)
    return repeated
