"""Small checked documents: one line of JSON and one line with its CRC-32 in hex."""

from __future__ import annotations

import json
from typing import Any

from forebay.errors import Damaged
from forebay.frames import Damage
from forebay.kernels.checksum import crc32


def encode_document(fields: Any) -> bytes:
    """Returns the bytes of a document."""
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return body + f"\n{crc32(body):08x}\n".encode()


def decode_document(data: bytes, path: str) -> Any:
    """Returns the value of a document; raises `Damaged` if it does not verify."""
    body, _, check = data.rstrip(b"\n").rpartition(b"\n")
    if check != f"{crc32(body):08x}".encode():
        raise Damaged(Damage(path, 0, len(data), "checksum does not match"))
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Damaged(Damage(path, 0, len(data), f"not a document: {error}")) from None


def typed(name: str, value: object, kind: type[Any]) -> Any:
    """Returns a field of a document if it is of a type, else raises `ValueError`."""
    # The exact type: to Python, true is a whole number.
    if type(value) is not kind:
        raise ValueError(f"{name} = {value!r:.60}: must be of type {kind.__name__}")
    return value
