"""How entries leave a fifo: popped, lent, peeked at, dropped to make room.

Called with the queue's lock held, except where it says so. The compiled `HeadCursor` takes entries
off a window; here is what it needs a new window for: the next part of the tape, the staging buffer,
the unused end of a file, damage. Space comes back by whole files: the head is durable, then the
files below it go. `Peeking` looks at entries one after the other and leaves them there.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

from forebay.clock import SteadyClock
from forebay.damage import Damage
from forebay.errors import Damaged, Full
from forebay.formats.entry import Entry
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import Head, HeadFile, Lent
from forebay.queues.fifo.scanner import WINDOW_BYTES, FifoScanner, Place
from forebay.queues.fifo.writer import NO_BOUND, FifoWriter, Room
from forebay.queues.shared.options import FifoOptions
from forebay.queues.shared.owner import fatal_when_interrupted
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses
from forebay.storage.staging import HEADER_BYTES

_ENTRIES = 256


class Peeking:
    """Where the last look was, and what was read ahead. Called with the queue's lock held.

    `meet` is told of each damage on the way, and raises it if somebody should know.
    """

    def __init__(
        self,
        scanner: FifoScanner,
        writer: FifoWriter,
        clock: SteadyClock,
        meet: Callable[[Damage], None],
    ) -> None:
        self._scanner = scanner
        self._writer = writer
        self._clock = clock
        self._meet = meet
        self._ahead: deque[Entry] = deque()
        self._place = Place(0, 0, 0)
        self._after: int | None = None

    def first(self, head: Place) -> Entry | None:
        """Returns the first entry from the head on that has not expired; it is kept for the next.

        Entries that have expired are never looked at again.
        """
        if self._place.number < head.number:
            self._ahead.clear()
            self._place = head
        now_ms = self._clock.now_ms()
        while self._ahead or self._read_on():
            while self._ahead:
                entry = self._ahead[0]
                if entry.offset >= head.number and not entry.has_expired(now_ms):
                    return entry
                self._ahead.popleft()
        return None

    def next(self, head: Place, after: int) -> Entry | None:
        """Returns the first entry from the head on after an id that has not expired.

        It is found at once if the id is that of the last look.
        """
        if after != self._after:
            self._ahead.clear()
            self._place = head
        self._after = None
        if self._place.number < head.number:
            self._place = head
        now_ms = self._clock.now_ms()
        while self._ahead or self._read_on():
            while self._ahead:
                entry = self._ahead.popleft()
                gone = entry.offset < head.number or entry.has_expired(now_ms)
                if not gone and entry.id > after:
                    self._after = entry.id
                    return entry
        return None

    def _read_on(self) -> bool:
        """Reads more entries; False if there are none."""
        if self._place.number >= self._writer.readable.number and not self._writer.always:
            self._writer.drain()
        place, readable = self._place, self._writer.readable
        if place.number >= readable.number:
            return False
        data = self._scanner.window(place, readable.position)
        if data is None:
            self._scanner.refuse_unknown(place)
            end = Place(readable.position, readable.number, 0)
            damage, self._place = self._scanner.judge(place, end)
            if damage is not None:
                self._meet(damage)
        else:
            batch = self._scanner.take(data, place, min(_ENTRIES, readable.number - place.number))
            self._ahead.extend(batch.entries())
            self._place = batch.end
        return True


_logger = logging.getLogger(__name__)
_WAIT_SECONDS = 0.05
_TELL_SECONDS = 1.0


class Reading:
    """The front of a fifo."""

    def __init__(
        self,
        directory: Directory,
        writer: FifoWriter,
        head: HeadFile,
        losses: Losses,
        bounds: Bounds,
        file_bytes: int,
        version: bytes,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        self._directory = directory
        self.losses = losses
        self._writer = writer
        self._head = head
        self.popper = head.popper
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._options = options
        self._clock = clock
        self._scanner = FifoScanner(directory, file_bytes, version, bounds)
        # Lent out before a crash, or given back: the next to go, in the order of their numbers.
        self.returned: list[Lent] = sorted(head.lent.values(), key=lambda lent: lent.number)
        self.popper.held = bool(self.returned)
        self.commit = GroupCommit(
            self._sync_head if writer.always else self._store_head, self.popper.sequence
        )
        self._trouble: Damaged | None = None
        self._front = self._new_look()
        self._behind = self._new_look()
        # Whether the window of the popper is on the staging buffer, and not on the tape.
        self._in_memory = False
        # What was dropped and not yet told, and when something was told last.
        self._untold = 0
        self._told_at: float | None = None
        writer.before_drain = self._leave_memory
        writer.on_failure = self._hold
        writer.make_room = self.make_room

    @property
    def place(self) -> Place:
        """Before the next entry that nobody has taken."""
        _, position, number, last_id, *_ = self.popper.state()
        return Place(position, number, last_id)

    @property
    def first_position(self) -> int:
        """Where on the tape the oldest entry is that has not left for good."""
        lent = (entry.position for entry in self._head.lent.values())
        return min(self.popper.position, *lent) if self._head.lent else self.popper.position

    @property
    def oldest(self) -> int:
        """The number of the oldest entry that has not left for good."""
        return min([self.popper.number, *self._head.lent])

    @property
    def lent_out(self) -> int:
        """How many entries are lent out now."""
        return len(self._head.lent) - len(self.returned)

    @property
    def count(self) -> int:
        """How many entries there are for `max_entries`, those that are lent out included."""
        return max(0, self._writer.number - self.popper.number) + len(self._head.lent)

    @property
    def may_lend(self) -> bool:
        """Whether one more entry can be lent out; those that were given back can be always."""
        return bool(self.returned) or self._head.may_lend

    @fatal_when_interrupted
    def pop(self) -> bytes | None:
        """Takes the next entry; None if there is none. Raises Damaged once for each damage."""
        self._raise_trouble()
        while self.returned:
            entry = self._read_returned()
            if entry is None:
                continue
            self._head.finish(self.returned[0].number)
            self._drop_returned()
            return entry.value
        found = self._next_entry()
        if found is None:
            return None
        self.popper.save()
        return found[0].value

    @fatal_when_interrupted
    def pop_many(self, count: int, *, begun: bool) -> list[bytes]:
        """Takes up to `count` entries; trouble after the first is left for the next call.

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

    @fatal_when_interrupted
    def lend(self) -> tuple[Entry, Lent] | None:
        """Takes the next entry in such a way that a crash gives it back; None if there is none."""
        self._raise_trouble()
        while self.returned:
            lent = self.returned[0]
            entry = self._read_returned()
            if entry is not None:
                self._drop_returned()
                return entry, lent
        if not self._head.may_lend:
            return None
        # Nobody may pop meanwhile: that would note this entry as gone before it is lent out.
        self.popper.held = True
        try:
            found = self._next_entry()
            if found is not None:
                self._head.lend(found[1])
            return found
        finally:
            self.popper.held = bool(self.returned)

    @fatal_when_interrupted
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
        """Returns the next entry that has not expired, or the next after an id; it stays."""
        self._raise_trouble()
        return self._look(self._front, self._behind, after)

    def look(self) -> Iterator[Entry]:
        """Begins a look over the whole queue; takes the lock for each entry."""
        return _Look(self, self._new_look())

    def look_on(self, peeking: Peeking, after: int | None) -> Entry | None:
        """Returns the next entry of a look that has come as far as an id."""
        with self._writer.lock:
            self._writer.check()
            self._raise_trouble()
            return self._look(peeking, peeking, after)

    def _look(self, front: Peeking, behind: Peeking, after: int | None) -> Entry | None:
        for lent in self.returned:
            entry = self._read(lent) if after is None or lent.id > after else None
            if entry is not None:
                return entry
        if after is None:
            return front.first(self.place)
        return behind.next(self.place, after)

    def _new_look(self) -> Peeking:
        return Peeking(self._scanner, self._writer, self._clock, self._meet)

    def make_room(self, size: int, count: int, timeout: float | None) -> Room:
        """Waits, refuses or drops until so much may be written; returns how much may be."""
        most = Room(self._options.max_bytes or NO_BOUND, self._options.max_entries or NO_BOUND)
        if most == Room():
            return most
        if size > most.size:
            raise Full(f"{size} bytes are more than max_bytes = {most.size}; nothing was written")
        if count > most.entries:
            raise Full(
                f"{count} entries are more than max_entries = {most.entries}; nothing was written"
            )
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            used = Room(self._writer.position - self.first_position, self.count)
            left = Room(most.size - used.size, most.entries - used.entries)
            if size <= left.size and count <= left.entries:
                return left
            if self._skip_expired():
                continue
            if self._options.when_full == "drop_oldest" and (
                self._drop_entries(count - left.entries)
                if count > left.entries
                else self._drop_oldest()
            ):
                continue
            wait = _WAIT_SECONDS
            if deadline is not None:
                wait = min(wait, deadline - self._clock.monotonic())
            if self._options.when_full == "reject" or wait <= 0:
                raise Full(f"{self._full_text(used, size > left.size)}; nothing was written")
            self._writer.changes.wait(wait)
            self._writer.check()

    def _full_text(self, used: Room, by_size: bool) -> str:
        path = self._directory.path
        if by_size:
            return f"{path} holds {used.size} bytes of max_bytes = {self._options.max_bytes}"
        return f"{path} holds {used.entries} entries of max_entries = {self._options.max_entries}"

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

    def settle_head(self) -> None:
        """Makes durable what was taken, in every place that holds it. Nobody pops any more."""
        try:
            self._head.commit(self._head.state())
            self._head.settle()
        except OSError as error:
            with self._writer.lock:
                self._fail(error)
            raise

    def save_losses(self) -> None:
        """Writes down the damage that was met. Without the lock."""
        with self._writer.lock:
            self.losses.save()

    def tell(self, *, at_once: bool = False) -> None:
        """Logs how many entries were dropped, at most once a second. Without the lock.

        A handler may push to this very queue.
        """
        if not self._untold:
            return
        with self._writer.lock:
            now = self._clock.monotonic()
            if self._told_at is not None and now - self._told_at < _TELL_SECONDS and not at_once:
                return
            count, self._untold, self._told_at = self._untold, 0, now
        if count:
            path = self._directory.path
            _logger.warning("%s is full: the %d oldest entries were dropped", path, count)

    def close(self) -> None:
        """Closes its files."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._scanner.close)
            self._head.close()

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
        # First: while a window is open, other threads pop without the lock.
        self.popper.close()
        from_memory, self._in_memory = self._in_memory, False
        place = self.place
        self._release()
        if from_memory and place.number < self._writer.number:
            # What is next in the buffer does not verify: on the tape it is judged.
            self._writer.drain()
        if place.number >= self._writer.readable.number:
            return self._look_into_memory(place)
        end = self._end()
        # Not beyond the file: its space comes back when all of it has left.
        rest = self._file_bytes - place.position % self._file_bytes
        data = self._scanner.window(place, end.position, min(rest, WINDOW_BYTES))
        if data is not None:
            self.popper.open(data, place.position, None)
            return True
        self._scanner.refuse_unknown(place)
        damage, place = self._scanner.judge(place, end)
        self.popper.place(*place)
        if damage is not None:
            self.popper.damaged += damage.count or 0
            self.popper.save()
            self._meet(damage)
        return True

    def _meet(self, damage: Damage) -> None:
        """Takes note of damage, and raises it if nobody was told yet."""
        if self.losses.note(damage):
            raise Damaged(damage)

    def _leave_memory(self) -> None:
        """Ends a look into the staging buffer, whose bytes are about to change."""
        if self._in_memory:
            self._in_memory = False
            self.popper.close()

    def _look_into_memory(self, place: Place) -> bool:
        """Opens the staging buffer as a window, if it has entries that are not in the files."""
        writer = self._writer
        if writer.always or not writer.waiting or writer.number <= place.number:
            return False
        if place.position < writer.stored.position:
            self.popper.place(writer.stored.position, place.number, place.last_id)
        self._in_memory = True
        self.popper.open(writer.memory, writer.stored.position - HEADER_BYTES, writer.pusher)
        return True

    def _end(self) -> Place:
        readable = self._writer.readable
        return Place(readable.position, readable.number, 0)

    @fatal_when_interrupted
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
        """Raises what a call before could not, because it had something to give.

        And what was lost before the queue was opened, once each.
        """
        if unless:
            return
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble.with_traceback(None)
        if self.losses.waiting:
            damage = self.losses.next_pending()
            if damage is not None:
                raise Damaged(damage)

    def _drop_returned(self) -> None:
        del self.returned[0]
        self.popper.held = bool(self.returned)

    def _read_returned(self) -> Entry | None:
        """Reads the first entry that was given back; one that is gone leaves, and raises once."""
        lent = self.returned[0]
        entry = self._read(lent, leaving=True)
        if entry is None:
            self._head.finish(lent.number)
            self._drop_returned()
            self._raise_trouble()
        return entry

    def _read(self, lent: Lent, *, leaving: bool = False) -> Entry | None:
        """Reads an entry that was lent out; None if it has expired or cannot be read."""
        if lent.position >= self._writer.stored.position:
            self._writer.drain()
        stored = self._writer.stored
        data = self._scanner.window(lent.place, stored.position)
        if data is None:
            end = Place(stored.position, lent.number + 1, lent.id)
            damage, _ = self._scanner.judge(lent.place, end)
            if damage is not None and leaving:
                self.popper.damaged += 1
                self.popper.save()
                if self.losses.note(damage):
                    self._trouble = Damaged(damage)
            return None
        (entry,) = self._scanner.take(data, lent.place, 1).entries()
        return None if entry.has_expired(self._clock.now_ms()) else entry

    @fatal_when_interrupted
    def _drop_entries(self, count: int) -> bool:
        """Drops the oldest entries, so many if there are; False if there are none to drop."""
        if self.returned or self._trouble is not None:
            return False
        dropped = 0
        self.popper.held = True
        try:
            while dropped < count and self.popper.number < self._writer.readable.number:
                if self._next_entry() is None:
                    break
                dropped += 1
        except Damaged as error:
            self._trouble = error
            return True
        finally:
            self.popper.held = bool(self.returned)
            if dropped:
                self.popper.dropped += dropped
                self._untold += dropped
                self.popper.save()
        return dropped > 0

    @fatal_when_interrupted
    def _drop_oldest(self) -> bool:
        """Drops the entries that begin in the oldest file; False if there are none to drop."""
        # What other threads pop meanwhile would count as dropped.
        self.popper.held = True
        try:
            return self._drop_file()
        finally:
            self.popper.held = bool(self.returned)

    def _drop_file(self) -> bool:
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
        self._untold += count
        self._release()
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


class _Look(Iterator[Entry]):
    """One look over a queue, from its front to its end. One thread at a time may use it."""

    def __init__(self, reading: Reading, peeking: Peeking) -> None:
        self._reading = reading
        self._peeking = peeking
        self._after: int | None = None

    def __next__(self) -> Entry:
        # An id of 0 is never given out.
        entry = self._reading.look_on(self._peeking, 0 if self._after is None else self._after)
        if entry is None:
            raise StopIteration
        self._after = entry.id
        return entry
