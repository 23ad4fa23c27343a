"""Converts CBOR to JSON text, so that both are decoded by the same rules.

Byte strings become base64, times ISO 8601, decimals and UUIDs text, NaN and the infinities their
names. Values that JSON cannot represent, values above the limits of size and depth, and values that
refer to one another, which could grow without bound, are rejected with a reason.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import NoReturn
from uuid import UUID

from forebay.extras import optional

BYTES_MAX = 16 << 20
NESTING_MAX = 64
# Tags by which a value refers to another: shared values, shared strings and their marks.
_REFERENCES = (25, 28, 29, 256)


def decode(value: bytes) -> tuple[str | None, str | None]:
    """Returns a value as JSON text, or the reason why that is impossible."""
    # Imported here, because decoding JSON does not need it.
    cbor2 = optional("cbor2", "beats")

    if len(value) > BYTES_MAX:
        return None, f"CBOR of {len(value)} bytes; at most {BYTES_MAX}"
    stream = io.BytesIO(value)
    try:
        decoder = cbor2.CBORDecoder(
            stream,
            max_depth=NESTING_MAX,
            allow_duplicate_keys=False,
            semantic_decoders=_NO_REFERENCES,
        )
        found = decoder.decode()
        if stream.tell() != len(value):
            return None, f"not CBOR: {len(value) - stream.tell()} bytes after the value"
        return _to_text(found), None
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError) as error:
        return None, f"not CBOR: {error.__cause__ or error}"


def _to_text(value: object) -> str:
    try:
        return _dump(value)
    except ValueError:
        # JSON has no NaN or infinities, but Spark accepts their names for a DOUBLE.
        return _dump(_finite(value))


def _dump(value: object) -> str:
    return json.dumps(
        value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )


def _finite(value: object) -> object:
    """Replaces NaN and infinities with their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return value


def _plain(value: object) -> object:
    """Returns the JSON form of a value of a type that JSON does not have."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if repr(value) == "undefined":
        return None
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _refuse_reference(*_: object) -> NoReturn:
    raise ValueError("values that refer to one another are not supported")


_NO_REFERENCES = dict.fromkeys(_REFERENCES, _refuse_reference)
