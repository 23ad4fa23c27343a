"""How entries leave a fifo: popped, lent, peeked at, dropped to make room, put aside.

Called with the queue's lock held, except where stated. The compiled `HeadCursor` takes entries from
a window; this module opens the next window: over the next part of the tape or the staging buffer,
past the unused end of a file or past damage. Space is freed by whole files: the head is made
durable, then the files below it are removed. `Peeking` reads entries in order and leaves them.

What a pop has taken is remembered until it is gone for good: if the caller does not receive it, it
goes back to the front, as does an entry that was lent.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator

from forebay.clock import SteadyClock
from forebay.damage import Damage
from forebay.errors import Damaged, Full
from forebay.kernels.entry import METADATA_BYTES, Entry
from forebay.queues.fifo import dead
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import Head, Lent, Popped
from forebay.queues.fifo.options import ATTEMPTS_MAX, FifoOptions
from forebay.queues.fifo.scanner import WINDOW_BYTES, FifoScanner, Place
from forebay.queues.fifo.writer import FifoWriter, Room
from forebay.queues.shared.owner import fatal_when_interrupted
from forebay.storage.atomic import keep_reserve
from forebay.storage.commit import GroupCommit, Ticket
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses
from forebay.storage.staging import HEADER_BYTES

_ENTRIES = 256
# How much one call lends, and the entry that goes beyond it.
LENT_BYTES = 16 << 20


class Peeking:
    """The position of the last look, and what was read ahead. Called with the queue's lock held.

    `meet` is called with each damage found, and raises it if it must be reported.
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
        """Returns the first entry at or after the head that has not expired.

        The entry is kept for the next call. Entries that have expired are never read again.
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
        """Returns the first unexpired entry at or after the head with an id above `after`.

        It is found at once if the id is the one that the last look returned.
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
_TELL_SECONDS = 1.0


