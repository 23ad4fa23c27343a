"""The part of a deadline queue that is in memory: one segment for each log."""

from __future__ import annotations

from forebay.kernels.deadline_memory import Memory

KeyTuple = tuple[int, int]


class Segment(Memory):
    """What the log of a number says. Called with the queue's lock held."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
