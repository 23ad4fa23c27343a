"""Reads the key of an event queue from its file. The key shows in no message."""

from __future__ import annotations

import os

from forebay.errors import InvalidOption
from forebay.formats.beats_crypto import Key, decode_key
from forebay.storage.filesystem import read_private

_KEY_FILE_BYTES_MAX = 4096


def read_key(path: str | os.PathLike[str] | None) -> Key | None:
    """Returns the key that a file holds; refuses a file that others than its owner can get at."""
    if path is None:
        return None
    name = os.fspath(path)
    try:
        return decode_key(read_private(name, _KEY_FILE_BYTES_MAX))
    except InvalidOption as error:
        raise InvalidOption(f"key_file {name!r}: {error}") from None
