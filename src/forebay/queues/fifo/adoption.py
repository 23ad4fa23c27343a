"""Takes batches that other processes left in `inbox/` into a fifo.

Their records become entries with numbers and ids of this queue, in files of the tape that are made
aside in the inbox and synced. One synced line in the ledger decides; then the files get their
names, then the mark moves past them. What a crash interrupts after the decision, the next open
finishes; before it, the batch is taken again. `end` in the ledger is the number after the new
entries, and the ms of the last.

The queue waits meanwhile: numbers are given in the order of entries on the tape. A batch that finds
no room stays in the inbox; one that is larger than all room there is waits for an empty queue.
"""

from __future__ import annotations

import logging
import threading

from forebay.clock import SteadyClock
from forebay.errors import Full
from forebay.formats.entry import file_name, parse_file_name
from forebay.formats.fflg import Header
from forebay.kernels.buffers import measure
from forebay.kernels.entry import METADATA_BYTES, encode
from forebay.queues.fifo.bounds import Boundary, Bounds, TapeEnd, boundaries_in
from forebay.queues.fifo.names import TAIL
from forebay.queues.fifo.writer import FifoWriter
from forebay.queues.log.recovery import clear_adoption, finish_adoption
from forebay.queues.shared.adoption import may_be_decided, take_batches, values_of
from forebay.queues.shared.options import FifoOptions
from forebay.storage import inbox
from forebay.storage.filesystem import Directory, File, write_all
from forebay.storage.tail import TailFile

_logger = logging.getLogger(__name__)


