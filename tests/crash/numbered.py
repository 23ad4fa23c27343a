"""A workload whose records tell their own number: fifos and Beats queues.

Taking is begun, and done: what a crash interrupts may have been taken or not; what returned has.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from tests.crash.workload import Promise, Scene, Workload
from tests.support.planting import Broken

# How many of the model's records were begun to be taken, and how many are gone for good.
TRIED = "tried"
GONE = "gone"


@dataclass
class Model:
    """What was put, by number; `tried` were begun to be taken, `gone` are taken, in order.

    `stored` are the puts that returned: those that failed may be there as well. `told` says that
    records were reported as damaged: the disk failed when they were read.
    """

    put: list[Any] = field(default_factory=list)
    stored: set[int] = field(default_factory=set)
    tried: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    dropping: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader saw before anything was recovered, and what the owner has afterwards.

    `seen` is None if there was no queue to read; `size` is what the queue says of itself, if it
    does.
    """

    seen: list[Any] | None
    records: list[Any]
    size: int | None = None


class NumberedWorkload(Workload):
    """Operations on a queue of records that tell their numbers.

    `gone_in_order`: nothing after a record is gone for good before the record itself.
    """

    gone_in_order = True

    @classmethod
    @abstractmethod
    def number_of(cls, record: Any) -> int:
        """Returns the number of a record."""

    def trim(self) -> None:
        """Taking has made room already."""

    def _new_model(self) -> Model:
        return Model(dropping=self.options.get("when_full") == "drop_oldest")

    def _try(self, numbers: list[int]) -> None:
        """Notes that records are about to be taken: a crash may take them or not."""
        self.model.tried += numbers
        self.filesystem.acknowledge(Promise(cursor=TRIED, position=len(self.model.tried)))

    def _promise_gone(self) -> None:
        self.filesystem.acknowledge(Promise(consumer=GONE, position=len(self.model.gone)))

    def _put(self, values: list[Any], *, many: bool) -> None:
        self._call_put(values, many=many)
        self.model.stored.update(self.number_of(value) for value in values)
        self.stored = max(self.stored, self.number_of(values[-1]) + 1)
        end = self.stored if self.always else 0
        self.filesystem.acknowledge(Promise(end, seen=self.stored))

    def _promise_synced(self) -> None:
        self._promise_gone()
        self.filesystem.acknowledge(Promise(end=self.stored))

    def _check_kill(self) -> None:
        with self.read_on(self.filesystem, self.options) as reader:
            found = {self.number_of(record) for record in self.content_of(reader, "kill -9")}
        gone = set(self.model.tried if self.gone_in_order else self.model.gone)
        missing = self.model.stored - found - gone
        if missing and not self.model.dropping:
            raise Broken(f"kill -9: records {sorted(missing)} are missing")
        again = found & set(self.model.gone)
        if again:
            raise Broken(f"kill -9: records {sorted(again)} were taken and come again")
        self.model.stored |= found
        self.stored = max(self.stored, max(found, default=-1) + 1)
        self.filesystem.acknowledge(Promise(end=self.stored))

    @classmethod
    def _look(cls, queue: Any, seen: Any, scene: Scene) -> Found:
        with cls.read_on(scene.machine, scene.options) as reader:
            return Found(seen, cls.content_of(reader, scene.where), len(queue))

    @classmethod
    def hold(
        cls, found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
    ) -> None:
        numbers = [cls.number_of(record) for record in found.records]
        if found.seen is not None:
            seen = [cls.number_of(record) for record in found.seen]
            if seen != numbers and not (killed and set(seen) <= set(numbers)):
                raise Broken(f"{where}: a reader saw records {seen}, the owner has {numbers}")
        if found.size not in (None, len(numbers)):
            raise Broken(f"{where}: the size is {found.size}, there are {numbers}")
        if numbers != sorted(set(numbers)) or any(
            number >= len(model.put) or record != model.put[number]
            for number, record in zip(numbers, found.records, strict=True)
        ):
            raise Broken(f"{where}: records {numbers} are doubled, out of order or altered")
        cls._check_missing(numbers, kept, model, where)
        position = _position(kept, GONE)
        again = set(model.gone[:position]) & set(numbers)
        if again:
            raise Broken(f"{where}: records {sorted(again)} were taken for good and come again")

    @classmethod
    def _check_missing(
        cls, numbers: list[int], kept: list[Promise], model: Model, where: str
    ) -> None:
        tried = set(model.tried[: _position(kept, TRIED)])
        end = max((promise.end for promise in kept), default=0)
        promised = {number for number in model.stored if number < end}
        missing = promised - set(numbers) - tried
        if model.dropping:
            # The oldest may have been dropped, whole files of them.
            missing = {number for number in missing if not numbers or number > numbers[0]}
        if missing and not model.told:
            raise Broken(f"{where}: records {sorted(missing)} were acknowledged and are missing")
        # What a power cut takes is a suffix: what was stored before a record that is there, is.
        holes = {n for n in model.stored if numbers and numbers[0] < n < numbers[-1]}
        holes -= set(numbers) if cls.gone_in_order else {*numbers, *tried}
        if holes:
            raise Broken(f"{where}: records {sorted(holes)} are missing in the middle")


def _position(kept: list[Promise], name: str) -> int:
    return max((it.position for it in kept if name in (it.consumer, it.cursor)), default=0)
