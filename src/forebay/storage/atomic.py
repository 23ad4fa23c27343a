"""Small files that are replaced whole, even on a full disk, and small checked documents.

`replace` writes a temporary file, syncs it, renames it over the old one and syncs the directory:
after a crash the name has the old bytes or the new ones. A `reserve` file holds some space back. It
is removed when the disk is full, so that a consumer's position can still be saved and trimming can
make room. A document is one line of JSON and one line with its CRC-32 in hex.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable
from typing import Any, TypeVar

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.kernels.buffers import crc32
from forebay.storage.filesystem import Directory, write_all

RESERVE = "reserve"
TEMPORARY = ".new"
RESERVE_BYTES = 64 * 1024
_Result = TypeVar("_Result")


def replace(directory: Directory, name: str, data: bytes) -> None:
    """Replaces a file whole; durable on return."""
    with_reserve(directory, lambda: _replace(directory, name, data))


def keep_reserve(directory: Directory) -> None:
    """Creates the reserve, if it is missing and there is space."""
    try:
        directory.open(RESERVE).close()
        return
    except FileNotFoundError:
        pass
    except (OSError, NotAQueue):
        # The name belongs to something else; a queue works without a reserve.
        return
    file = directory.create(RESERVE)
    try:
        file.allocate(0, RESERVE_BYTES)
    except OSError:
        # A failed posix_fallocate keeps what it got, but an incomplete reserve may not suffice.
        directory.unlink(RESERVE)
    finally:
        file.close()


def read_small(directory: Directory, name: str) -> bytes | None:
    """Returns the whole content of a small file; None if there is none."""
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _replace(directory: Directory, name: str, data: bytes) -> None:
    temporary = name + TEMPORARY
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(temporary)
    file = directory.create(temporary)
    try:
        write_all(file, data, 0)
        # Sync before rename: after a crash the name must not exist without the bytes.
        file.sync()
    except OSError:
        directory.unlink(temporary)
        raise
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


def with_reserve(directory: Directory, action: Callable[[], _Result]) -> _Result:
    """Runs an action that needs a little space; on a full disk it gives up the reserve."""
    try:
        return action()
    except OSError as error:
        if error.errno != errno.ENOSPC or not _give_up_reserve(directory):
            raise
        return action()


def _give_up_reserve(directory: Directory) -> bool:
    try:
        directory.unlink(RESERVE)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


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
    """Returns a field of a document if it has the right type, else raises `ValueError`."""
    # Compare the exact type: in Python, a bool is an int.
    if type(value) is not kind:
        raise ValueError(f"{name} = {value!r:.60}: must be of type {kind.__name__}")
    return value
