"""A second decoder and encoder of all Beats segments, from the page alone: nothing of Forebay.

Reads clean segments only. What it has no word for in the codec (versions that are only read) it
writes for the tests.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import cbor2
import lz4.block
import lz4.frame
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY = b"keykeykeykeykeyk"
IV = bytes(range(240, 256))
# Name: words of the header, vector, compression, encoding.
TABLE = {
    "v0": ((0,), False, "", "json"),
    "v1": ((1, None), False, "", "cbor"),
    "v2": ((2, None, 0), False, "", "cbor"),
    "v2-lz4": ((2, None, 2), False, "stream", "cbor"),
    "v2-aes": ((2, None, 1), True, "", "cbor"),
    "v2-aes-lz4": ((2, None, 3), True, "stream", "cbor"),
    "v2-seed": ((2,), True, "", "cbor"),
    "v3-seed": ((3,), True, "block", "cbor"),
    "v3-seed-stream": ((3,), True, "stream", "cbor"),
}


def crypt(data: bytes, key: bytes, iv: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor().update(data)


def frame(payload: bytes) -> bytes:
    size = struct.pack("<I", len(payload) + 12)
    return size + payload + struct.pack("<I", zlib.crc32(size + payload)) + size


def payload_of(event: dict[str, Any], name: str) -> bytes:
    """Encodes {"timestamp": …, "flags": …, "meta": …, "fields": …}."""
    data = json.dumps(event).encode() if TABLE[name][3] == "json" else cbor2.dumps(event)
    return payload_of_bytes(data, name)


def payload_of_bytes(data: bytes, name: str) -> bytes:
    if TABLE[name][2] != "block":
        return data
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def write_segment(
    name: str, events: list[dict[str, Any]], *, count: int | None = None, batch: int = 2
) -> bytes:
    """Makes a segment that was closed cleanly; a stream gets a block for every `batch` events."""
    words, encrypted, compression, _ = TABLE[name]
    number = len(events) if count is None else count
    header = struct.pack(f"<{len(words)}I", *(number if word is None else word for word in words))
    frames = [frame(payload_of(event, name)) for event in events]
    body = b"".join(frames)
    if compression == "stream":
        body = stream([b"".join(frames[n : n + batch]) for n in range(0, len(frames), batch)])
    return header + IV + crypt(body, KEY, IV) if encrypted else header + body


def stream(parts: list[bytes]) -> bytes:
    compressor = lz4.frame.LZ4FrameCompressor(
        block_size=lz4.frame.BLOCKSIZE_MAX4MB,
        block_linked=False,
        content_checksum=True,
        auto_flush=True,
    )
    pieces = [compressor.begin(), *map(compressor.compress, parts), compressor.flush()]
    return b"".join(pieces)


def read_segment(name: str, data: bytes, key: bytes = KEY) -> list[bytes]:
    """Returns the events of a clean segment, as bytes; a stream may lack its end."""
    words, encrypted, compression, _ = TABLE[name]
    found = struct.unpack_from(f"<{len(words)}I", data)
    assert all(word in (None, value) for word, value in zip(words, found, strict=True))
    body = data[4 * len(words) :]
    if encrypted:
        body = crypt(body[16:], key, body[:16])
    if compression == "stream":
        body = lz4.frame.LZ4FrameDecompressor().decompress(body) if body else b""
    events = []
    while body:
        (size,) = struct.unpack_from("<I", body)
        assert body[:size] == frame(body[4 : size - 8])
        payload, body = body[4 : size - 8], body[size:]
        if compression == "block":
            payload = lz4.block.decompress(payload, uncompressed_size=255 * len(payload) + 64)
        events.append(payload)
    return events
