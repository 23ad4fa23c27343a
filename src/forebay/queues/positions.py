"""Where the consumers of a log stand: the `index` file, guarded, and the cursors of others.

Source of truth for the consumers of the owner. Called with the queue's lock held, except that
`lowest` reads the cursors' files.

An index that is damaged costs places, never the log: the owner raises it once, consumers whose
places are lost begin at the oldest record, and nothing is trimmed until somebody has seen it
(`forebay fsck --accept`), because nobody knows who still reads.
"""

from __future__ import annotations

from dataclasses import replace

from forebay.errors import Damaged
from forebay.formats.consumers import check_name, decode_index, encode_index
from forebay.frames import Damage
from forebay.storage import quarantine
from forebay.storage.checked import CheckedFile
from forebay.storage.cursors import read_cursors
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses

INDEX = "index"
_UNSURE = "; places are lost, and nothing is trimmed"
_REMEDY = 'see who still reads, then run "forebay fsck --accept"'


def read_positions(directory: Directory) -> tuple[dict[str, int], Damage | None]:
    """Returns the saved offsets of a log's consumers, and the damage if some are lost.

    Where a check shows that the bytes changed, no place can be trusted. The index of another
    program has none: the entries before the first bad one are good.
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


class Positions:
    """The saved offsets of a log's consumers."""

    def __init__(self, directory: Directory, losses: Losses, *, checked: bool = True) -> None:
        """`checked`: no other program changes the file."""
        self._directory = directory
        self._checked = checked
        self._losses = losses
        self._file = CheckedFile(directory, INDEX)
        self.offsets, self._damage = read_positions(directory)
        if self._damage is not None and losses.accepted(self._damage):
            self._damage = None

    @property
    def unsure(self) -> Damage | None:
        """Says what is wrong with the places, as long as nobody has seen it."""
        return self._damage or self._losses.of_file(INDEX)

    def next_damage(self) -> Damage | None:
        """Returns the damage of the file if this handle has not raised it yet; then None."""
        if self._damage is not None and self._losses.note(self._damage):
            return self._damage
        return None

    def save(self, name: str, offset: int) -> None:
        """Saves one consumer's offset; durable on return."""
        self._write({**self.offsets, check_name(name): offset})

    def forget(self, name: str) -> None:
        """Removes a consumer; trimming no longer waits for it."""
        self._write({key: value for key, value in self.offsets.items() if key != name})

    def limit_to(self, end: int) -> None:
        """Moves back who stands behind the end: those offsets will be given out again."""
        if self._damage is None and any(offset > end for offset in self.offsets.values()):
            self._write({name: min(offset, end) for name, offset in self.offsets.items()})

    def lowest(self) -> int | None:
        """Gives the offset below which nobody reads any more; None if there is no reader at all."""
        unsure = self.unsure
        if unsure is not None:
            raise Damaged(unsure, _REMEDY)
        offsets = [*self.offsets.values(), *(offset for _, offset in read_cursors(self._directory))]
        return min(offsets, default=None)

    def close(self) -> None:
        """Closes its files."""
        self._file.close()

    def _write(self, changed: dict[str, int]) -> None:
        if self._damage is not None:
            self._keep_damaged(self._damage)
        if self._checked:
            self._file.write(encode_index(changed))
        else:
            self._file.write_unchecked(encode_index(changed))
        self.offsets = changed

    def _keep_damaged(self, damage: Damage) -> None:
        """Puts the damage on record before the file that shows it is replaced."""
        self._losses.note(damage, gone=True)
        self._losses.save()
        try:
            data, _ = self._file.read()
        except Damaged:
            # The write moves what cannot be read aside.
            data = b""
        if data:
            quarantine.keep_bytes(self._directory, INDEX, data)
        self._damage = None
