"""A fifo as one kind of queue among others: scan, put and lend through one protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, Empty
from forebay.formats.entry import SIZE_MAX
from forebay.kernels.entry import METADATA_BYTES, Entry
from forebay.queues.fifo import dead as aside
from forebay.queues.fifo.check import end_damage, is_alive
from forebay.queues.fifo.queue import Fifo
from forebay.queues.fifo.reader import FifoReader
from forebay.queues.fifo.scanner import EntryBatch
from forebay.queues.shared.rows import Lent, Limits, Rows, value_json
from forebay.storage.filesystem import DiskFilesystem, lock_owner


def scan(path: str, *, dead: bool = False) -> Iterator[Rows | Damage]:
    """Yields what has not left a fifo, including expired entries, and each damage where it occurs.

    With `dead` yields the entries that were put aside instead.
    """
    with FifoReader(path) as reader:
        if dead:
            for found in aside.read(reader.directory):
                yield found if isinstance(found, Damage) else _rows_of_entries([found])
            return
        # Ask for the owner first: if it ends meanwhile, it has finished what it was writing.
        owner = lock_owner(reader.path)
        for item in reader.scan():
            yield item if isinstance(item, Damage) else _rows_of(item)
        end = end_damage(reader, owner)
        if end is not None:
            yield end


def peek(path: str, *, after: int | None = None) -> Iterator[Rows | Damage]:
    """Yields the entries that come next, or those after an id, without removing them."""
    now_ms = SystemClock().now_ms()
    with FifoReader(path) as reader:
        for item in reader.scan():
            if isinstance(item, Damage):
                yield item
                continue
            entries = [entry for entry in item.entries() if is_alive(entry, now_ms)]
            yield _rows_of_entries([e for e in entries if after is None or e.id > after])


def next_ms(path: str) -> int | None:
    """Returns 0 if there is an entry, else None."""
    with FifoReader(path) as reader:
        return 0 if len(reader) else None


def limits(fifo: Fifo) -> Limits:
    """Returns the limits of a fifo."""
    return Limits(SIZE_MAX, METADATA_BYTES, fifo.options.max_bytes)


def put(fifo: Fifo, values: list[bytes]) -> tuple[None, int | None]:
    """Pushes entries; returns the id of the last."""
    return None, fifo.push_many(values)


def kick(fifo: Fifo, id: int | None = None, *, count: int | None = None) -> int:
    """Pushes back an entry that was put aside, or the `count` oldest ones; returns how many.

    They get new ids and a full time to live. A crash may leave one in both places, never in none.
    """
    chosen = [entry for entry in fifo.dead() if id is None or entry.id == id][:count]
    with contextlib.closing(DiskFilesystem().open_directory(fifo.path)) as directory:
        for entry in chosen:
            fifo.push(entry.value, ttl_seconds=entry.ttl_seconds)
            fifo.sync()
            aside.remove(directory, entry)
    return len(chosen)


def lender(fifo: Fifo) -> Callable[[int], AbstractContextManager[Lent]]:
    """Returns a function that lends the next entries; they are removed as each block ends."""
    return partial(_lend, fifo)


@contextlib.contextmanager
def _lend(fifo: Fifo, count: int) -> Iterator[Lent]:
    damage: list[Damage] = []
    entries: list[Entry] = []
    with contextlib.ExitStack() as lent:
        try:
            while len(entries) < count:
                entries.append(lent.enter_context(fifo.take()))
        except Empty:
            pass
        except Damaged as error:
            damage.append(error.damage)
        yield Lent(_rows_of_entries(entries), damage)
    fifo.sync()


def _rows_of(batch: EntryBatch) -> Rows:
    return Rows(
        batch.values,
        lambda index: _line(batch.ids[index], batch.ttls[index], batch.values[index]),
    )


def _rows_of_entries(entries: list[Entry]) -> Rows:
    def line(index: int) -> bytes:
        entry = entries[index]
        return _line(entry.id, entry.ttl_seconds, entry.value)

    return Rows([entry.value for entry in entries], line)


def _line(id: int, ttl: int, value: bytes) -> bytes:
    time_ms = id >> 16
    expires = b"%d" % (time_ms + ttl * 1000) if ttl else b"null"
    row = (id, id, time_ms, ttl, expires, value_json(value))
    return (
        b'{"kind":"fifo","id":%d,"id_str":"%d","time_ms":%d,"ttl_seconds":%d,"expires_ms":%b,%b}\n'
        % row
    )