class Adoption:
    """What takes batches into one fifo. Any thread may call it."""

    def __init__(
        self,
        directory: Directory,
        writer: FifoWriter,
        bounds: Bounds,
        file_bytes: int,
        version: bytes,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._version = version
        self._options = options
        self._clock = clock
        # Held while it runs: whoever closes the queue waits for it.
        self.running = threading.Lock()

    def run(self) -> int:
        """Takes in what is ready; gives how many entries that made."""
        with self.running:
            with self._writer.lock:
                self._writer.check()
            return take_batches(self._directory, "fifo", self._clock.now_ms(), self._adopt)

    def _adopt(
        self,
        work: Directory,
        manifest: inbox.Manifest,
        headers: list[tuple[Header, int]],
        ledger: inbox.Ledger,
    ) -> int | None:
        size = sum(part.size + part.count * METADATA_BYTES for part in manifest.parts)
        count = sum(part.count for part in manifest.parts)
        least = min(size, self._options.max_bytes or size)
        try:
            with self._writer.lock:
                self._writer.check()
                self._writer.make_room(least, min(count, self._options.max_entries or count), 0)
                # All below is durable then, and the mark says so and that the queue is open.
                self._writer.sync_now()
                return self._adopt_locked(work, manifest, headers, ledger)
        except Full as error:
            _logger.info("inbox: a batch of %d bytes waits for room: %s", size, error)
            return None

    def _adopt_locked(
        self,
        work: Directory,
        manifest: inbox.Manifest,
        headers: list[tuple[Header, int]],
        ledger: inbox.Ledger,
    ) -> int:
        writer = self._writer
        first = max([*writer.tape.numbers, writer.stored.position // self._file_bytes]) + 1
        copy = _Copy(work, first, self._file_bytes, self._clock.now_ms())
        end = writer.stored._replace(position=first * self._file_bytes)
        try:
            for part, (header, _) in zip(manifest.parts, headers, strict=True):
                for values in values_of(work, part, header):
                    end = self._encode(copy, values, end)
            copy.finish()
        except BaseException:
            copy.discard()
            raise
        # A file that was made aside takes no more: what is pushed next begins another.
        end = end._replace(position=(first + len(copy.names)) * self._file_bytes)
        count = end.number - writer.stored.number
        self._decide(work, manifest, ledger, copy, end)
        for part in manifest.parts:
            inbox.remove(work, part.name)
        return count

    def _encode(self, copy: _Copy, values: list[bytes], end: TapeEnd) -> TapeEnd:
        """Adds entries to the copy; gives the end behind them."""
        data = bytearray(measure(values)[0] + len(values) * METADATA_BYTES)
        _, last_ms = encode(
            values,
            0,
            len(values),
            data,
            end.number,
            copy.now_ms,
            end.last_ms,
            self._options.ttl_seconds,
            self._version,
        )
        last_id = max(0, (end.last_ms << 16) - 1)
        view = memoryview(data)
        copy.boundaries += boundaries_in(view, end, last_id, self._file_bytes)
        copy.write(view)
        return TapeEnd(end.number + len(values), end.position + len(data), last_ms)

    def _decide(
        self,
        work: Directory,
        manifest: inbox.Manifest,
        ledger: inbox.Ledger,
        copy: _Copy,
        end: TapeEnd,
    ) -> None:
        """Lets the copy count: the ledger, the names, the mark."""
        writer = self._writer
        adopted = {**ledger.adopted, manifest.writer: manifest.batch}
        moves, mark = copy.moves(), [end.number, end.last_ms]
        try:
            inbox.write_ledger(self._directory, inbox.Ledger(adopted, moves, mark))
            inbox.finish_moves(self._directory, work, moves)
            for boundary in copy.boundaries:
                self._bounds.note(boundary)
            if moves:
                writer.tape.numbers += range(copy.first, copy.first + len(moves))
                writer.stored = end
                writer.sync_now()
        except BaseException as error:
            if may_be_decided(self._directory, moves):
                # Pushing on would give the numbers out twice.
                writer.fail(error)
            else:
                copy.discard()
            raise
        # If this fails the batch is in the queue all the same, and is not taken again.
        clear_adoption(self._directory)


def finish(directory: Directory) -> bool:
    """Finishes an adoption that a crash interrupted, and moves the mark; says if there was one.

    The caller owns the queue and has not looked at its files yet.
    """
    if not finish_adoption(directory):
        return False
    ledger = inbox.own_ledger(directory)
    names = set(directory.names())
    if not ledger.end or any(move.segment not in names for move in ledger.moves):
        # A ledger of another queue or another time: the end that it tells is not ours.
        _logger.error("%s/%s: its adoption is not of this queue", directory.path, inbox.LEDGER)
        clear_adoption(directory)
        return False
    number, last_ms = ledger.end
    last_file = parse_file_name(ledger.moves[-1].segment) or 0
    tail_file = TailFile.open(directory, write=True, name=TAIL)
    if tail_file is not None:
        try:
            tail = tail_file.read()
            # Without a mark the entries themselves tell where the end is.
            if tail is not None and tail.durable < number:
                moved = tail._replace(
                    written=number,
                    durable=number,
                    segment=last_file + 1,
                    position=0,
                    time_ms=last_ms,
                    clean=False,
                )
                tail_file.write(moved, sync=True)
        finally:
            tail_file.close()
    clear_adoption(directory)
    return True


class _Copy:
    """Files of the tape that are made aside."""

    def __init__(self, work: Directory, first: int, file_bytes: int, now_ms: int) -> None:
        """`first` is the number that the first of them gets."""
        self._work = work
        self.first = first
        self._file_bytes = file_bytes
        self.now_ms = now_ms
        self.names: list[str] = []
        self.boundaries: list[Boundary] = []
        self._file: File | None = None
        self._size = 0

    def write(self, data: memoryview) -> None:
        """Adds bytes at the end."""
        while data:
            if self._file is None:
                self.names.append(inbox.new_stem(self.now_ms) + inbox.PART)
                self._file, self._size = self._work.create(self.names[-1]), 0
            some = data[: self._file_bytes - self._size]
            write_all(self._file, some, self._size)
            self._size += len(some)
            data = data[len(some) :]
            if self._size == self._file_bytes:
                self._seal()

    def finish(self) -> None:
        """Makes all of them durable, with their names."""
        self._seal()
        self._work.sync()

    def discard(self) -> None:
        """Removes them."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for name in self.names:
            inbox.remove(self._work, name)

    def moves(self) -> list[inbox.Move]:
        """Returns which of them becomes which file of the tape."""
        numbered = enumerate(self.names, self.first)
        return [inbox.Move(name, file_name(number), "") for number, name in numbered]

    def _seal(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            # Not allocated: nothing more is written to it, and it need not take the space.
            file.truncate(self._file_bytes)
            file.sync()
        finally:
            file.close()
