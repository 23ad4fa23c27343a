"""The saved places of a log's readers: durable, forward only, and trimming stays below them all.

A reader in the owner's process is a consumer. Its place is in the `index` file, which has the
format of the seed and is guarded by a check file beside it; only the owner writes it. A reader in
another process, such as a Spark stream, owns a cursor (`storage/cursors.py`). This module answers
which readers there are and where they read.

A damaged index costs places, never the log: the owner raises it once, consumers whose places are
lost begin at the oldest record, and nothing is trimmed until the damage has been accepted (`forebay
fsck --accept`), because it is not known which readers there still are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.fflg import check_name, decode_index, encode_index
from forebay.storage import quarantine
from forebay.storage.checked import CheckedFile
from forebay.storage.cursors import read_cursors
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses

INDEX = "index"
_UNSURE = "; places are lost, and nothing is trimmed"
_REMEDY = 'find out which readers there still are, then run "forebay fsck --accept"'


class Place(NamedTuple):
    """The place of a reader of a log; it no longer needs what is before that."""

    name: str
    offset: int
    # Whether it is a cursor, which another process may own.
    is_cursor: bool


def read_places(directory: Directory) -> tuple[list[Place], Damage | None]:
    """Returns the places of all readers of a log, and the damage if some of them are lost."""
    offsets, damage = read_consumers(directory)
    return [*_of_consumers(offsets), *_of_cursors(directory)], damage


def read_consumers(directory: Directory) -> tuple[dict[str, int], Damage | None]:
    """Returns the saved offsets of a log's consumers, and the damage if some are lost.

    If the check shows that the bytes have changed, no place can be trusted. The index of another
    program has no check: then the entries before the first bad one are good.
    """
    path = f"{directory.path}/{INDEX}"
    try:
        data, sound = CheckedFile(directory, INDEX).read()
    except Damaged as error:
        return {}, replace(error.damage, reason=error.damage.reason + _UNSURE, count=0)
    if sound is False:
        reason = "the consumers' positions do not match their checksum" + _UNSURE
        return {}, Damage(path, 0, len(data), reason, count=0)
    offsets, damage = decode_index(data, path)
    if damage is not None:
        damage = replace(damage, reason=damage.reason + _UNSURE)
    return offsets, damage


class Places:
    """The saved places of a log's readers.

    They are saved with `lock` held, which is taken before the queue's lock: nothing waits for a
    disk with the queue's lock. A caller that holds the queue's lock may read them, and sees only
    places that are durable.
    """

    def __init__(self, directory: Directory, losses: Losses, *, checked: bool = True) -> None:
        """Reads the places; `checked`: no other program changes the file, so it gets a check."""
        self._directory = directory
        self._checked = checked
        self._losses = losses
        self._file = CheckedFile(directory, INDEX)
        self.lock = threading.Lock()
        self.offsets, self._damage = read_consumers(directory)
        if self._damage is not None and losses.accepted(self._damage):
            self._damage = None

    @property
    def unsure(self) -> Damage | None:
        """The damage of the places, until it has been accepted; None if there is none."""
        return self._damage or self._losses.of_file(INDEX)

    def next_damage(self) -> Damage | None:
        """Returns the damage of the file if this handle has not raised it yet; then None."""
        if self._damage is not None and self._losses.note(self._damage):
            return self._damage
        return None

    def all(self) -> list[Place]:
        """Returns the places of all readers, in any process."""
        return [*_of_consumers(self.offsets), *_of_cursors(self._directory)]

    def keep_damaged(self) -> None:
        """Puts damage on record before the damaged file is replaced. Both locks are held."""
        if self._damage is None:
            return
        self._losses.note(self._damage, gone=True)
        self._losses.save()
        try:
            data, _ = self._file.read()
        except Damaged:
            # The next write sets a file aside that cannot be read.
            data = b""
        if data:
            quarantine.keep_bytes(self._directory, INDEX, data)
        self._damage = None

    def advance(self, name: str, offset: int, *, back: bool = False) -> int:
        """Saves a consumer's place, durably on return; returns the place that is saved then.

        It only moves forward, except with `back`, as after a `seek`. `lock` is held.
        """
        saved = self.offsets.get(name, -1)
        if saved > offset and not back:
            return saved
        self._write({**self.offsets, check_name(name): offset})
        return offset

    def forget(self, name: str) -> None:
        """Removes a consumer; trimming no longer waits for it. `lock` is held."""
        self._write({key: value for key, value in self.offsets.items() if key != name})

    def limit_to(self, end: int) -> None:
        """Moves consumers that are past the end back to it: those offsets will be used again."""
        if self._damage is None and any(offset > end for offset in self.offsets.values()):
            self._write({name: min(offset, end) for name, offset in self.offsets.items()})

    def lowest(self) -> int | None:
        """Returns the offset below which no reader reads any more; None if there is no reader."""
        unsure = self.unsure
        if unsure is not None:
            raise Damaged(unsure, _REMEDY)
        return min((place.offset for place in self.all()), default=None)

    def close(self) -> None:
        """Closes its files, after waiting for a save in progress."""
        with self.lock:
            self._file.close()

    def abandon(self) -> None:
        """Replaces the lock, which the parent may hold, in the child of a fork."""
        self.lock = threading.Lock()

    def _write(self, changed: dict[str, int]) -> None:
        assert self._damage is None
        if self._checked:
            self._file.write(encode_index(changed))
        else:
            self._file.write_unchecked(encode_index(changed))
        self.offsets = changed


def _of_consumers(offsets: dict[str, int]) -> Iterator[Place]:
    return (Place(name, offset, is_cursor=False) for name, offset in offsets.items())


def _of_cursors(directory: Directory) -> Iterator[Place]:
    return (Place(name, offset, is_cursor=True) for name, offset in read_cursors(directory))
