"""A named consumer of a log, and `Positions`: where all of them stand.

Positions are kept in the `index` file, which is guarded by a check beside it, and are the source of
truth for the consumers of the owner; readers in other processes keep cursors of their own. Called
with the queue's lock held, except that `lowest` reads the cursors' files.

An index that is damaged costs places, never the log: the owner raises it once, consumers whose
places are lost begin at the oldest record, and nothing is trimmed until somebody has seen it
(`forebay fsck --accept`), because nobody knows who still reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from forebay.damage import Damage
from forebay.errors import Damaged, Empty, InvalidOption, Overtaken
from forebay.formats.fflg import check_name, decode_index, encode_index
from forebay.queues.log.scanner import RecordBatch, Scanner
from forebay.queues.log.staged import Record
from forebay.storage import quarantine
from forebay.storage.checked import CheckedFile
from forebay.storage.cursors import read_cursors
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses

if TYPE_CHECKING:
    from forebay.queues.log.queue import Log


Start = str | int | datetime


class Consumer:
    """Reads a log from its own place on. One thread at a time may use it."""

    def __init__(
        self, log: Log, name: str, scanner: Scanner, position: int, committed: int
    ) -> None:
        self._log = log
        self._scanner = scanner
        self._batches: Iterator[RecordBatch | Damage] = iter(())
        self._records: deque[Record] = deque()
        self._trouble: Damage | None = None
        self._fetched = position
        self.name = name
        self.position = position
        self.committed = committed
        self._sought = False

    @property
    def lag(self) -> int:
        """How many records there are that it has not committed."""
        return self._log.end - self.committed

    def read(self, count: int = 1000, *, timeout: float | None = None) -> list[Record]:
        """Returns up to `count` of the next records; an empty list if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came. Records
        that are damaged raise `Damaged`, records that were dropped to make room raise `Overtaken`;
        each once, and the next read goes on after them.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        self._log.raise_losses()
        records = self._take_open(count)
        if not records and timeout is not None:
            if not self._log.wait_for(self.position, timeout):
                raise Empty(f"{self._log.path}: nothing new for {self.name!r} in {timeout} s")
            records = self._take_open(count)
        if records:
            self.position = records[-1].offset + 1
        return records

    def commit(self) -> None:
        """Saves the place after the last record read; durable on return.

        A place that another consumer of the same name has saved meanwhile never goes back, unless
        this one was moved by `seek`.
        """
        self.committed = self._log.save_position(self.name, self.position, back=self._sought)
        self._sought = False

    def seek(self, start: Start) -> None:
        """Moves to "earliest", "latest", an offset, or the first record not older than a time.

        Nothing is saved before `commit`.
        """
        self.position = self._log.resolve(start)
        self._sought = True
        self._forget_batches()

    def close(self) -> None:
        """Closes its files; the saved place stays."""
        self._forget_batches()
        self._scanner.close()

    def __del__(self) -> None:
        # Nobody is asked to close a consumer: one that is forgotten leaves no file open.
        self.close()

    def __iter__(self) -> Iterator[Record]:
        """Yields the records that are there now, one by one; a commit covers those given so far."""
        while records := self.read(1):
            yield records[0]
            while self._records:
                record = self._records.popleft()
                self.position = record.offset + 1
                yield record

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} at {self.position} of {self._log.path}>"

    def _take_open(self, count: int) -> list[Record]:
        """Takes records; a log that is closed meanwhile leaves no file open, and says so."""
        try:
            return self._take(count)
        except OSError:
            self._log.readable()
            raise
        finally:
            if self._log._closed:
                self._scanner.close()

    def _take(self, count: int) -> list[Record]:
        while True:
            taken = self._take_to_damage(count)
            if taken or self._trouble is None:
                return taken
            damage, self._trouble = self._trouble, None
            after = (damage.offset or 0) + (damage.count or 0)
            if damage.count is None:
                # How many are lost cannot be told: none of what there is now can be read.
                after = self._log.readable()[0]
            self.position = self._fetched = max(self.position, after)
            if self._log.is_news(damage):
                raise Damaged(damage)

    def _take_to_damage(self, count: int) -> list[Record]:
        self._check_overtaken()
        taken: list[Record] = []
        while len(taken) < count and self._trouble is None:
            try:
                if not self._records and not self._fetch():
                    break
            except Overtaken:
                # Segments went while they were read: what was taken is good, the rest is gone.
                self._batches = iter(())
                if not taken:
                    self._check_overtaken()
                break
            taken += self._from_memory(count - len(taken))
        return taken

    def _from_memory(self, count: int) -> Iterable[Record]:
        if count >= len(self._records):
            records, self._records = self._records, deque()
            return records
        return [self._records.popleft() for _ in range(count)]

    def _check_overtaken(self) -> None:
        begin = self._log.begin
        if self.position < begin:
            lost, self.position = begin - self.position, begin
            self._forget_batches()
            raise Overtaken(f"consumer {self.name!r}", lost)

    def _fetch(self) -> bool:
        """Gets the next records; False if there are none, or damage comes first."""
        item = next(self._batches, None)
        if item is None:
            end, _ = self._log.readable()
            if end <= self._fetched:
                return False
            self._scanner.look_at(self._log.segments())
            self._batches = self._scanner.scan(self._fetched, end, end)
            item = next(self._batches, None)
        if isinstance(item, Damage):
            self._trouble = item
        elif item is not None:
            self._records = deque(item.since(self._fetched).records())
            self._fetched = item.offset + len(item.values)
        return bool(self._records)

    def _forget_batches(self) -> None:
        self._records = deque()
        self._trouble = None
        self._batches = iter(())
        self._fetched = self.position


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
        """Moves consumers past the end back: those offsets will be used again."""
        if self._damage is None and any(offset > end for offset in self.offsets.values()):
            self._write({name: min(offset, end) for name, offset in self.offsets.items()})

    def lowest(self) -> int | None:
        """Returns the offset below which nobody reads any more; None if there is no reader."""
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
