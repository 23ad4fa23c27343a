"""What `python -m benchmarks` measures: Forebay's queues, and others with the same work.

A subject puts values one by one or in batches and reads them back; one for deadlines also puts them
at a time and takes what is due. "Not durable" means that a value survives `kill -9` of the program,
as far as the peer can do that; "durable" that it survives a power cut once the call returned. Each
as far as the peer can do that; "durable" that it survives a power cut once the call returns. Each
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import sqlite3
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import forebay

Put = Callable[[bytes], object]


class Subject(ABC):
    """A queue under measurement. `note` is printed below the table."""

    name: str
    package: str | None = None
    durable_mode = True
    batches = True
    note = ""
    put: Put

    @abstractmethod
    def open(self, path: str, *, durable: bool) -> None:
        """Opens it, and sets `put` to the call that puts one value."""

    def put_many(self, values: Sequence[bytes]) -> None:
        """Puts a batch."""
        raise NotImplementedError

    @abstractmethod
    def scan(self) -> int | None:
        """Reads all values; returns how many, or None if it cannot read without taking."""

    @abstractmethod
    def close(self) -> None:
        """Closes it."""

    @classmethod
    def available(cls) -> bool:
        """Returns whether what it needs is installed."""
        if cls.package is None:
            return True
        try:
            importlib.metadata.version(cls.package)
        except importlib.metadata.PackageNotFoundError:
            return False
        return True


class Timer(Subject):
    """A queue whose values are due at a time."""

    @abstractmethod
    def put_at(self, value: bytes, deadline_ms: int) -> None:
        """Puts a value that is due at a time."""

    def put_many_at(self, values: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        """Puts a batch of them."""
        raise NotImplementedError

    @abstractmethod
    def take_due(self) -> bytes | None:
        """Takes the first that is due."""

    def scan(self) -> int | None:
        """Is not measured."""
        return None


class ForebayLog(Subject):
    """Our log."""

    name = "Forebay's Log"

    def open(self, path: str, *, durable: bool) -> None:
        self.log = forebay.Log(path, sync="always" if durable else "os")
        self.put = self.log.append

    def put_many(self, values: Sequence[bytes]) -> None:
        self.log.append_many(values)

    def scan(self) -> int:
        with forebay.read(self.log.path, kind="log") as reader:
            return sum(1 for _ in reader.values())

    def close(self) -> None:
        self.log.close()


class ForebayDeadlineQueue(Timer):
    """Our deadline queue; a value is released after it was taken, so two changes are logged."""

    name = "Forebay's DeadlineQueue"

    def open(self, path: str, *, durable: bool) -> None:
        self.queue = forebay.DeadlineQueue(path, sync="always" if durable else "os")

    def put_at(self, value: bytes, deadline_ms: int) -> None:
        self.queue.enqueue(value, deadline_ms=deadline_ms)

    def put_many_at(self, values: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        self.queue.enqueue_many(values, deadline_ms=deadlines_ms)

    def take_due(self) -> bytes | None:
        item = self.queue.dequeue()
        if item is None:
            return None
        self.queue.release(item)
        return item.value

    def close(self) -> None:
        self.queue.close()


class Lmdb(Timer):
    """LMDB with a key that counts, or of deadline and count; one transaction for each call."""

    name = "LMDB, by hand"
    package = "lmdb"

    def open(self, path: str, *, durable: bool) -> None:
        import lmdb

        self.tree = lmdb.open(path, map_size=8 << 30, sync=durable, metasync=durable)
        self.count = 0
        self.put = self._put

    def _put(self, value: bytes) -> None:
        with self.tree.begin(write=True) as change:
            change.put(self.count.to_bytes(8, "big"), value, append=True)
        self.count += 1

    def put_many(self, values: Sequence[bytes]) -> None:
        with self.tree.begin(write=True) as change:
            for value in values:
                change.put(self.count.to_bytes(8, "big"), value, append=True)
                self.count += 1

    def scan(self) -> int:
        with self.tree.begin() as view, view.cursor() as cursor:
            return sum(1 for _ in cursor.iternext(keys=False))

    def put_at(self, value: bytes, deadline_ms: int) -> None:
        self.put_many_at([value], [deadline_ms])

    def put_many_at(self, values: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        with self.tree.begin(write=True) as change:
            for value, deadline_ms in zip(values, deadlines_ms, strict=True):
                change.put(struct.pack(">QQ", deadline_ms, self.count), value)
                self.count += 1

    def take_due(self) -> bytes | None:
        with self.tree.begin(write=True) as change, change.cursor() as cursor:
            if not cursor.first():
                return None
            value = bytes(cursor.value())
            cursor.delete()
            return value

    def close(self) -> None:
        self.tree.close()


class Sqlite(Timer):
    """SQLite with a write-ahead log; one transaction for each call."""

    name = "SQLite WAL, by hand"

    def open(self, path: str, *, durable: bool) -> None:
        os.makedirs(path)
        self.base = sqlite3.connect(os.path.join(path, "queue.db"), isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.base.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, value BLOB)")
        self.base.execute(
            "CREATE TABLE due (at INTEGER, id INTEGER, value BLOB, PRIMARY KEY (at, id)) "
            "WITHOUT ROWID"
        )
        self.count = 0
        self.put = lambda value: self.base.execute("INSERT INTO queue(value) VALUES (?)", (value,))

    def _change(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self.base.execute("BEGIN IMMEDIATE")
        self.base.executemany(statement, rows)
        self.base.execute("COMMIT")

    def put_many(self, values: Sequence[bytes]) -> None:
        self._change("INSERT INTO queue(value) VALUES (?)", [(value,) for value in values])

    def scan(self) -> int:
        return sum(1 for _ in self.base.execute("SELECT value FROM queue ORDER BY id"))

    def put_at(self, value: bytes, deadline_ms: int) -> None:
        self.count += 1
        self.base.execute("INSERT INTO due VALUES (?, ?, ?)", (deadline_ms, self.count, value))

    def put_many_at(self, values: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        rows = []
        for value, deadline_ms in zip(values, deadlines_ms, strict=True):
            self.count += 1
            rows.append((deadline_ms, self.count, value))
        self._change("INSERT INTO due VALUES (?, ?, ?)", rows)

    def take_due(self) -> bytes | None:
        first = "SELECT at, id FROM due ORDER BY at, id LIMIT 1"
        rows = self.base.execute(f"DELETE FROM due WHERE (at, id) = ({first}) RETURNING value")
        found = rows.fetchall()
        return found[0][0] if found else None

    def close(self) -> None:
        self.base.close()


class Queuelib(Subject):
    """The disk queue of Scrapy."""

    name = "queuelib"
    package = "queuelib"
    batches = False
    note = "queuelib writes its index only at a close: after `kill -9` all of it is lost"

    def open(self, path: str, *, durable: bool) -> None:
        from queuelib import FifoDiskQueue

        self.queue = FifoDiskQueue(path)
        self.put = self._put_durably if durable else self.queue.push

    def _put_durably(self, value: bytes) -> None:
        self.queue.push(value)
        os.fsync(self.queue.headf.fileno())

    def scan(self) -> int | None:
        return None

    def close(self) -> None:
        self.queue.close()


class Rocksq(Subject):
    """RocksDB behind a queue in Rust."""

    name = "RocksDB (rocksq)"
    package = "rocksq"
    durable_mode = False
    note = "rocksq has no durable mode"

    def open(self, path: str, *, durable: bool) -> None:
        from rocksq.blocking import PersistentQueueWithCapacity

        self.queue = PersistentQueueWithCapacity(path)
        self.put = lambda value: self.queue.push([value])

    def put_many(self, values: Sequence[bytes]) -> None:
        self.queue.push(list(values))

    def scan(self) -> int | None:
        return None

    def close(self) -> None:
        del self.queue, self.put


class Huey(Timer):
    """The storage of huey on SQLite, without its workers."""

    name = "huey on SQLite"
    package = "huey"
    batches = False
    note = "huey hands out all that is due at once, and has no acknowledgement"

    def open(self, path: str, *, durable: bool) -> None:
        from huey.storage import SqliteStorage

        os.makedirs(path)
        self.storage = SqliteStorage("bench", os.path.join(path, "queue.db"), fsync=durable)
        self.due: list[bytes] = []

    def put_at(self, value: bytes, deadline_ms: int) -> None:
        self.storage.add_to_schedule(value, datetime.datetime.fromtimestamp(deadline_ms / 1000))

    def take_due(self) -> bytes | None:
        if not self.due:
            self.due = self.storage.read_schedule(datetime.datetime.now())[::-1]
        return self.due.pop() if self.due else None

    def close(self) -> None:
        self.storage.close()


LOGS: tuple[type[Subject], ...] = (ForebayLog, Lmdb, Rocksq, Sqlite, Queuelib)
TIMERS: tuple[type[Timer], ...] = (ForebayDeadlineQueue, Lmdb, Huey, Sqlite)
