"""Forebay's Log and Fifo for the harness that runs its peers: `bench.py --plugin harness_adapter`.

The harness gives the module `adapters` and the rules: no sync means that a push survives `kill -9`,
durable means that it survives a power cut. A pop of the Log reads one record and commits, durably,
which a log does not do for each record in earnest.
"""

from __future__ import annotations

from collections.abc import Iterable

from adapters import Adapter, register

import forebay


@register
class ForebayLog(Adapter):
    """A log with one consumer."""

    name = "forebay Log"
    group = "embedded"
    version = forebay.__version__
    note = "CRC-32 a record; a pop is a durable commit of the consumer's place"

    def open(self, path: str, durable: bool = False) -> None:
        """Opens the log and binds its own methods, so that no adapter is measured."""
        self.log = forebay.Log(path, sync="always" if durable else "os")
        self.push = self.log.append
        self.push_many = self.log.append_many
        self.consumer = self.log.consumer("bench")

    def push_many(self, values: list[bytes]) -> None:
        """Appends a batch; bound to the log's own method by `open`."""
        self.log.append_many(values)

    def pop(self) -> bytes | None:
        """Reads one record and commits."""
        values = self.pop_many(1)
        return values[0] if values else None

    def pop_many(self, count: int) -> list[bytes]:
        """Reads records and commits once."""
        records = self.consumer.read(count)
        self.consumer.commit()
        return [record.value for record in records]

    def scan(self) -> Iterable[bytes]:
        """Returns every payload without consuming."""
        return forebay.read(self.log.path).values()

    def __len__(self) -> int:
        return self.log.end - self.consumer.position

    def close(self) -> None:
        """Closes the log."""
        self.log.close()


@register
class ForebayFifo(Adapter):
    """A fifo."""

    name = "forebay Fifo"
    group = "embedded"
    version = forebay.__version__
    note = "two CRC-32 an entry; a pop is gone for good as the sync policy says"

    def open(self, path: str, durable: bool = False) -> None:
        """Opens the fifo and binds its own methods, so that no adapter is measured."""
        self.fifo = forebay.Fifo(path, sync="always" if durable else "os")
        self.push = self.fifo.push
        self.pop = self.fifo.pop
        self.push_many = self.fifo.push_many
        self.pop_many = self.fifo.pop_many

    def push_many(self, values: list[bytes]) -> None:
        """Pushes a batch; bound to the fifo's own method by `open`."""
        self.fifo.push_many(values)

    def pop_many(self, count: int) -> list[bytes]:
        """Pops a batch; bound to the fifo's own method by `open`."""
        return self.fifo.pop_many(count)

    def scan(self) -> Iterable[bytes]:
        """Returns every payload without consuming."""
        return forebay.read(self.fifo.path).values()

    def __len__(self) -> int:
        return len(self.fifo)

    def close(self) -> None:
        """Closes the fifo."""
        self.fifo.close()


@register
class ForebayDeadline(Adapter):
    """A deadline queue."""

    name = "forebay Deadline"
    group = "embedded"
    version = forebay.__version__
    note = "CRC-32 a batch; a pop is a dequeue and a release, both logged"
    fifo = False
    delay = True

    def open(self, path: str, durable: bool = False) -> None:
        """Opens the queue."""
        self.queue = forebay.DeadlineQueue(path, sync="always" if durable else "os")

    def push_at(self, value: bytes, deadline_ms: int) -> None:
        """Enqueues one item."""
        self.queue.enqueue(value, deadline_ms=deadline_ms)

    def push_at_many(self, items: list[tuple[bytes, int]]) -> None:
        """Enqueues a batch."""
        values, deadlines = zip(*items, strict=True)
        self.queue.enqueue_many(values, deadline_ms=deadlines)

    def pop_due(self, now_ms: int) -> bytes | None:
        """Dequeues the first item that is due and releases it."""
        item = self.queue.dequeue()
        if item is None:
            return None
        self.queue.release(item)
        return item.value

    def __len__(self) -> int:
        return len(self.queue)

    def close(self) -> None:
        """Closes the queue."""
        self.queue.close()
