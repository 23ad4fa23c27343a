"""How entries leave a fifo: popped, lent out, peeked at, dropped to make room.

Called with the queue's lock held, except where it says so. The kernel's `Popper` takes entries off
a window; here is what it needs a new window for: the next part of the tape, the staging buffer,
the unused end of a file, damage. Space comes back by whole files: the head is durable, then the
files below it go.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable

from forebay.clock import SteadyClock
from forebay.errors import Damaged, Full
from forebay.formats.entry import Entry
from forebay.queues.fifo_bounds import Bounds
from forebay.queues.fifo_head import Head, HeadFile, Lent
from forebay.queues.fifo_peeking import Peeking
from forebay.queues.fifo_scanner import WINDOW_BYTES, FifoScanner, Place, take_batch
from forebay.queues.fifo_writer import FifoWriter
from forebay.queues.options import FifoOptions
from forebay.queues.unbroken import unbroken
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import Directory
from forebay.storage.staging import HEADER_BYTES

_logger = logging.getLogger(__name__)
_WAIT_SECONDS = 0.05


class Reading:
    """The front of a fifo."""

    def __init__(
        self,
        directory: Directory,
        writer: FifoWriter,
        head: HeadFile,
        bounds: Bounds,
        file_bytes: int,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._head = head
        self.popper = head.popper
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._options = options
        self._clock = clock
        self._scanner = FifoScanner(directory, file_bytes, bounds)
        # Lent out before a crash, or given back: the next to go, in the order of their numbers.
        self.returned: list[Lent] = sorted(head.lent.values(), key=lambda lent: lent.number)
        self.popper.held = bool(self.returned)
        self.commit = GroupCommit(
            self._sync_head if writer.always else self._store_head, self.popper.sequence
        )
        self._trouble: Damaged | None = None
        self._peeking = Peeking(self._scanner, writer, clock)
        writer.before_drain = self.popper.close
        writer.on_failure = self._hold
        writer.make_room = self.make_room

    @property
    def place(self) -> Place:
        """Before the next entry that nobody has taken."""
        return Place(self.popper.position, self.popper.number, self.popper.last_id)

    @property
    def first_position(self) -> int:
        """Where on the tape the oldest entry is that has not left for good."""
        lent = (entry.position for entry in self._head.lent.values())
        return min(self.popper.position, *lent) if self._head.lent else self.popper.position

    @property
    def lent_out(self) -> int:
        """How many entries are lent out now."""
        return len(self._head.lent) - len(self.returned)

    @unbroken
    def pop(self) -> bytes | None:
        """Takes the next entry; None if there is none. Raises Damaged once for each damage."""
        self._raise_trouble()
        while self.returned:
            entry = self._read(self.returned[0])
            self._head.finish(self.returned[0].number)
            self._drop_returned()
            if entry is not None:
                return entry.value
        found = self._next_entry()
        if found is None:
            return None
        self.popper.save()
        return found[0].value

    @unbroken
    def pop_many(self, count: int, *, begun: bool) -> list[bytes]:
        """Takes up to `count` entries; trouble behind the first is left for the next call.

        `begun` says that the caller has some already.
        """
        self._raise_trouble(unless=begun)
        values: list[bytes] = []
        while len(values) < count:
            try:
                if self.returned:
                    value = self.pop()
                    more = [] if value is None else [value]
                else:
                    more = self.popper.take_many(count - len(values))
                if not more and not self.returned and not self._advance():
                    break
            except (OSError, Damaged) as error:
                if not values and not begun:
                    raise
                if isinstance(error, Damaged):
                    self._trouble = error
                break
            values += more
        return values

    @unbroken
    def lend(self) -> tuple[Entry, Lent] | None:
        """Takes the next entry in such a way that a crash gives it back; None if there is none."""
        self._raise_trouble()
        while self.returned:
            lent = self.returned[0]
            entry = self._read(lent)
            if entry is None:
                self._head.finish(lent.number)
            self._drop_returned()
            if entry is not None:
                return entry, lent
        # Nobody may pop meanwhile: that would note this entry as gone before it is lent out.
        self.popper.held = True
        try:
            found = self._next_entry()
            if found is None:
                return None
            try:
                self._head.lend(found[1])
            except Full:
                self.popper.place(*found[1].place)
                raise
            return found
        finally:
            self.popper.held = bool(self.returned)

    @unbroken
    def finish(self, lent: Lent) -> None:
        """Lets an entry that is lent out leave for good."""
        if lent.number in self._head.lent:
            self._head.finish(lent.number)
            self._release()
            self._writer.changes.announce()

    def give_back(self, lent: Lent) -> None:
        """Puts an entry that is lent out back to the front."""
        if lent.number in self._head.lent:
            self.popper.held = True
            bisect.insort(self.returned, lent, key=lambda entry: entry.number)
            self._writer.changes.announce()

    def peek(self, after: int | None) -> Entry | None:
        """Gives the next entry that has not expired, or the next behind an id; it stays."""
        for lent in self.returned:
            entry = self._read(lent) if after is None or lent.id > after else None
            if entry is not None:
                return entry
        return self._peeking.next(self.place, after)

    def make_room(self, size: int, timeout: float | None) -> int:
        """Waits, refuses or drops until `size` bytes may be written; gives how many may be."""
        limit = self._options.max_bytes
        if limit is None:
            return 2**62
        path = self._directory.path
        if size > limit:
            raise Full(f"{size} bytes are more than max_bytes = {limit}; nothing was written")
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            used = self._writer.position - self.first_position
            if size <= limit - used:
                return limit - used
            if self._skip_expired():
                continue
            if self._options.when_full == "drop_oldest" and self._drop_oldest():
                continue
            wait = _WAIT_SECONDS
            if deadline is not None:
                wait = min(wait, deadline - self._clock.monotonic())
            if self._options.when_full == "reject" or wait <= 0:
                raise Full(f"{path} holds {used} bytes of max_bytes = {limit}; nothing was written")
            self._writer.changes.wait(wait)
            self._writer.check()

    def settle(self) -> None:
        """Writes what was taken, where that is no mapped store; durable under "always".

        Without the lock.
        """
        if not self._writer.mapped:
            self.commit.wait(self.popper.sequence)

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on."""
        self._writer.fail(error)

    def sync_head(self) -> None:
        """Makes durable what was taken so far. Without the lock."""
        self._sync_head()

    def close(self) -> None:
        """Closes its files."""
        self._head.close()
        self._scanner.close()

    def _next_entry(self) -> tuple[Entry, Lent] | None:
        """Steps over the next entry that has not expired; `save` notes it."""
        while True:
            number = self.popper.number
            found = self.popper.next_entry()
            if found is not None:
                value, entry_id, ttl, position = found
                number = self.popper.number - 1
                return Entry(number, entry_id, ttl, value), Lent(position, number, entry_id)
            if self.popper.number != number:
                # Expired entries have left: there may be room now.
                self.popper.save()
                self._writer.changes.announce()
            if not self._advance():
                return None

    def _advance(self) -> bool:
        """Opens the next window; False if there is nothing more now."""
        place = self.place
        self.popper.close()
        self._release()
        if place.number >= self._writer.readable.number:
            return self._look_into_memory(place)
        end = self._end()
        # Not beyond the file: its space comes back when all of it has left.
        rest = self._file_bytes - place.position % self._file_bytes
        data = self._scanner.window(place, end.position, min(rest, WINDOW_BYTES))
        if data is not None:
            self.popper.open(data, place.position, None)
            return True
        damage, place = self._scanner.judge(place, end)
        self.popper.place(*place)
        if damage is not None:
            self.popper.damaged += damage.count or 0
            self.popper.save()
            raise Damaged(damage)
        return True

    def _look_into_memory(self, place: Place) -> bool:
        """Opens the staging buffer as a window, if it has entries that are not in the files."""
        writer = self._writer
        if writer.always or not writer.waiting or writer.number <= place.number:
            return False
        if place.position < writer.stored.position:
            self.popper.place(writer.stored.position, place.number, place.last_id)
        self.popper.open(writer.memory, writer.stored.position - HEADER_BYTES, writer.pusher)
        return True

    def _end(self) -> Place:
        readable = self._writer.readable
        return Place(readable.position, readable.number, 0)

    def _skip_expired(self) -> bool:
        """Lets the entries next in turn leave that have expired; says whether there were any."""
        while not self.returned and self._trouble is None:
            before = self.place
            if self.popper.skip_expired():
                return True
            try:
                if not self._advance():
                    return False
            except Damaged as error:
                self._trouble = error
                return True
            if self.popper.skip_expired():
                return True
            if self.place == before:
                # What is next is alive.
                return False
        return False

    def _raise_trouble(self, *, unless: bool = False) -> None:
        """Raises what a call before could not, because it had something to give."""
        if self._trouble is not None and not unless:
            trouble, self._trouble = self._trouble, None
            raise trouble.with_traceback(None)

    def _drop_returned(self) -> None:
        del self.returned[0]
        self.popper.held = bool(self.returned)

    def _read(self, lent: Lent) -> Entry | None:
        """Reads an entry that was lent out; None if it has expired or cannot be read."""
        if lent.position >= self._writer.stored.position:
            self._writer.drain()
        data = self._scanner.window(lent.place, self._writer.stored.position)
        if data is None:
            self.popper.damaged += 1
            self.popper.save()
            return None
        (entry,) = take_batch(data, lent.place, 1).entries()
        return None if entry.has_expired(self._clock.now_ms()) else entry

    def _drop_oldest(self) -> bool:
        """Drops the entries that begin in the oldest file; False if there are none to drop."""
        self._writer.drain()
        stored = self._writer.stored
        place = self.place
        target = Place(stored.position, stored.number, place.last_id)
        boundary = self._bounds.after(place.position // self._file_bytes)
        while boundary is not None and boundary.number <= stored.number:
            if boundary.number > place.number and boundary.position < self._file_bytes:
                position = boundary.file * self._file_bytes + boundary.position
                target = Place(position, boundary.number, max(boundary.last_id, place.last_id))
                break
            boundary = self._bounds.after(boundary.file)
        if target.number <= place.number:
            return False
        if target.number > self._writer.durable.number:
            # The head may not stand where a power cut leaves nothing.
            self._writer.sync_now()
        count = target.number - place.number
        self.popper.place(*target)
        self.popper.dropped += count
        self.popper.save()
        self._release()
        path = self._directory.path
        _logger.warning("%s is full: the %d oldest entries were dropped", path, count)
        return True

    def _release(self) -> None:
        """Removes the files whose entries have all left; what left is durable before."""
        tape = self._writer.tape
        below = self.first_position
        if not tape.numbers or tape.numbers[0] >= below // self._file_bytes:
            return
        if self._writer.durable.position < below:
            # Recovery begins at the durable mark: the file that it is in must be there.
            self._writer.sync_now()
        self._commit(self._head.state())
        tape.release(below)
        self._bounds.forget_below(below // self._file_bytes)
        keep_reserve(self._directory)
        self._writer.changes.announce()

    def _sync_head(self) -> int:
        """Makes the head durable; led by one thread at a time, without the lock."""
        return self._keep_head(self._head.commit)

    def _store_head(self) -> int:
        """Writes the head, so that it survives the process; led by one thread at a time."""
        return self._keep_head(self._head.store)

    def _keep_head(self, keep: Callable[[Head], None]) -> int:
        with self._writer.lock:
            self._writer.check()
            head = self._head.state()
        try:
            keep(head)
        except OSError as error:
            with self._writer.lock:
                self._fail(error)
            raise
        return head.sequence

    def _commit(self, head: Head) -> None:
        """Makes the head durable with the lock held."""
        try:
            self._head.commit(head)
        except OSError as error:
            self._fail(error)
            raise

    def _hold(self) -> None:
        self.popper.held = True

    def _fail(self, error: OSError) -> None:
        """Ends the handle; what nobody was given is not gone: the head goes back."""
        self._writer.fail(error)
        with contextlib.suppress(OSError):
            self._head.go_back()
