"""A batch of events that a queue handed out, to be acknowledged or given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from forebay.formats.beats.events import Event
from forebay.queues.beats.deliveries import Delivery
from forebay.queues.shared.verbs import Steps, verb
from forebay.storage.filesystem import Directory


class _Settles(Protocol):
    """The part of a queue that takes events as done with, or back."""

    _directory: Directory

    def settling(self, delivery: Delivery, *, acknowledged: bool) -> Steps[None]: ...


class EventBatch:
    """Events, in the order in which they were put. Any thread may settle it, once.

    A batch that is neither acknowledged nor given back comes again when the queue is opened again.
    """

    __slots__ = ("delivery", "events", "_reading")

    def __init__(
        self, events: list[Event], delivery: Delivery | None, reading: _Settles | None
    ) -> None:
        self.events = events
        self.delivery = delivery
        self._reading = reading

    @verb
    def ack(self) -> Steps[None]:
        """Says that the events are done with.

        When all before them are as well, their place is saved, durably on return, and segments that
        are done with are removed. A second time does nothing.
        """
        yield from self._settling(acknowledged=True)

    @verb
    def nack(self) -> Steps[None]:
        """Gives the events back: the next reads hand them out again, before newer ones.

        Raises `LeaseLost` if they are acknowledged, by an `ack` that a signal handler interrupted.
        """
        yield from self._settling(acknowledged=False)

    def _settling(self, *, acknowledged: bool) -> Steps[None]:
        """Takes the events as done with, or gives them back."""
        delivery, reading = self.delivery, self._reading
        if delivery is not None and reading is not None:
            yield from reading.settling(delivery, acknowledged=acknowledged)
            self.delivery = None

    def __len__(self) -> int:
        """Returns how many events it has."""
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        """Yields the events in their order."""
        return iter(self.events)

    def __repr__(self) -> str:
        state = "settled" if self.delivery is None else "handed out"
        return f"<EventBatch of {len(self.events)}, {state}>"

    @property
    def _directory(self) -> Directory | None:
        """Of its queue, which is not closed by a thread that is settling this."""
        return None if self._reading is None else self._reading._directory


class Taken:
    """An event that is lent out."""

    def __init__(self, batch: EventBatch) -> None:
        self._batch = batch
        self.value = batch.events[0]

    def finish(self) -> Steps[None]:
        """Takes it as done with."""
        yield from self._batch._settling(acknowledged=True)

    def give_back(self, error: BaseException) -> Steps[None]:
        """Lets the next read hand it out again."""
        yield from self._batch._settling(acknowledged=False)
