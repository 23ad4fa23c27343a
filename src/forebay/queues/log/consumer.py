"""A named consumer of a log: reads from its own place, and saves that through `places.py`."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter, length_hint
from typing import NamedTuple, Protocol

from forebay.clock import Clock
from forebay.damage import Damage
from forebay.errors import Closed, Damaged, Empty, InvalidOption, Overtaken
from forebay.queues.log.scanner import RecordBatch, Scanner
from forebay.queues.log.staged import Record
from forebay.queues.shared.handle import Closing
from forebay.queues.shared.options import Duration, as_seconds
from forebay.queues.shared.signal import Signal
from forebay.queues.shared.verbs import Loan, Steps, Work, lends, run, verb
from forebay.queues.shared.waiting import countdown, when_found
from forebay.storage.segments import SegmentList

Start = str | int | datetime


class Home(Protocol):
    """What a consumer needs of its log: the log itself, or what another process knows of it."""

    path: str
    _clock: Clock
    _closed: bool

    @property
    def begin(self) -> int:
        """The offset of the oldest record that must be there."""
        ...

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        ...

    @property
    def changes(self) -> Signal:
        """Announces that there may be more to read."""
        ...

    def _resolve(self, start: Start) -> int:
        """Returns the offset that a start means."""
        ...

    def _readable(self) -> tuple[int, int]:
        """Returns the end of the records that may be read now, and of those that are durable."""
        ...

    def _segments_now(self) -> SegmentList:
        """Returns a snapshot of the list of segments."""
        ...

    def _saving(self, name: str, offset: int, *, back: bool = False) -> Steps[int]:
        """Saves a place; returns the one that is saved then."""
        ...

    def _is_news(self, damage: Damage) -> bool:
        """Puts damage on record; says whether to raise it."""
        ...

    def _raise_losses(self) -> None:
        """Raises what recovery has put on record; each loss is raised once."""
        ...

    def _release_name(self, consumer: Consumer) -> None:
        """Frees the name of a closed consumer for another one."""
        ...


class Consumer(Closing):
    """Reads a log from its saved place. One thread at a time may use it.

    It need not be closed: a consumer that is garbage collected closes its files and frees its name.
    """

    def __init__(self, log: Home, name: str, scanner: Scanner) -> None:
        self._log = log
        self._scanner = scanner
        # Held while records are read ahead, perhaps on another thread. Reentrant, because a signal
        # handler may close the log in the middle of that, on the same thread.
        self._mutex = threading.RLock()
        self._closed = False
        self._batches: Iterator[RecordBatch | Damage] | None = None
        self._trouble: Damage | None = None
        self._ahead = _Ahead(iter(()), 0)
        # The records that `take` has lent out, those that came back, in order, and the offset after
        # all that are finished. The saved place stays below what is lent out or came back.
        self._lent: set[_Taken] = set()
        self._returned: list[Record] = []
        self._finished = 0
        self._sought = False
        self.name = name
        self.committed = 0

    def _begin(self, committed: int) -> None:
        """Starts at the saved place."""
        self.committed = committed
        self._move_to(committed)

    @property
    def position(self) -> int:
        """The offset of the next record that it returns."""
        return self._returned[0].offset if self._returned else self._ahead.begin

    @property
    def lag(self) -> int:
        """How many records it has not committed yet."""
        return self._log.end - self.committed

    @verb
    def read(self, count: int = 1000, *, timeout: Duration | None = None) -> Steps[list[Record]]:
        """Returns up to `count` of the next records; an empty list if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none comes. Damaged
        records raise `Damaged`, and records that were dropped to make room raise `Overtaken`; each
        is raised once, and the next read goes on after it.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        if not (yield from self._wait(count, timeout)):
            if timeout is not None:
                raise self._empty(timeout)
            return []
        return self._give(count)

    @lends
    def take(self, *, timeout: Duration | None = None) -> Steps[Loan[Record]]:
        """Lends the next record: `with consumer.take() as record`.

        At the end of the block the place after it is saved, durably, as by `commit`. After an
        exception in the block the record comes again, before newer ones, as it does after a crash.
        Raises `Empty` if there is none, or if none comes within `timeout` seconds.

        Blocks may overlap. The saved place never passes a record whose block is open, or whose
        block failed and which was not lent again: after a crash that record and those after it
        come again.
        """
        if not (yield from self._wait(1, timeout)):
            raise self._empty(timeout or 0)
        taken = _Taken(self, *self._give(1))
        self._lent.add(taken)
        return taken

    def _next_run(self) -> Steps[Iterator[Record]]:
        """Reads ahead the records that are there now; each counts as read once it is iterated."""
        yield from self._wait(1, None)
        return iter(self._give(1)) if self._returned else self._ahead.records

    @verb
    def commit(self, *, before: int | None = None) -> Steps[None]:
        """Saves the place after the last record read, or the one at `before`; durable on return.

        The place does not pass a record that `take` has lent out: records read after it are covered
        by the first commit, or end of a block, after its own block has ended.
        """
        if before is not None and before > self.position:
            raise InvalidOption(f"before = {before}: only records up to {self.position} were read")
        yield from self._save(self.position if before is None else before)

    def _save(self, end: int) -> Steps[None]:
        """Saves a place; only after a `seek` may it lie before the place saved earlier."""
        waiting = [*(taken.value for taken in self._lent), *self._returned[:1]]
        place = min([end, *(record.offset for record in waiting)])
        self.committed = yield from self._log._saving(self.name, place, back=self._sought)
        self._sought = False

    def _save_finished(self) -> Steps[None]:
        """Saves the place after all records that `take` has finished."""
        yield from self._save(self._finished)

    def seek(self, start: Start) -> None:
        """Moves to "earliest", "latest", an offset, or the first record not older than a time.

        The time is a datetime with a time zone. Nothing is saved before `commit` or the end of a
        later `take`: the end of a `take` from before the `seek` saves nothing and gives nothing
        back.
        """
        self._move_to(self._log._resolve(start))
        self._lent.clear()
        self._returned.clear()
        self._finished = 0
        self._sought = True

    def close(self) -> None:
        """Closes its files and frees its name for another consumer; the saved place stays."""
        with self._mutex:
            self._closed = True
            self._scanner.close()
        self._log._release_name(self)

    def __del__(self) -> None:
        self._scanner.close()

    def __iter__(self) -> Iterator[Record]:
        """Yields the records that are there now; a commit covers those yielded so far."""
        return chain.from_iterable(self._runs())

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} at {self.position} of {self._log.path}>"

    def _runs(self) -> Iterator[Iterator[Record]]:
        while length_hint(records := run(self._next_run())):
            yield records

    def _wait(self, count: int, timeout: Duration | None) -> Steps[bool | None]:
        """Reads up to `count` records ahead; waits for the first; says whether there are any."""
        self._log._raise_losses()
        seconds_left = countdown(self._log._clock, 0 if timeout is None else timeout)
        return (yield from when_found(self._log.changes, lambda: self._look(count), seconds_left))

    def _empty(self, timeout: Duration) -> Empty:
        seconds = as_seconds(timeout)
        return Empty(f"{self._log.path}: nothing new for {self.name!r} in {seconds} s")

    def _look(self, count: int) -> Steps[bool | None]:
        """Reads up to `count` records ahead; returns None if there are none. Raises losses."""
        while True:
            self._check_overtaken()
            if self._ahead.left + len(self._returned) < count and self._may_fetch():
                yield Work(lambda: self._fill(count))
            if self._ahead.left or self._returned:
                return True
            self._check_overtaken()
            if self._trouble is None:
                return None
            self._pass(self._trouble)

    def _give(self, count: int) -> list[Record]:
        """Returns up to `count` of the records read ahead, beginning with those that came back."""
        given = self._returned[:count]
        del self._returned[:count]
        given += islice(self._ahead.records, count - len(given))
        return given

    def _may_fetch(self) -> bool:
        """Says whether there may be more than what was read ahead."""
        if self._closed:
            raise Closed(f"consumer {self.name!r} of {self._log.path} is closed")
        if self._trouble is not None:
            return False
        return self._batches is not None or self._log._readable()[0] > self._ahead.end

    def _pass(self, damage: Damage) -> None:
        """Goes on after damage; raises it unless it has been marked as seen."""
        after = (damage.offset or 0) + (damage.count or 0)
        if damage.count is None:
            # The number of lost records is unknown: none of what is there now can be read.
            after = self._log._readable()[0]
        self._trouble = None
        self._ahead = _Ahead(iter(()), max(self._ahead.end, after))
        if self._log._is_news(damage):
            raise Damaged(damage)

    def _fill(self, count: int) -> None:
        """Reads ahead until there are `count` records, no more are there, or damage comes first.

        Takes nothing: if the read is cancelled meanwhile, all is left for the next one. If the log
        is closed meanwhile, leaves no file open, and raises `Closed`.
        """
        with self._mutex:
            try:
                while self._ahead.left < count and self._trouble is None and self._fetch():
                    pass
            except Overtaken:
                # Segments were removed while they were read: what was read is good, the rest gone.
                self._batches = None
            except BaseException as error:
                # The iterator may be past a batch that was not kept: read that again.
                self._batches = None
                if isinstance(error, OSError):
                    self._log._readable()
                raise
            finally:
                if self._log._closed or self._closed:
                    self._scanner.close()

    def _fetch(self) -> bool:
        """Fetches the next records, or damage before them; returns False if there is neither."""
        ahead = self._ahead
        item = None if self._batches is None else next(self._batches, None)
        if item is None:
            self._batches = None
            end, _ = self._log._readable()
            if end <= ahead.end:
                return False
            self._scanner.look_at(self._log._segments_now())
            self._batches = self._scanner.scan(ahead.end, end, end)
            item = next(self._batches, None)
        if isinstance(item, Damage):
            self._trouble = item
        elif item is not None:
            records = item.since(ahead.end).records()
            if ahead.left:
                records = [*ahead.records, *records]
            self._ahead = _Ahead(iter(records), item.offset + len(item.values))
        return item is not None

    def _check_overtaken(self) -> None:
        begin, position = self._log.begin, self._ahead.begin
        if position < begin:
            self._move_to(begin)
            raise Overtaken(f"consumer {self.name!r}", begin - position)

    def _move_to(self, offset: int) -> None:
        with self._mutex:
            self._batches = self._trouble = None
            self._ahead = _Ahead(iter(()), offset)


