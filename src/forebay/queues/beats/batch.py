"""A batch of events that `read` has returned, to be acknowledged or given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from forebay.formats.beats.events import Event
from forebay.queues.beats.deliveries import Delivery
from forebay.queues.shared.verbs import Steps, verb
from forebay.storage.filesystem import Directory


class _Settles(Protocol):
    """The part of a queue that acknowledges events or takes them back."""

    _directory: Directory

    def settling(self, delivery: Delivery, *, acknowledged: bool) -> Steps[None]: ...


class EventBatch:
    """Events, in the order in which they were put. Any thread may settle it, once.

    A batch that is neither acknowledged nor given back comes again after the queue is reopened.
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
        """Acknowledges the events.

        When all events before them are acknowledged too, the place after them is saved, durably on
        return, and segments that are no longer needed are removed. A second call does nothing.
        """
        yield from self._settling(acknowledged=True)

    @verb
    def nack(self) -> Steps[None]:
        """Puts the events back: the next reads return them again, before newer ones.

        Raises `LeaseLost` if they are acknowledged already, by an `ack` that a signal handler
        interrupted.
        """
        yield from self._settling(acknowledged=False)

    def _settling(self, *, acknowledged: bool) -> Steps[None]:
        """Acknowledges the events, or gives them back."""
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
        """The directory of its queue, by which `close` finds that this thread is settling it."""
        return None if self._reading is None else self._reading._directory


class Taken:
    """An event that is lent out."""

    def __init__(self, batch: EventBatch) -> None:
        self._batch = batch
        self.value = batch.events[0]

    def finish(self) -> Steps[None]:
        """Acknowledges the event."""
        yield from self._batch._settling(acknowledged=True)

    def give_back(self, error: BaseException) -> Steps[None]:
        """Makes the next read return it again."""
        yield from self._batch._settling(acknowledged=False)
