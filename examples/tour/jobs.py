"""The jobs of the tour, which go through a deadline queue, and what must become of each of them.

The number of a job determines its fate. All jobs are enqueued, in the order of their numbers; then
those that are due are dequeued, and released, requeued for tomorrow, buried or kept. So the content
of the queue shows how far its worker has come, and the content at the end is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOBS = "calls"
SCHEMA = "id STRING, kind STRING, hall INT"
SQL = "SELECT * FROM records WHERE kind <> 'test'"

RELEASED = "released"
REQUEUED = "requeued"
BURIED = "buried"
KEPT = "kept"
_NO_JSON = 15
_TEST = 7


@dataclass(frozen=True, slots=True)
class Jobs:
    """How many jobs there are, and what must become of them."""

    count: int

    def fate(self, number: int) -> str:
        """Returns the fate of a job; the last one stays, and shows that all were enqueued."""
        if number == self.count - 1 or number % 10 > 4:
            return KEPT
        if number % 10 < 4:
            return RELEASED
        return BURIED if number % 100 == 44 else REQUEUED

    @property
    def steps(self) -> int:
        """Returns the number of steps: each job is enqueued, and some are processed."""
        return self.count + sum(self.fate(number) != KEPT for number in range(self.count))

    def left(self) -> dict[int, str]:
        """Returns the jobs that are in the queue at the end, with their fates."""
        fates = {number: self.fate(number) for number in range(self.count)}
        return {number: fate for number, fate in fates.items() if fate != RELEASED}

    def expected(self) -> dict[str, int]:
        """Returns the sums that `reconcile` must find."""
        sums = dict.fromkeys(("decoded", "rejected", "deduplicated", "filtered"), 0)
        for number in self.left():
            sums[_outcome(number)] += 1
        return {"landed": len(self.left()), **sums, "damaged": 0, "trimmed": 0}

    def progress(self, found: Mapping[int, str]) -> tuple[int, int]:
        """Returns how many jobs were enqueued and how many steps done, from the queue's content."""
        enqueued = max(found, default=-1) + 1
        done = sum(found.get(number, RELEASED) != KEPT for number in range(enqueued))
        return enqueued, enqueued + done


def job(number: int) -> bytes:
    """Returns the value of a job."""
    kind = "test" if number % 20 == _TEST else "call"
    text = f'{{"id":"{JOBS}-{number}","kind":"{kind}","hall":{number % 17}}}'
    return (text[:-5] if number % 100 == _NO_JSON else text).encode()


def number_of(value: bytes) -> int:
    """Returns the number of a job, -1 if it is not one."""
    number = value.partition(b'"id":"')[2].partition(b'"')[0].rpartition(b"-")[2]
    return int(number) if number.isdigit() else -1


def fate_of(*, requeued: bool, buried: bool) -> str:
    """Returns what was done to a job in the queue."""
    if buried:
        return BURIED
    return REQUEUED if requeued else KEPT


def _outcome(number: int) -> str:
    if number % 100 == _NO_JSON:
        return "rejected"
    return "filtered" if number % 20 == _TEST else "decoded"
