"""Which events were handed out, and up to where all of them are done with.

Acknowledgements come in any order; the place moves over those that lie one behind the other. Knows
no file. Called with the queue's lock held.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from forebay.queues.places import Place


@dataclass(slots=True, eq=False)
class Delivery:
    """A part of the queue that was handed out: from a place to another, so many events."""

    start: Place
    end: Place
    count: int
    done: bool = False
    returned: bool = False


class Deliveries:
    """What is out, in the order of the queue; all before `place` is done with."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._out: list[Delivery] = []

    @property
    def outstanding(self) -> int:
        """How many events are handed out and neither acknowledged nor returned."""
        return sum(item.count for item in self._out if not item.done and not item.returned)

    def add(self, start: Place, end: Place, count: int) -> Delivery:
        """Takes note of events that are handed out."""
        delivery = Delivery(start, end, count)
        self._out.insert(bisect_left(self._out, start, key=_start_of), delivery)
        return delivery

    def skip(self, start: Place, end: Place) -> None:
        """Takes note of a part that has no events to hand out."""
        self.add(start, end, 0).done = True
        self._advance()

    def acknowledge(self, delivery: Delivery) -> None:
        """Takes note that events are done with."""
        delivery.done = True
        self._advance()

    def give_back(self, delivery: Delivery) -> None:
        """Takes events back, to hand them out again."""
        delivery.returned = True

    def take_returned(self) -> Delivery | None:
        """Gives the first part that was given back; it counts as handed out again."""
        for delivery in self._out:
            if delivery.returned:
                delivery.returned = False
                return delivery
        return None

    def split(self, delivery: Delivery, end: Place, count: int) -> None:
        """Keeps only the first events in a delivery; the others count as given back."""
        rest = Delivery(end, delivery.end, delivery.count - count, returned=True)
        delivery.end, delivery.count = end, count
        if rest.count > 0:
            self._out.insert(self._out.index(delivery) + 1, rest)
        else:
            delivery.end = rest.end

    def drop_below(self, segment: int) -> None:
        """Forgets what lies in segments that are gone."""
        self._out = [item for item in self._out if item.end.segment >= segment]
        self.place = max(self.place, Place(segment))
        self._advance()

    def _advance(self) -> None:
        passed = 0
        for item in self._out:
            if not item.done:
                break
            self.place = max(self.place, item.end)
            passed += 1
        del self._out[:passed]


def _start_of(delivery: Delivery) -> Place:
    return delivery.start
