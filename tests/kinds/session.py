"""An open queue under test, and the ledger of what it was given and what it gave back."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import forebay
from forebay.clock import SystemClock
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFilesystem, Filesystem
from tests.crash.handing_in import write_parts
from tests.kinds.base import BATCH_COUNT, Kind
from tests.kinds.ledger import Ledger


class Session:
    """An open queue and its ledger. Any thread may use it, as its own writer."""

    def __init__(self, kind: Kind, path: str, ledger: Ledger | None = None, **options: Any) -> None:
        self.kind = kind
        self.path = path
        self.ledger = ledger or Ledger()
        self.filesystem: Filesystem | None = options.get("filesystem")
        self.queue: Any = kind.open(path, **options)
        self.always = self.queue.options.sync == "always"
        self.disk_fails = False
        self.state: dict[str, Any] = {}
        self.state_mutex = threading.Lock()
        self._writers = threading.local()
        self._writers_made = 0
        self._batches = 0

    def put(self) -> None:
        values = self.ledger.make(self.writer, 1)
        self.kind.put(self.queue, values[0])
        self.ledger.note_put(values, durable=self.always)

    def put_many(self, count: int = BATCH_COUNT) -> None:
        values = self.ledger.make(self.writer, count)
        self.kind.put_many(self.queue, values)
        self.ledger.note_put(values, durable=self.always)

    def take(self, count: int = 1) -> int:
        return self.kind.take_for(self, count)

    def wait(self) -> None:
        """Takes what is there, and waits for more until the time runs out."""
        self.kind.take_for(self, 1_000)
        with contextlib.suppress(forebay.Empty):
            self.kind.take_for(self, 1, timeout=0.01)

    def give_back(self) -> None:
        self.kind.give_back(self)

    def sync(self) -> None:
        before = self.ledger.snapshot()
        self.queue.sync()
        self.ledger.note_synced(before)

    def close(self) -> None:
        with self.state_mutex:
            first = not self.state.get("closing")
            self.state["closing"] = True
        before = self.ledger.snapshot()
        self.queue.close()
        # A handle that an error of the disk has ended promises nothing more, and a second close
        # does not wait for the first.
        if first and not self.disk_fails:
            self.ledger.note_synced(before)

    def hand_in(self, count: int = 3) -> None:
        """Leaves a batch in `inbox/`, as another process does; it is durable there."""
        with self.state_mutex:
            self._batches += 1
            batch = self._batches
        values = self.ledger.make(1_000 + batch, count)
        filesystem = self.filesystem or DiskFilesystem()
        with getattr(filesystem, "quietly", contextlib.nullcontext)():
            self._publish(filesystem, batch, values)
        self.ledger.note_put(values, durable=True)

    def _publish(self, filesystem: Filesystem, batch: int, values: list[bytes]) -> None:
        directory = filesystem.open_directory(self.path)
        try:
            stem = f"batch{batch}"
            parts = write_parts(filesystem, SystemClock(), directory, stem, [values])
            inbox.publish(directory, stem, inbox.Manifest("w", batch, parts))
        finally:
            directory.close()

    def adopt(self) -> None:
        self.hand_in()
        self.queue.adopt()

    @property
    def writer(self) -> int:
        """The number of the thread that calls."""
        number: int | None = getattr(self._writers, "number", None)
        if number is None:
            with self.state_mutex:
                self._writers_made += 1
                number = self._writers.number = self._writers_made
        return number
