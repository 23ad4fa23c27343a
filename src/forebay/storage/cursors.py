"""`cursors/`: the positions of readers in other processes, such as a Spark stream or a forwarder.

A reader owns `cursors/NAME`, locked while in use. Its offset only moves forward; trimming stays
below the lowest. Two checked slots; payload, big-endian: `offset 8 | incarnation 4`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from forebay.errors import InvalidOption, Locked, NotAQueue
from forebay.storage.filesystem import Directory
from forebay.storage.slots import SlotFile

DIRECTORY = "cursors"
_MAGIC = b"FBCU"
_PAYLOAD = struct.Struct(">QI")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class Cursor:
    """A reader's saved position in a queue that another process may own."""

    def __init__(self, slots: SlotFile, name: str) -> None:
        self._slots = slots
        self.name = name
        payload = slots.payload
        self.offset: int
        self.incarnation: int
        self.offset, self.incarnation = _PAYLOAD.unpack(payload) if payload else (0, 0)

    @classmethod
    def open(cls, queue: Directory, name: str, *, start: int, incarnation: int) -> Cursor:
        """Opens a cursor, or creates it at `start`; raises `Locked` if it is in use."""
        if _NAME.fullmatch(name) is None:
            raise InvalidOption(
                f"cursor name {name!r}: must be 1 to 100 of A-Z a-z 0-9 . _ - and not start with ."
            )
        directory = queue.directory(DIRECTORY, create=True)
        try:
            queue.sync()
            payload = _PAYLOAD.pack(start, incarnation)
            slots = SlotFile.open(directory, name, _MAGIC, _PAYLOAD.size, write=True)
            if slots is None:
                slots = SlotFile.make(directory, name, _MAGIC, _PAYLOAD.size)
            try:
                if not slots.lock():
                    raise Locked(f"{directory.path}/{name}", None)
                # Read only with the lock: the last holder may have moved it just before it closed.
                if slots.read() is None:
                    slots.begin(directory, payload)
            except BaseException:
                slots.close()
                raise
        finally:
            directory.close()
        return cls(slots, name)

    def advance(self, offset: int, incarnation: int) -> None:
        """Moves the position forward; durable on return. A lower offset changes nothing."""
        if offset <= self.offset:
            return
        self._slots.write(_PAYLOAD.pack(offset, incarnation), sync=True)
        self.offset, self.incarnation = offset, incarnation

    def limit_to(self, offset: int | None, incarnation: int) -> None:
        """Moves the position back to an offset from which on records were assigned again."""
        if offset is not None and offset < self.offset:
            self._slots.write(_PAYLOAD.pack(offset, incarnation), sync=True)
            self.offset, self.incarnation = offset, incarnation

    def close(self) -> None:
        """Releases the cursor."""
        self._slots.close()


def read_cursors(queue: Directory) -> Iterator[tuple[str, int]]:
    """Returns each cursor and its offset; 0 if it does not verify, so that nothing is trimmed."""
    try:
        directory = queue.directory(DIRECTORY)
    except FileNotFoundError:
        return
    except OSError:
        # The name belongs to something else, so the readers are unknown.
        yield DIRECTORY, 0
        return
    try:
        for name in sorted(directory.names()):
            try:
                slots = SlotFile.open(directory, name, _MAGIC, _PAYLOAD.size, write=False)
            except (OSError, NotAQueue):
                yield name, 0
                continue
            if slots is None:
                continue
            # Closed before the yield: a caller that stops after the first leaves nothing open.
            slots.close()
            yield name, _PAYLOAD.unpack(slots.payload)[0] if slots.payload else 0
    finally:
        directory.close()
