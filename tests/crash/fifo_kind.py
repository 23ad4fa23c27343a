"""A fifo under test: values tell their own number in the order of pushing."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import Any

from forebay.damage import Damage
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.numbered import Found, NumberedWorkload
from tests.crash.workload import Promise, Scene
from tests.support.clocks import SteppingClock
from tests.support.planting import Broken

AFTER = b"after the crash"
EARLIER_MS = SteppingClock().ms - 3_600_000
# The highest id that was given out.
IDS = "ids"


class FifoWorkload(NumberedWorkload):
    """Operations on a fifo, each followed by its promise."""

    kind = "fifo"
    small = MappingProxyType({"file_bytes": 1000, "staging_bytes": 4096})
    gone_in_order = False

    @classmethod
    def open_on(
        cls, machine: ForgetfulFilesystem, options: dict[str, Any], clock: Any = None
    ) -> Any:
        # The clock of a machine that starts again may be behind: ids rise all the same.
        return super().open_on(machine, options, clock or SteppingClock(EARLIER_MS))

    def read_and_commit(self, name: str, count: int) -> None:
        """Pops, singly or at once; consumer "b" lends two out and gives the first one back."""
        if name == "b":
            with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
                first = self._take(stack)
                second = self._take(stack)
                if first is not None and second is not None and self.random.random() < 0.5:
                    raise KeyError
            return
        # The oldest of those that are left may be gone from now on, and any behind them.
        put = range(len(self.model.put))
        self._try([number for number in put if number not in self.model.gone])
        values = [self.queue.pop()] if count == 1 else self.queue.pop_many(count)
        self._note_gone([self.number_of(value) for value in values if value is not None])

    def _call_put(self, values: list[bytes], *, many: bool) -> int:
        id: int = super()._call_put(values, many=many)
        if self.always:
            self.filesystem.acknowledge(Promise(consumer=IDS, position=id))
        return id

    def _take(self, stack: contextlib.ExitStack) -> bytes | None:
        if not self.queue.size:
            return None
        taken = self.queue.take()
        value: bytes = taken.__enter__().value
        number = self.number_of(value)

        def leave(kind: Any, error: Any, traceback: Any) -> bool:
            if kind is None:
                # Before this, no crash may take what is only lent out.
                self._try([number])
            taken.__exit__(kind, error, traceback)
            if kind is None:
                self._note_gone([number])
            return False

        stack.push(leave)
        return value

    def _note_gone(self, numbers: list[int]) -> None:
        self.model.gone += numbers
        if self.always:
            self._promise_gone()

    def _value(self, size: int | None) -> bytes:
        value = len(self.model.put).to_bytes(4, "big") + self.random.randbytes(self._size(size))
        self.model.put.append(value)
        return value

    @classmethod
    def number_of(cls, record: bytes) -> int:
        return int.from_bytes(record[:4], "big")

    @classmethod
    def content_of(cls, reader: Any, where: str) -> list[bytes]:
        values: list[bytes] = []
        for item in reader.scan():
            if isinstance(item, Damage):
                raise Broken(f"{where}: damage after a crash: {item}")
            values += item.values
        return values

    @classmethod
    def _check_going_on(cls, queue: Any, found: Found, scene: Scene) -> None:
        last = max((it.position for it in scene.kept if it.consumer == IDS), default=0)
        if queue.push(AFTER) <= last:
            raise Broken(f"{scene.where}: the id of a new entry is not above {last}")
        queue.close()
        with cls.open_on(scene.machine, scene.options) as again:
            there = again.pop_many(10_000)
            dropped = scene.options.get("when_full") == "drop_oldest"
            expected = [*found.records, AFTER]
            if there != expected and not (dropped and expected[-len(there) :] == there):
                raise Broken(f"{scene.where}: {len(found.records)} entries became {len(there) - 1}")
            if again.pop() is not None or len(again):
                raise Broken(f"{scene.where}: a queue that was emptied is not empty")
