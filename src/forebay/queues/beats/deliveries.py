"""Which events are delivered, and up to which place all of them are acknowledged.

Acknowledgements come in any order; the place moves past those that follow it without a gap. Does no
I/O. Called with the queue's lock held.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass, field

from forebay.queues.beats.place import Place


@dataclass(slots=True, eq=False)
class Delivery:
    """A delivered part of the queue: from one place to another, with events counted by segment.

    `dropped` counts the events whose segment was dropped meanwhile.
    """

    start: Place
    end: Place
    counts: dict[int, int] = field(default_factory=dict)
    done: bool = False
    returned: bool = False
    dropped: int = 0

    @property
    def count(self) -> int:
        """How many of its events are still there."""
        return sum(self.counts.values())

    def __lt__(self, other: Delivery) -> bool:
        return self.start < other.start


class Deliveries:
    """The deliveries, in the order of the queue; all before `place` is acknowledged."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._out: list[Delivery] = []
        # A heap of those that were given back, in the order of the queue; some may be gone since.
        self._returned: list[Delivery] = []

    @property
    def outstanding(self) -> int:
        """How many events are delivered and neither acknowledged nor given back."""
        return sum(item.count for item in self._out if not item.done and not item.returned)

    def add(self, delivery: Delivery) -> None:
        """Records a delivery."""
        self._out.insert(self._index(delivery.start), delivery)

    def skip(self, start: Place, end: Place) -> None:
        """Records a part that has no events to deliver."""
        self.add(Delivery(start, end, done=True))
        self.advance()

    def reach(self, delivery: Delivery) -> list[Place]:
        """Returns the places reached, in order, if `delivery` were done; changes nothing."""
        places = [self.place]
        for item in self._out:
            if not item.done and item is not delivery:
                break
            places.append(max(places[-1], item.end))
        return places

    def lose(self, delivery: Delivery, segment: int, count: int | None) -> None:
        """Records that `count` events of a delivery are lost; None: all of the segment."""
        left = 0 if count is None else max(0, delivery.counts.get(segment, 0) - count)
        if left:
            delivery.counts[segment] = left
        else:
            delivery.counts.pop(segment, None)

    def acknowledge(self, delivery: Delivery) -> None:
        """Records that the events of a delivery are acknowledged."""
        delivery.done = True
        self.advance()

    def give_back(self, delivery: Delivery) -> int:
        """Takes events back, to deliver them again; returns how many of them were dropped."""
        dropped, delivery.dropped = delivery.dropped, 0
        if delivery.count and not delivery.done:
            heapq.heappush(self._returned, delivery)
            delivery.returned = True
        else:
            self.acknowledge(delivery)
        return dropped

    def is_out(self, delivery: Delivery) -> bool:
        """Says whether a delivery is recorded."""
        index = self._index(delivery.start)
        return any(item is delivery for item in self._out[index : index + 2])

    def take_returned(self) -> Delivery | None:
        """Returns the first part that was given back; it counts as delivered again."""
        while self._returned:
            delivery = heapq.heappop(self._returned)
            if delivery.returned:
                delivery.returned = False
                return delivery
        return None

    def split(self, delivery: Delivery, end: Place, counts: dict[int, int]) -> None:
        """Keeps only the events up to `end` in a delivery; the others count as given back."""
        left = {
            segment: count - counts.get(segment, 0)
            for segment, count in delivery.counts.items()
            if count > counts.get(segment, 0)
        }
        if not left:
            return
        rest = Delivery(end, delivery.end, left, returned=True)
        delivery.end, delivery.counts = end, counts
        self.add(rest)
        heapq.heappush(self._returned, rest)

    def unread_in(self, segment: int, count: int) -> int:
        """Returns how many events of a segment were never delivered, or were given back.

        `count` is how many of its events are not acknowledged.
        """
        out = (item for item in self._out if not item.returned)
        return max(0, count - sum(item.counts.get(segment, 0) for item in out))

    def drop_below(self, segment: int) -> None:
        """Forgets what lies in segments below a number, which are gone."""
        kept = []
        for item in self._out:
            gone = [number for number in item.counts if number < segment]
            for number in gone:
                count = item.counts.pop(number)
                item.dropped += 0 if item.returned else count
            if item.end.segment >= segment:
                item.start = max(item.start, Place(segment))
                kept.append(item)
            else:
                item.returned = False
        self._out = kept
        self.place = max(self.place, Place(segment))
        self.advance()

    def advance(self) -> None:
        """Moves the place past what is acknowledged."""
        passed = 0
        for item in self._out:
            if not item.done:
                break
            self.place = max(self.place, item.end)
            passed += 1
        del self._out[:passed]

    def _index(self, start: Place) -> int:
        return bisect_left(self._out, start, key=_start_of)


def _start_of(delivery: Delivery) -> Place:
    return delivery.start
