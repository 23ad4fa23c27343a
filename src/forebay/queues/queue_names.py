"""The names of `queue.Queue`, so that a fifo stands where one of these stood."""

from __future__ import annotations

from abc import ABC, abstractmethod

from forebay.storage.filesystem import Buffer


class QueueNames(ABC):
    """What a `queue.Queue` offers, in terms of a fifo's own verbs."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def push(
        self, value: Buffer, *, ttl_seconds: int | None = None, timeout: float | None = None
    ) -> int:
        """Pushes an entry."""

    @abstractmethod
    def pop(self, timeout: float | None = None) -> bytes | None:
        """Takes the oldest entry."""

    def put(self, value: Buffer, block: bool = True, timeout: float | None = None) -> None:
        """Pushes an entry, as a `queue.Queue` takes one."""
        self.push(value, timeout=timeout if block else 0)

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Takes the oldest entry, as a `queue.Queue` gives one; raises `Empty` if none came."""
        seconds = float("inf") if timeout is None else timeout
        value = self.pop(timeout=seconds if block else 0)
        assert value is not None
        return value

    def put_nowait(self, value: Buffer) -> None:
        """Pushes an entry, or raises `Full`."""
        self.put(value, block=False)

    def get_nowait(self) -> bytes:
        """Takes the oldest entry, or raises `Empty`."""
        return self.get(block=False)

    def qsize(self) -> int:
        """How many entries there are."""
        return self.size

    def empty(self) -> bool:
        """Whether there is no entry."""
        return self.size == 0
