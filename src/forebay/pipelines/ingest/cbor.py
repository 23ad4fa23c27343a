"""CBOR to JSON text: from there on both are decoded by the same rules.

Byte strings become base64, times ISO 8601, decimals and UUIDs text, NaN and the infinities their
names. What has no place in JSON, what
is larger or nested deeper than the caps, and values that refer to one another, which can grow
without bound, are refused with a reason.
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

BYTES_MAX = 16 << 20
NESTING_MAX = 64
# Tags by which a value refers to another: shared values, shared strings and their marks.
_REFERENCES = (25, 28, 29, 256)


def decode(value: bytes) -> tuple[str | None, str | None]:
    """Returns one value as JSON text, or the reason why that cannot be."""
    # Imported here: where only JSON is decoded, nobody needs it.
    import cbor2

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
            return None, f"not CBOR: {len(value) - stream.tell()} bytes behind the value"
        return _to_text(found), None
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError) as error:
        return None, f"not CBOR that can be decoded: {error.__cause__ or error}"


def _to_text(value: object) -> str:
    try:
        return _dump(value)
    except ValueError:
        # JSON has no such numbers, but Spark takes their names for a DOUBLE.
        return _dump(_finite(value))


def _dump(value: object) -> str:
    return json.dumps(
        value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )


def _finite(value: object) -> object:
    """Puts names in the place of numbers that are none."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return value


def _plain(value: object) -> object:
    """Returns what JSON has for a value that it does not know."""
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
    raise TypeError(f"a value of type {type(value).__name__} has no place in JSON")


def _refuse_reference(*_: object) -> NoReturn:
    raise ValueError("values that refer to one another are refused")


_NO_REFERENCES = dict.fromkeys(_REFERENCES, _refuse_reference)
