"""AES-128-CTR, as the encrypted Beats segments use it. Page: docs/formats/beats.md.

Owns the key and the keystream of one segment. Promises that a key appears in no repr, message or
textual copy. Rejects a key that is not 16 bytes. CTR encrypts but does not authenticate: anyone who
can write to the file can flip chosen bits of an event and adjust its CRC.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from forebay.errors import InvalidOption
from forebay.extras import optional

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherAlgorithm

KEY_BYTES = 16
IV_BYTES = 16
_BLOCK_BYTES = 16
_CIPHERS = "cryptography.hazmat.primitives.ciphers"
_HEX_KEY = re.compile(rb"[0-9a-fA-F]{32}")


class Key:
    """The 16 bytes of a key. Equal to another key of the same bytes; shown as `Key(hidden)`."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        if len(data) != KEY_BYTES:
            raise InvalidOption(f"the key has {len(data)} bytes; AES-128 takes {KEY_BYTES}")
        self._data = bytes(data)

    def __repr__(self) -> str:
        return "Key(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._data, other._data)

    def __hash__(self) -> int:
        return hash(self._data)

    def __reduce__(self) -> tuple[object, ...]:
        # A key that is sent with a task would end up in the plans and logs of a cluster.
        raise TypeError("a key cannot be copied to another process: pass the key file instead")

    def keystream(self, iv: bytes) -> Keystream:
        """Returns the keystream of the segment with an initialization vector."""
        # Imported here: most queues are not encrypted, and the import is slow.
        return Keystream(optional(f"{_CIPHERS}.algorithms", "beats").AES(self._data), iv)


def decode_key(content: bytes) -> Key:
    """Extracts a key from the content of a key file.

    The file holds 16 raw bytes or 32 hex digits, with or without a line feed at the end.
    """
    data = content[:-1] if len(content) in (17, 33) and content.endswith(b"\n") else content
    if _HEX_KEY.fullmatch(data):
        data = bytes.fromhex(data.decode("ascii"))
    if len(data) != KEY_BYTES:
        raise InvalidOption(
            f"the key file has {len(content)} bytes; must be 16 raw bytes or 32 hex digits"
        )
    return Key(data)


class Keystream:
    """The keystream of one segment, from any position in its body on."""

    __slots__ = ("_algorithm", "_first_block")

    def __init__(self, algorithm: CipherAlgorithm, iv: bytes) -> None:
        if len(iv) != IV_BYTES:
            raise InvalidOption(f"the initialization vector has {len(iv)} bytes, not {IV_BYTES}")
        self._algorithm = algorithm
        self._first_block = int.from_bytes(iv, "big")

    def __repr__(self) -> str:
        return "Keystream(hidden)"

    def apply(self, data: bytes, position: int) -> bytes:
        """Encrypts or decrypts the bytes at a position after the vector.

        Never encrypt two different contents for one position: both could be recovered from their
        difference. A writer whose write failed starts a new segment with a new vector.
        """
        number, skipped = divmod(position, _BLOCK_BYTES)
        counter = (self._first_block + number) % (1 << 128)
        ciphers = optional(_CIPHERS, "beats")
        mode = ciphers.modes.CTR(counter.to_bytes(IV_BYTES, "big"))
        context = ciphers.Cipher(self._algorithm, mode).encryptor()
        context.update(bytes(skipped))
        return bytes(context.update(data))
