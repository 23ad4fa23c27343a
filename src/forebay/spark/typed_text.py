"""Columns of JSON objects as structs of types that a user declared.

The rules are those of Spark's `from_json`: a field that is missing or does not fit is null, an
undeclared field is left out, and a STRING takes any value as its JSON text. Arrow's reader converts
batches in which everything fits; other batches are converted value by value.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow
from pyarrow import json as arrow_json
from pyarrow import types

from forebay.errors import InvalidOption
from forebay.formats.beats.text import json_text

_WHOLE_NUMBERS = (types.is_int8, types.is_int16, types.is_int32, types.is_int64)
_PLAIN = (types.is_string, types.is_boolean, types.is_float32, types.is_float64, *_WHOLE_NUMBERS)


def check_type(name: str, kind: Any) -> None:
    """Raises `InvalidOption` if a column of JSON cannot be converted to a type."""
    if types.is_struct(kind):
        for field in kind:
            check_type(f"{name}.{field.name}", field.type)
    elif types.is_list(kind):
        check_type(f"{name}[]", kind.value_type)
    elif not any(fits(kind) for fits in _PLAIN):
        raise InvalidOption(
            f"schema: {name} is {kind}; declare it as STRING and use from_json, or as a struct, an "
            "array, a string, a boolean or a number"
        )


def typed(texts: Any, kind: Any) -> Any:
    """Returns an array of JSON texts as an array of structs."""
    try:
        return _by_arrow(texts, kind)
    except pyarrow.ArrowInvalid:
        return pyarrow.array([_value(json.loads(text), kind) for text in texts.to_pylist()], kind)


def _by_arrow(texts: Any, kind: Any) -> Any:
    data = b"\n".join(text.as_buffer() for text in texts) + b"\n"
    table = arrow_json.read_json(
        pyarrow.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pyarrow.schema(list(kind)), unexpected_field_behavior="ignore"
        ),
    )
    columns = [table.column(field.name).combine_chunks() for field in kind]
    return pyarrow.StructArray.from_arrays(columns, fields=list(kind))


def _value(value: Any, kind: Any) -> Any:
    """Returns a value converted to a type; None if it does not fit."""
    if value is None:
        return None
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return None
        return {field.name: _value(value.get(field.name), field.type) for field in kind}
    if types.is_list(kind):
        if not isinstance(value, list):
            return None
        return [_value(item, kind.value_type) for item in value]
    if types.is_string(kind):
        return value if isinstance(value, str) else json_text(value)
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if types.is_floating(kind):
        return float(value)
    bound = 1 << (kind.bit_width - 1)
    return value if isinstance(value, int) and -bound <= value < bound else None
