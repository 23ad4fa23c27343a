"""`SpoolHandler`: what a program logs goes into a queue on the disk, and from there to an output.

A handler of the standard `logging`. A call of a logger waits until its record is in the queue, but
never longer than it was told: a thread of the handler writes, so that a disk that stalls holds
nobody up. What does not get there in time waits in memory; what has no room there is counted, said
on stderr, and told by a record of its own as soon as the queue takes records again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import weakref
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any

from forebay.errors import Closed, ForebayError
from forebay.queues.log.queue import Log
from forebay.queues.shared.options import Duration, SyncPolicy, WhenFull, as_seconds

_BATCH_RECORDS = 1000
_RETRY_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
# What every record has; the rest was given as `extra`.
_USUAL = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}


class SpoolHandler(logging.Handler):
    """Writes log records into a `forebay.Log`. Any thread may log, and a signal handler too.

    - `path`: the directory of the log.
    - `shared`: other processes log into it as well; needed in programs that fork.
    - `timeout_seconds`: the longest that a call of a logger waits.
    - `buffer_records`: how many records may wait in memory while the queue takes none.
    - `max_bytes`, `when_full`: the bound of the log, and what happens at it.
    - `sync`: what the thread that writes waits for; None: "interval", or what a shared log has.
      Then a record survives the process once the call has returned in time, and a power cut a
      tenth of a second later.

    Without a formatter a record is a line of JSON: `@timestamp`, `level`, `logger`, `message`,
    `process`, `thread`, and, if there are any, `exception` and what was given as `extra`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        level: int | str = logging.NOTSET,
        shared: bool = False,
        timeout_seconds: Duration = 0.1,
        buffer_records: int = 10_000,
        max_bytes: int | None = None,
        when_full: WhenFull = "drop_oldest",
        sync: SyncPolicy | None = None,
    ) -> None:
        options: dict[str, Any] = {"shared": shared}
        if max_bytes is not None:
            options |= {"max_bytes": max_bytes, "when_full": when_full}
        if sync is not None or not shared:
            # Of a shared log the first to open it says how it is synced.
            options["sync"] = sync or "interval"
        self._options = {"path": path, **options}
        # Before the handler is known to `logging`, which would end it otherwise.
        self._log = Log(**self._options)
        super().__init__(level)
        self._timeout_seconds = as_seconds(timeout_seconds)
        self._buffer_records = buffer_records
        self._ended = False
        self._start()
        _handlers.add(self)

    def handle(self, record: logging.LogRecord) -> bool:
        """Filters and writes a record; unlike other handlers, without a lock that others hold."""
        found = self.filter(record)
        if isinstance(found, logging.LogRecord):
            record = found
        if found:
            self.emit(record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        """Hands a record to the thread that writes, and waits for it, but not for long."""
        try:
            data = self._encode(record)
        except Exception:
            # The arguments do not fit the message: as every handler says it.
            self.handleError(record)
            return
        own = threading.current_thread() is self._thread
        if self._ended or (own and self._echoes):
            # A message on a message of ours would have no end.
            self._say(record.getMessage())
            return
        if self._waiting.qsize() >= self._buffer_records:
            self._lose(1)
            return
        written = _Written(data, own)
        self._waiting.put(written)
        if not own:
            written.event.wait(self._timeout_seconds)

    @property
    def lost(self) -> int:
        """How many records had no room, or came after the end; each was said on stderr or here."""
        return self._lost

    def flush(self) -> None:
        """Waits until the queue has what was logged before, for a few seconds at most."""
        if self._ended or threading.current_thread() is self._thread:
            return
        mark = _Written(None, own=False)
        self._waiting.put(mark)
        mark.event.wait(_CLOSE_SECONDS)

    def close(self) -> None:
        """Writes what waits, for a few seconds at most, and closes the log."""
        if not self._ended:
            self.flush()
            self._ended = True
            self._waiting.put(None)
            self._thread.join(_CLOSE_SECONDS)
            left = sum(each is not None and each.data is not None for each in self._taken())
            if left:
                self._lose(left)
            with contextlib.suppress(ForebayError, OSError):
                self._log.close()
        super().close()

    def _start(self) -> None:
        """Starts the thread that writes; also in the child of a fork."""
        self._waiting: SimpleQueue[_Written | None] = SimpleQueue()
        self._mutex = threading.RLock()
        self._lost = 0
        self._untold = 0
        # Whether what is being written is only messages about writing.
        self._echoes = False
        self._thread = threading.Thread(target=self._run, name="forebay-logging", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get(), *self._taken()]
            records = [each for each in batch if each is not None]
            self._write([each for each in records if each.data is not None])
            for each in records:
                each.event.set()
            if None in batch or self._ended:
                return

    def _taken(self) -> list[_Written | None]:
        taken: list[_Written | None] = []
        with contextlib.suppress(Empty):
            while len(taken) < _BATCH_RECORDS:
                taken.append(self._waiting.get_nowait())
        return taken

    def _write(self, records: list[_Written]) -> None:
        """Appends records; tries again until they are there, or the handler is closed."""
        self._echoes = bool(records) and all(each.own for each in records)
        values = [each.data for each in records if each.data is not None]
        try:
            while values:
                told = self._untold
                try:
                    notice = [self._notice(told)] if told else []
                    self._log.append_many([*notice, *values], timeout=_RETRY_SECONDS)
                    with self._mutex:
                        self._untold -= told
                    return
                except Exception as error:
                    if self._ended:
                        self._lose(len(values))
                        return
                    self._recover(error)
        finally:
            self._echoes = False

    def _recover(self, error: Exception) -> None:
        """Waits a moment; opens the log again if its handle has failed."""
        time.sleep(_RETRY_SECONDS)
        if isinstance(error, Closed):
            with contextlib.suppress(ForebayError, OSError):
                self._log.close()
            with contextlib.suppress(ForebayError, OSError):
                self._log = Log(**self._options)

    def _lose(self, count: int) -> None:
        with self._mutex:
            first = self._untold == 0
            self._lost += count
            self._untold += count
        if first:
            self._say(f"log messages are being lost: {self._log.path} does not take them")

    def _notice(self, count: int) -> bytes:
        text = f"{count} log messages before this one were lost"
        return _document(time.time(), "WARNING", __name__, text, {})

    def _encode(self, record: logging.LogRecord) -> bytes:
        if self.formatter is not None:
            return self.format(record).encode("utf-8", "replace")
        more = {key: value for key, value in record.__dict__.items() if key not in _USUAL}
        if record.exc_info:
            more["exception"] = logging.Formatter().formatException(record.exc_info)
        more |= {"process": record.process, "thread": record.threadName}
        return _document(record.created, record.levelname, record.name, record.getMessage(), more)

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"forebay: {text}\n")


class _Written:
    """A record on its way into the log; without data it marks a place."""

    __slots__ = ("data", "own", "event")

    def __init__(self, data: bytes | None, own: bool) -> None:
        self.data = data
        # Logged by the thread that writes.
        self.own = own
        self.event = threading.Event()


def _document(
    seconds: float, level: str, logger: str, message: str, more: dict[str, object]
) -> bytes:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    document = {
        "@timestamp": moment.replace("+00:00", "Z"),
        "level": level,
        "logger": logger,
        "message": message,
        **more,
    }
    return json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "replace")


_handlers: weakref.WeakSet[SpoolHandler] = weakref.WeakSet()


def _start_again() -> None:
    """Starts over in the child of a fork: what waited is the parent's to write."""
    for handler in list(_handlers):
        if not handler._ended:
            handler._start()


os.register_at_fork(after_in_child=_start_again)
