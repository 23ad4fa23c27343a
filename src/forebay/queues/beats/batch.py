"""A batch of events that a queue handed out, to be acknowledged or given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forebay.formats.beats.events import Event
from forebay.queues.beats.deliveries import Delivery

Settle = Callable[[Delivery, bool], None]


class EventBatch:
    """Events, in the order in which they were put. Any thread may settle it, once.

    A batch that is neither acknowledged nor given back comes again when the queue is opened anew.
    """

    __slots__ = ("events", "_delivery", "_settle")

    def __init__(
        self, events: list[Event], delivery: Delivery | None, settle: Settle | None
    ) -> None:
        self.events = events
        self._delivery = delivery
        self._settle = settle

    def ack(self) -> None:
        """Says that the events are done with.

        When all before them are as well, their place is saved, durably on return, and segments that
        are done with are removed. A second time does nothing.
        """
        self._end(acknowledged=True)

    def nack(self) -> None:
        """Returns the events back: the next reads hand them out again, before newer ones.

        Raises `LeaseLost` if they are acknowledged, by an `ack` that a signal handler interrupted.
        """
        self._end(acknowledged=False)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __repr__(self) -> str:
        state = "settled" if self._delivery is None else "handed out"
        return f"<EventBatch of {len(self.events)}, {state}>"

    def _end(self, *, acknowledged: bool) -> None:
        delivery, settle = self._delivery, self._settle
        if delivery is not None and settle is not None:
            settle(delivery, acknowledged)
            self._delivery = None