class _Ahead(NamedTuple):
    """Records that were read ahead and not returned yet, and the offset after them.

    Both are in one value, so that they agree whatever interrupts a read.
    """

    records: Iterator[Record]
    end: int

    @property
    def begin(self) -> int:
        """The offset of the first of them."""
        return self.end - self.left

    @property
    def left(self) -> int:
        """How many records are left; exact, because `records` is the iterator of a list."""
        return length_hint(self.records)


class _Taken:
    """A record that a consumer has lent out.

    Its end changes the consumer at once, before the steps run: so a task that is cancelled
    meanwhile leaves nothing lent out.
    """

    def __init__(self, consumer: Consumer, record: Record) -> None:
        self._consumer = consumer
        self.value = record

    def finish(self) -> Steps[None]:
        """Counts the record as finished; the steps save the place."""
        consumer = self._consumer
        if self not in consumer._lent:
            return _no_steps()
        consumer._lent.remove(self)
        consumer._finished = max(consumer._finished, self.value.offset + 1)
        return consumer._save_finished()

    def give_back(self, error: BaseException) -> Steps[None]:
        """Makes the record come again, before newer ones."""
        consumer = self._consumer
        if self in consumer._lent:
            consumer._lent.remove(self)
            insort(consumer._returned, self.value, key=attrgetter("offset"))
            # Another task may wait for it.
            consumer._log.changes.answer()
        return _no_steps()


def _no_steps() -> Steps[None]:
    return
    yield
