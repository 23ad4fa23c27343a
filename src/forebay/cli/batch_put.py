"""Collects records for a queue that may have a bound, and puts them in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod

from forebay.cli.framing import BadInput

_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
# A batch goes in whole or not at all: in a queue with a bound it is a small part of it.
_BATCH_PART = 8


class BatchPutter(ABC):
    """Collects records; the class of a kind says in `send` how they are put.

    `extra_bytes` is what the queue adds to each, `limit` the most that all may take.
    """

    noun = "record"

    def __init__(self, record_bytes_max: int, extra_bytes: int, limit: int | None) -> None:
        self._pending: list[bytes] = []
        self._size = 0
        self._extra_bytes = extra_bytes
        self.count = 0
        self.record_bytes_max = record_bytes_max
        self._batch_bytes_max = _BATCH_BYTES_MAX
        if limit is not None:
            self.record_bytes_max = min(record_bytes_max, limit - extra_bytes)
            self._batch_bytes_max = min(_BATCH_BYTES_MAX, limit // _BATCH_PART)

    @abstractmethod
    def send(self, values: list[bytes]) -> None:
        """Puts a batch: all of it, or it raises."""

    def add(self, records: list[bytes], source: str) -> None:
        """Takes records; puts if there are enough."""
        for value in records:
            if len(value) > self.record_bytes_max:
                which = self.count + len(self._pending) + 1
                raise BadInput(
                    f"{source}: {self.noun} {which} has {len(value)} bytes; the queue takes "
                    f"{self.record_bytes_max}; nothing from it on was put"
                )
            size = len(value) + self._extra_bytes
            full = self._size + size > self._batch_bytes_max
            if full or len(self._pending) >= _BATCH_RECORDS_MAX:
                self.flush()
            self._pending.append(value)
            self._size += size

    def flush(self) -> None:
        """Puts what was collected."""
        if self._pending:
            pending, self._pending, self._size = self._pending, [], 0
            self.send(pending)
            self.count += len(pending)
