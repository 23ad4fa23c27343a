"""Frames that are staged in memory are the exact bytes of the segment."""

from __future__ import annotations

import threading
import time

from forebay.kernels.fflg import scan
from forebay.queues.log.staged import StagedFrames
from tests.kernels.test_fflg import ALL, SEED, frames


class Ticks:
    """A clock that gives the times it is told."""

    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def __call__(self) -> int:
        return self.times.pop(0)


def appender(buffer: bytearray, *times: int) -> StagedFrames:
    staged = StagedFrames(threading.Lock(), Ticks(*times), acknowledges=True)
    staged.use_buffer(buffer)
    return staged


def test_an_appender_stages_the_exact_bytes_of_the_segment() -> None:
    buffer = bytearray(200)
    staged = appender(buffer, 1005, 1005)
    staged.begin(96, 200, 40, 2, SEED, 1000)

    offsets = [staged.append(b"one"), staged.append(b"")]

    assert offsets == [42, 43]
    assert (staged.index, staged.position) == (4, 96 + 15 + 12)
    assert bytes(buffer[96 : staged.position]) == frames([b"one", b""], 2, SEED, 5)


def test_an_appender_refuses_what_does_not_fit_and_what_is_not_bytes() -> None:
    staged = appender(bytearray(200), 1001)
    staged.begin(0, 20, 0, 0, SEED, 1000)

    assert staged.append(b"nine long") is None
    assert staged.append(bytearray(b"x")) is None
    assert staged.append("text") is None
    assert staged.append(b"eight by") == 0
    assert staged.append(b"") is None


def test_an_appender_gives_nothing_before_begin_and_after_finish() -> None:
    buffer = bytearray(100)
    staged = appender(buffer, 1001)

    before = staged.append(b"x")
    staged.begin(0, 100, 0, 0, SEED, 1000)
    staged.finish()
    after = staged.append(b"x")
    staged.release_buffer()

    assert (before, after, staged.append(b"x")) == (None, None, None)
    assert not any(buffer)


def test_times_of_staged_records_never_fall() -> None:
    buffer = bytearray(100)
    staged = appender(buffer, 1005, 1002, 1009)
    staged.begin(0, 100, 0, 0, SEED, 1000)

    for _ in range(3):
        staged.append(b"x")
    times: list[int] = []
    scan(buffer, 0, 0, SEED, ALL, times)

    assert times == [5, 5, 9]
    assert staged.last_ms == 1009


def test_a_time_that_32_bits_cannot_hold_is_refused() -> None:
    staged = appender(bytearray(100), 1000 + 2**32 - 1, 1000 + 2**32)
    staged.begin(0, 100, 0, 0, SEED, 1000)

    assert staged.append(b"last") == 0
    assert staged.append(b"late") is None


def test_the_wall_clock_is_used_where_no_other_is_given() -> None:
    buffer = bytearray(100)
    staged = StagedFrames(threading.Lock(), None, acknowledges=True)
    staged.use_buffer(buffer)
    before_ms = time.time_ns() // 1_000_000
    times: list[int] = []

    staged.begin(0, 100, 0, 0, SEED, before_ms - 1)
    staged.append(b"x")
    after_ms = time.time_ns() // 1_000_000
    scan(buffer, 0, 0, SEED, ALL, times)

    assert before_ms <= before_ms - 1 + times[0] <= after_ms