class Front:
    """The front of a fifo."""

    def __init__(
        self,
        directory: Directory,
        writer: FifoWriter,
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
        self._head = writer.head
        self.cursor = writer.head.cursor
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._version = version
        self._options = options
        self._clock = clock
        self._scanner = FifoScanner(directory, file_bytes, version, bounds)
        # Lent before a crash, or given back: these go next, in the order of their numbers.
        self.returned = sorted(self._head.lent.values(), key=_number_of)
        self._came_back = frozenset(self._head.lent)
        self._began_at = self.cursor.number
        self._let_go()
        self.commit = GroupCommit(
            self.sync_head if writer.always else self._store_head, self.cursor.sequence
        )
        self._trouble: Damaged | None = None
        self._front = self._new_look()
        self._behind = self._new_look()
        # How many drops are not reported yet, and the time of the last report.
        self._untold = 0
        self._told_at: float | None = None

    @property
    def lent_out(self) -> int:
        """How many entries are currently lent."""
        return len(self._head.lent) - len(self.returned)

    @property
    def may_lend(self) -> bool:
        """Whether one more entry can be lent; those that were given back always can."""
        return bool(self.returned) or self._head.may_lend

    @fatal_when_interrupted
    def pop(self, count: int) -> Popped:
        """Takes up to `count` entries; expired ones are removed as well.

        Raises Damaged once for each damage; damage after the first entry is left for the next call.
        """
        self._raise_trouble()
        before = self.cursor.sequence
        popped = Popped(self._head.place)
        values = popped.values
        try:
            while self.returned and len(values) < count:
                lent = self.returned[0]
                entry = self._read_returned()
                if entry is not None:
                    self._head.finish([lent.number])
                    self._drop_returned()
                    popped.rows.append(lent)
                    values.append(entry.value)
            while len(values) < count:
                more = self.cursor.take_many(count - len(values))
                values += more
                if not more and not self._advance():
                    break
        except (OSError, Damaged) as error:
            if not values:
                raise
            if isinstance(error, Damaged):
                self._trouble = error
        popped.end = self.cursor.number
        if self._writer.changes.wanted and self.cursor.sequence != before:
            # Even if all had expired: there may be room now.
            self._writer.changes.announce()
        if values and not self._head.mapped:
            self._head.unsettled.add(popped)
        return popped

    def settled(self, popped: Popped) -> bool:
        """Forgets a pop that is gone for good; says whether it was remembered. Without the lock."""
        was_open = popped in self._head.unsettled
        self._head.unsettled.discard(popped)
        return was_open

    @fatal_when_interrupted
    def give_back_popped(self, popped: Popped) -> None:
        """Puts back what a pop took but did not deliver; does not wait for the disk.

        After a failure the head has gone back by itself; after a close it is too late.
        """
        self._head.unsettled.discard(popped)
        if self._writer.error is not None or not (popped.values or popped.rows):
            return
        rows = popped.rows + self._rows_between(popped.start, popped.end)
        self._head.lent.update((row.number, row) for row in rows)
        self.returned = sorted([*self.returned, *rows], key=_number_of)
        # Entries that no later pop has passed need no row: the head moves back to them.
        while self.returned and self._is_next_before(self.returned[-1]):
            row = self.returned.pop()
            del self._head.lent[row.number]
            self.cursor.place(*row.place)
        self._let_go()
        self._head.save()
        self._front = self._new_look()
        self._writer.changes.announce()
        # A head that has passed them may be durable already.
        self.ticket().notify(lambda error: None)

    def _is_next_before(self, row: Lent) -> bool:
        return row.number == self.cursor.number - 1 and not row.attempts

    def _rows_between(self, start: Place, end: int) -> list[Lent]:
        """Returns where on the tape the entries from a place up to a number are."""
        rows: list[Lent] = []
        for item in self._scanner.scan(start, self._end()._replace(number=end)):
            if isinstance(item, Damage):
                continue
            position = item.start.position
            for entry in item.entries():
                rows.append(Lent(position, entry.offset, entry.id, 0))
                position += METADATA_BYTES + len(entry.value)
        return rows

    @fatal_when_interrupted
    def lend(self, count: int) -> list[tuple[Entry, Lent]]:
        """Takes up to `count` entries so that a crash gives them back; fewer if fewer are there.

        Of large entries no more than what makes `LENT_BYTES` full: each call is held in memory.
        Raises `Damaged` once for each damage; damage after the first entry is left for the next
        call.
        """
        self._raise_trouble()
        found: list[tuple[Entry, Lent]] = []
        size = 0
        # No pop may run meanwhile: it would record an entry as gone before it is lent.
        self.cursor.held = True
        try:
            while len(found) < count and size < LENT_BYTES:
                one = self._lend_returned() if self.returned else self._lend_next()
                if one is None:
                    break
                found.append(one)
                size += len(one[0].value)
        except (OSError, Damaged) as error:
            if not found:
                raise
            if isinstance(error, Damaged):
                self._trouble = error
        finally:
            if found:
                self._head.save()
            self._let_go()
        return found

    def _lend_returned(self) -> tuple[Entry, Lent] | None:
        """Lends the first entry that came back; the head is to be saved."""
        while self.returned:
            lent = self.returned[0]
            entry = self._read_returned()
            if entry is not None:
                lent = lent._replace(attempts=min(lent.attempts + 1, ATTEMPTS_MAX))
                self._head.lent[lent.number] = lent
                del self.returned[0]
                return entry, lent
        return self._lend_next()

    def _lend_next(self) -> tuple[Entry, Lent] | None:
        """Lends the next entry of the tape; the head is to be saved."""
        found = self._next_entry() if self._head.may_lend else None
        if found is not None:
            self._head.lent[found[1].number] = found[1]
        return found

    @fatal_when_interrupted
    def finish(self, lent: list[Lent]) -> None:
        """Removes lent entries for good."""
        there = [row.number for row in lent if row.number in self._head.lent]
        if there:
            self._head.finish(there)
            self._release()
            if self._writer.changes.wanted:
                self._writer.changes.announce()

    def had_left(self, number: int) -> bool:
        """Says whether an entry had left for good when the queue was opened."""
        return number < self._began_at and number not in self._came_back

    def finish_pop(self, lent: list[Lent]) -> Popped:
        """Removes what was lent to a client that pops it; it can be given back until `settled`."""
        popped = Popped(self._head.place)
        popped.rows += [row._replace(attempts=row.attempts - 1) for row in lent]
        self._head.unsettled.add(popped)
        self.finish(lent)
        return popped

    def give_back(self, lent: Lent, *, counted: bool = True) -> None:
        """Puts a lent entry back at the front; `counted`: the attempt counts."""
        if lent.number in self._head.lent:
            if not counted:
                lent = self._head.lent[lent.number] = lent._replace(attempts=lent.attempts - 1)
            self.cursor.held = True
            bisect.insort(self.returned, lent, key=_number_of)
            self._writer.changes.announce()

    def is_exhausted(self, lent: Lent) -> bool:
        """Says whether an entry that comes back now has come back too often."""
        most = self._options.max_attempts
        return most is not None and lent.attempts >= most

    def put_aside(self, lent: Lent, entry: Entry) -> None:
        """Puts a lent entry aside; if that fails it goes back to the front.

        Without the lock. The entry is durable in its new place before the head releases it.
        """
        try:
            dead.keep(self._directory, entry, self._version)
        except BaseException:
            with self._writer.lock:
                self.give_back(lent)
            raise
        with self._writer.lock:
            # If the queue is closed by now, the next open puts the entry aside again.
            self._writer.check()
            self.finish([lent])
        text = "%s: entry %d put aside: it came back after attempt %d"
        _logger.warning(text, self._directory.path, entry.id, lent.attempts)

    def put_exhausted_aside(self) -> None:
        """Puts aside the entries that came back too often as processes ended; before any pop."""
        exhausted = [row for row in self.returned if self.is_exhausted(row)]
        for lent in exhausted:
            entry = self._read(lent)
            # On a full disk they stay at the front: the queue must open, so that it can be drained.
            with contextlib.suppress(OSError):
                if entry is not None:
                    self.returned.remove(lent)
                    self.put_aside(lent, entry)
        self._let_go()
        if exhausted and not self._head.mapped:
            self.ticket().settle()

    def peek(self, after: int | None) -> Entry | None:
        """Returns the next entry that has not expired, or the next after an id; it stays."""
        self._raise_trouble()
        return self._look(self._front, self._behind, after)

    def look(self) -> Iterator[Entry]:
        """Begins an iteration over the whole queue; takes the lock for each entry."""
        return _Look(self, self._new_look())

    def look_on(self, peeking: Peeking, after: int | None) -> Entry | None:
        """Returns the next entry of an iteration that has reached an id."""
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
            return front.first(self._head.place)
        return behind.next(self._head.place, after)

    def _new_look(self) -> Peeking:
        return Peeking(self._scanner, self._writer, self._clock, self._meet)

    def make_room(self, size: int, count: int) -> bool:
        """Drops what may be dropped until the write fits, in memory too; False if it does not fit.

        Raises `Full` if the write can never fit, or if the caller is not to wait.
        """
        writer, options = self._writer, self._options
        writer.drain()
        if size > (options.max_bytes or size):
            text = f"{size} bytes are more than max_bytes = {options.max_bytes}"
            raise Full(f"{text}; nothing was written")
        if count > (options.max_entries or count):
            text = f"{count} entries are more than max_entries = {options.max_entries}"
            raise Full(f"{text}; nothing was written")
        left = writer.room
        while size > left.size or count > left.entries:
            if not self._skip_expired() and not self._drop_for(count, left):
                if options.when_full == "reject":
                    raise Full(self._full_text(left, by_size=size > left.size))
                return False
            left = writer.room
        writer.open_memory()
        return True

    def _drop_for(self, count: int, left: Room) -> bool:
        """Drops the oldest entries if that is allowed; returns whether there is more room now."""
        if self._options.when_full != "drop_oldest":
            return False
        if count > left.entries:
            return self._drop_entries(count - left.entries)
        return self._drop_oldest()

    def _full_text(self, left: Room, *, by_size: bool) -> str:
        options = self._options
        used = f"{self._writer.count} entries of max_entries = {options.max_entries}"
        if by_size:
            size = (options.max_bytes or 0) - left.size
            used = f"{size} bytes of max_bytes = {options.max_bytes}"
        return f"{self._directory.path} holds {used}; nothing was written"

    def seconds_to_expiry(self) -> float:
        """Returns in how many seconds the next entry expires, which also makes room.

        Without the lock.
        """
        with self._writer.lock:
            expires_ms = self.cursor.next_expiry_ms()
        return (expires_ms - self._clock.now_ms()) / 1000 if expires_ms else math.inf

    def ticket(self) -> Ticket:
        """Returns a ticket to wait on until what was taken is gone for good."""
        return Ticket(self.commit, self.cursor.sequence)

    def fail(self, error: BaseException) -> None:
        """Ends the handle: every later call raises."""
        self._writer.fail(error)

    def sync_head(self) -> int:
        """Makes durable what was taken so far; returns the sequence reached. Without the lock."""
        return self._keep_head(self._head.commit)

    def settle_head(self) -> None:
        """Makes durable what was taken, in all slots of the head. No pop runs any more."""
        # A pop that waits for this returns its entry, even though the queue is closed.
        self.commit.advance(self._keep_head(self._head.settle))

    def save_losses(self) -> None:
        """Writes down the damage that was found. Without the lock."""
        with self._writer.lock:
            self.losses.save()

    def tell(self, *, at_once: bool = False) -> None:
        """Logs how many entries were dropped, at most once a second. Without the lock.

        Without it because a logging handler may push to this same queue.
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
        self._scanner.close()

    def _next_entry(self) -> tuple[Entry, Lent] | None:
        """Steps over the next entry that has not expired; `save` records the step."""
        while True:
            number = self.cursor.number
            found = self.cursor.next_entry()
            if found is not None:
                value, entry_id, ttl, position = found
                number = self.cursor.number - 1
                return Entry(number, entry_id, ttl, value), Lent(position, number, entry_id)
            if self.cursor.number != number:
                # Expired entries have left: there may be room now. What was just lent is saved too.
                self._head.save()
                self._writer.changes.announce()
            if not self._advance():
                return None

    def _advance(self) -> bool:
        """Opens the next window; False if there is nothing more for now."""
        from_memory = self.cursor.in_memory
        # This comes first: while a window is open, other threads pop without the lock.
        self.cursor.close()
        place = self._head.place
        self._release()
        if from_memory and place.number < self._writer.applied:
            # The next entry in the buffer does not verify: it is judged once it is on the tape.
            self._writer.drain()
        if place.number >= self._writer.readable.number:
            return self._look_into_memory(place)
        end = self._end()
        # Not past the end of the file: its space is freed when all of its entries have left.
        rest = self._file_bytes - place.position % self._file_bytes
        data = self._scanner.window(place, end.position, min(rest, WINDOW_BYTES))
        if data is not None:
            self.cursor.open(data, place.position, None)
            return True
        self._scanner.refuse_unknown(place)
        damage, place = self._scanner.judge(place, end)
        self.cursor.place(*place)
        if damage is not None:
            self.cursor.damaged += damage.count or 0
            self.cursor.save()
            self._meet(damage)
        return True

    def _meet(self, damage: Damage) -> None:
        """Records damage, and raises it if it was not reported before."""
        if self.losses.note(damage):
            raise Damaged(damage)

    def _look_into_memory(self, place: Place) -> bool:
        """Opens the staging buffer as a window, if it has entries that are not in the files."""
        writer = self._writer
        if writer.always or writer.applied <= place.number:
            return False
        if place.position < writer.stored.position:
            self.cursor.place(writer.stored.position, place.number, place.last_id)
        self.cursor.open(writer.memory, writer.stored.position - HEADER_BYTES, writer.staged)
        return True

    def _end(self) -> Place:
        readable = self._writer.readable
        return Place(readable.position, readable.number, 0)

    @fatal_when_interrupted
    def _skip_expired(self) -> bool:
        """Removes the entries at the front that have expired; returns whether there were any."""
        while not self.returned and self._trouble is None:
            before = self._head.place
            if self.cursor.skip_expired():
                return True
            try:
                if not self._advance():
                    return False
            except Damaged as error:
                self._trouble = error
                return True
            if self.cursor.skip_expired():
                return True
            if self._head.place == before:
                # The next entry has not expired.
                return False
        return False

    def _raise_trouble(self, *, unless: bool = False) -> None:
        """Raises the error that an earlier call held back because it had entries to return.

        Also raises what was lost before the queue was opened, once each.
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
        self._let_go()

    def _read_returned(self) -> Entry | None:
        """Reads the first entry given back; one that is gone is removed, and raises once."""
        lent = self.returned[0]
        entry = self._read(lent, leaving=True)
        if entry is None:
            self._head.finish([lent.number])
            self._drop_returned()
            self._raise_trouble()
        return entry

    def _read(self, lent: Lent, *, leaving: bool = False) -> Entry | None:
        """Reads an entry that was lent; None if it has expired or cannot be read."""
        if lent.position >= self._writer.stored.position:
            self._writer.drain()
        stored = self._writer.stored
        data = self._scanner.window(lent.place, stored.position)
        if data is None:
            end = Place(stored.position, lent.number + 1, lent.id)
            damage, _ = self._scanner.judge(lent.place, end)
            if damage is not None and leaving:
                self.cursor.damaged += 1
                self.cursor.save()
                if self.losses.note(damage):
                    self._trouble = Damaged(damage)
            return None
        (entry,) = self._scanner.take(data, lent.place, 1).entries()
        return None if entry.has_expired(self._clock.now_ms()) else entry

    @fatal_when_interrupted
    def _drop_entries(self, count: int) -> bool:
        """Drops up to `count` of the oldest entries; False if there are none to drop."""
        if self.returned or self._trouble is not None:
            return False
        dropped = 0
        self.cursor.held = True
        try:
            while dropped < count and self.cursor.number < self._writer.readable.number:
                if self._next_entry() is None:
                    break
                dropped += 1
        except Damaged as error:
            self._trouble = error
            return True
        finally:
            self._let_go()
            if dropped:
                self.cursor.dropped += dropped
                self._untold += dropped
                self.cursor.save()
        return dropped > 0

    @fatal_when_interrupted
    def _drop_oldest(self) -> bool:
        """Drops the entries that begin in the oldest file; False if there are none to drop."""
        # Otherwise what other threads pop meanwhile would count as dropped.
        self.cursor.held = True
        try:
            return self._drop_file()
        finally:
            self._let_go()

    def _drop_file(self) -> bool:
        self._writer.drain()
        stored = self._writer.stored
        place = self._head.place
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
            # The head must not stand at a place where a power cut leaves nothing.
            self._writer.sync_now()
        count = target.number - place.number
        self.cursor.place(*target)
        self.cursor.dropped += count
        self.cursor.save()
        self._untold += count
        self._release()
        return True

    def _release(self) -> None:
        """Makes durable what has left, then removes the files whose entries have all left."""
        tape = self._writer.tape
        below = self._head.first_position
        if not tape.numbers or tape.numbers[0] >= below // self._file_bytes:
            return
        if self._writer.durable.position < below:
            # Recovery begins at the durable mark: the file that contains the mark must exist.
            self._writer.sync_now()
        try:
            self._head.commit(self._head.state())
        except OSError as error:
            self._fail(error)
            raise
        tape.release(below)
        self._bounds.forget_below(below // self._file_bytes)
        keep_reserve(self._directory)
        self._writer.changes.announce()

    def _store_head(self) -> int:
        """Writes the head so that it survives the process; only one thread at a time runs it."""
        return self._keep_head(self._head.store)

    def _keep_head(self, keep: Callable[[Head], None]) -> int:
        with self._writer.lock:
            # During a close, what was popped before is still recorded.
            self._writer.check_whole()
            head = self._head.state()
        try:
            keep(head)
        except OSError as error:
            with self._writer.lock:
                self._fail(error)
            raise
        return head.sequence

    def _let_go(self) -> None:
        """Allows other threads to pop without the lock, if nothing forbids it."""
        self.cursor.held = bool(self.returned) or not self._head.mapped

    def _fail(self, error: OSError) -> None:
        """Ends the handle; the head goes back, as entries that were not delivered are not gone."""
        self._writer.fail(error)
        with contextlib.suppress(OSError):
            self._head.go_back()


class _Look(Iterator[Entry]):
    """One iteration over a queue, from front to end. One thread at a time may use it."""

    def __init__(self, front: Front, peeking: Peeking) -> None:
        self._front = front
        self._peeking = peeking
        self._after: int | None = None

    def __next__(self) -> Entry:
        # No entry has an id of 0.
        entry = self._front.look_on(self._peeking, 0 if self._after is None else self._after)
        if entry is None:
            raise StopIteration
        self._after = entry.id
        return entry


def _number_of(row: Lent) -> int:
    return row.number
