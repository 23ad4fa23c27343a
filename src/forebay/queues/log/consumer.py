"""A named consumer of a log: reads from its own place on, and saves it in `places.py`."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter, length_hint
from typing import TYPE_CHECKING, NamedTuple

from forebay.damage import Damage
from forebay.errors import Closed, Damaged, Empty, InvalidOption, Overtaken
from forebay.queues.log.scanner import RecordBatch, Scanner
from forebay.queues.log.staged import Record
from forebay.queues.shared.handle import Closing
from forebay.queues.shared.options import Duration, as_seconds
from forebay.queues.shared.verbs import Loan, Steps, Work, lends, run, verb
from forebay.queues.shared.waiting import countdown, when_found

if TYPE_CHECKING:
    from forebay.queues.log.queue import Log


Start = str | int | datetime


class Consumer(Closing):
    """Reads a log from its own place on. One thread at a time may use it.

    Nobody is asked to close it: one that is forgotten closes its files and gives its name up.
    """

    def __init__(self, log: Log, name: str, scanner: Scanner) -> None:
        self._log = log
        self._scanner = scanner
        # Held while records are read ahead, which may be done on another thread. A signal handler
        # may close the log in the middle of it, on the same one.
        self._mutex = threading.RLock()
        self._closed = False
        self._batches: Iterator[RecordBatch | Damage] | None = None
        self._trouble: Damage | None = None
        self._ahead = _Ahead(iter(()), 0)
        # What `take` has lent out, what came back of it, in order, and the offset after all that
        # it is done with. The saved place stays below what is lent out or came back.
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
        """The offset of the next record that it gives."""
        return self._returned[0].offset if self._returned else self._ahead.begin

    @property
    def lag(self) -> int:
        """How many records there are that it has not committed."""
        return self._log.end - self.committed

    @verb
    def read(self, count: int = 1000, *, timeout: Duration | None = None) -> Steps[list[Record]]:
        """Returns up to `count` of the next records; an empty list if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came. Records
        that are damaged raise `Damaged`, records that were dropped to make room raise `Overtaken`;
        each once, and the next read goes on after them.
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
        exception in the block it comes again, before newer ones, as it does after a crash. Raises
        `Empty` if there is none, or if none came within `timeout` seconds.

        Blocks may overlap. The place never passes a record whose block is open, or has failed and
        was not given again: a crash brings that one again, and those after it.
        """
        if not (yield from self._wait(1, timeout)):
            raise self._empty(timeout or 0)
        taken = _Taken(self, *self._give(1))
        self._lent.add(taken)
        return taken

    def _next_run(self) -> Steps[Iterator[Record]]:
        """Reads records ahead, if there are any now; returns them, each given when it is taken."""
        yield from self._wait(1, None)
        return iter(self._give(1)) if self._returned else self._ahead.records

    @verb
    def commit(self) -> Steps[None]:
        """Saves the place after the last record read; durable on return.

        Not past a record that `take` has lent out: what was read after it is saved at the next end
        of a block, or commit, after its own.
        """
        yield from self._save(self.position)

    def _save(self, end: int) -> Steps[None]:
        """Saves a place; only after a `seek` it may lie before the one that is saved."""
        waiting = [*(taken.value for taken in self._lent), *self._returned[:1]]
        place = min([end, *(record.offset for record in waiting)])
        self.committed = yield from self._log._saving(self.name, place, back=self._sought)
        self._sought = False

    def _save_finished(self) -> Steps[None]:
        """Saves the place after all that `take` is done with."""
        yield from self._save(self._finished)

    def seek(self, start: Start) -> None:
        """Moves to "earliest", "latest", an offset, or the first record not older than a time.

        The time is a datetime with its zone.
        Nothing is saved before `commit`, or the end of a later `take`: the end of an earlier one
        saves nothing and brings nothing back.
        """
        self._move_to(self._log.resolve(start))
        self._lent.clear()
        self._returned.clear()
        self._finished = 0
        self._sought = True

    def close(self) -> None:
        """Closes its files; the saved place stays, and another consumer may have the name."""
        with self._mutex:
            self._closed = True
            self._scanner.close()
        self._log._release_name(self)

    def __del__(self) -> None:
        self._scanner.close()

    def __iter__(self) -> Iterator[Record]:
        """Yields the records that are there now, one by one; a commit covers those given so far."""
        return chain.from_iterable(self._runs())

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} at {self.position} of {self._log.path}>"

    def _runs(self) -> Iterator[Iterator[Record]]:
        while length_hint(records := run(self._next_run())):
            yield records

    def _wait(self, count: int, timeout: Duration | None) -> Steps[bool | None]:
        """Reads up to `count` records ahead, waits for the first; says whether there are any."""
        self._log._raise_losses()
        seconds_left = countdown(self._log._clock, 0 if timeout is None else timeout)
        return (yield from when_found(self._log.changes, lambda: self._look(count), seconds_left))

    def _empty(self, timeout: Duration) -> Empty:
        seconds = as_seconds(timeout)
        return Empty(f"{self._log.path}: nothing new for {self.name!r} in {seconds} s")

    def _look(self, count: int) -> Steps[bool | None]:
        """Reads up to `count` records ahead; None if there are none. Raises what is lost."""
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
        """Returns up to `count` of the records that are there, those that came back first."""
        given = self._returned[:count]
        del self._returned[:count]
        given += islice(self._ahead.records, count - len(given))
        return given

    def _may_fetch(self) -> bool:
        """Says whether there is more than what was read ahead."""
        if self._closed:
            raise Closed(f"consumer {self.name!r} of {self._log.path} is closed")
        if self._trouble is not None:
            return False
        return self._batches is not None or self._log._readable()[0] > self._ahead.end

    def _pass(self, damage: Damage) -> None:
        """Goes on after damage, and raises it if nobody has seen it."""
        after = (damage.offset or 0) + (damage.count or 0)
        if damage.count is None:
            # How many are lost cannot be told: none of what there is now can be read.
            after = self._log._readable()[0]
        self._trouble = None
        self._ahead = _Ahead(iter(()), max(self._ahead.end, after))
        if self._log._is_news(damage):
            raise Damaged(damage)

    def _fill(self, count: int) -> None:
        """Reads ahead until there are `count` records, no more, or damage comes first.

        Takes nothing: a read that is cancelled meanwhile leaves all to the next one. A log that is
        closed meanwhile leaves no file open, and says so.
        """
        with self._mutex:
            try:
                while self._ahead.left < count and self._trouble is None and self._fetch():
                    pass
            except Overtaken:
                # Segments went while they were read: what was read is good, the rest is gone.
                self._batches = None
            except BaseException as error:
                # A batch may have been read and not kept.
                self._batches = None
                if isinstance(error, OSError):
                    self._log._readable()
                raise
            finally:
                if self._log._closed or self._closed:
                    self._scanner.close()

    def _fetch(self) -> bool:
        """Gets the next records, or damage that comes first; False if there are none."""
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
    """Records that were read and not given yet, and the offset after them.

    One value: whatever interrupts a read, the two agree.
    """

    records: Iterator[Record]
    end: int

    @property
    def begin(self) -> int:
        """The offset of the first of them."""
        return self.end - self.left

    @property
    def left(self) -> int:
        """How many records there are; exact, as they are the iterator of a list."""
        return length_hint(self.records)


class _Taken:
    """A record that a consumer has lent out.

    What its end means for the consumer happens at once, before the steps: a task that is cancelled
    meanwhile leaves nothing lent out.
    """

    def __init__(self, consumer: Consumer, record: Record) -> None:
        self._consumer = consumer
        self.value = record

    def finish(self) -> Steps[None]:
        """Counts it as done with; the steps save the place."""
        consumer = self._consumer
        if self not in consumer._lent:
            return _no_steps()
        consumer._lent.remove(self)
        consumer._finished = max(consumer._finished, self.value.offset + 1)
        return consumer._save_finished()

    def give_back(self, error: BaseException) -> Steps[None]:
        """Lets it come again, before newer ones."""
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
