"""Where the consumers of a log stand: the `index` file, guarded, and the cursors of others.

Source of truth for the consumers of the owner. Called with the queue's lock held, except that
`lowest` reads the cursors' files.
"""

from __future__ import annotations

from forebay.errors import Damaged
from forebay.formats.consumers import check_name, decode_index, encode_index
from forebay.frames import Damage
from forebay.storage.atomic import CheckedFile
from forebay.storage.cursors import read_cursors
from forebay.storage.filesystem import Directory

INDEX = "index"


class Positions:
    """The saved offsets of a log's consumers."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file = CheckedFile(directory, INDEX)
        data, self._sound = self._file.read()
        self._path = f"{directory.path}/{INDEX}"
        try:
            self.offsets = decode_index(data, self._path)
        except Damaged:
            self._sound = False
            self.offsets = {}

    def save(self, name: str, offset: int) -> None:
        """Saves one consumer's offset; durable on return."""
        self._check_sound()
        changed = {**self.offsets, check_name(name): offset}
        self._file.write(encode_index(changed))
        self.offsets = changed

    def forget(self, name: str) -> None:
        """Removes a consumer; trimming no longer waits for it."""
        self._check_sound()
        changed = {key: value for key, value in self.offsets.items() if key != name}
        self._file.write(encode_index(changed))
        self.offsets = changed

    def limit_to(self, end: int) -> None:
        """Moves back who stands behind the end: those offsets will be given out again."""
        if self._sound and any(offset > end for offset in self.offsets.values()):
            changed = {name: min(offset, end) for name, offset in self.offsets.items()}
            self._file.write(encode_index(changed))
            self.offsets = changed

    def lowest(self) -> int | None:
        """Gives the offset below which nobody reads any more; None if there is no reader at all."""
        self._check_sound()
        offsets = [*self.offsets.values(), *(offset for _, offset in read_cursors(self._directory))]
        return min(offsets, default=None)

    def close(self) -> None:
        """Closes its files."""
        self._file.close()

    def _check_sound(self) -> None:
        if not self._sound:
            reason = "the consumers' positions do not match their checksum; nothing is trimmed"
            remedy = "close the log and remove the file to let its consumers start anew"
            raise Damaged(Damage(self._path, 0, 0, reason), remedy)
