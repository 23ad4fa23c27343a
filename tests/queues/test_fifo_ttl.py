"""Entries that expire: passed over in their turn, counted, and whatever the clocks do."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import InvalidOption
from tests.queues.fifo_helpers import DAY_MS, TwoClocks, open_fifo, peek_all, tape_files
from tests.queues.helpers import SYNCS, numbered


@pytest.mark.parametrize("sync", SYNCS)
def test_an_expired_entry_is_passed_over_and_counted(tmp_path: Path, sync: str) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", sync=sync, clock=clock, ttl_seconds=60) as fifo:
        fifo.push(b"a minute")
        fifo.push(b"for ever", ttl_seconds=0)
        fifo.push(b"a second", ttl_seconds=1)
        fifo.push(b"an hour", ttl_seconds=3_600)
        clock.pass_time(59_999)
        early = [entry.value for entry in peek_all(fifo)]
        clock.pass_time(1)

        late = [entry.value for entry in peek_all(fifo)]
        size = len(fifo)
        popped = fifo.pop_many(10)

        assert early == [b"a minute", b"for ever", b"an hour"]
        assert late == popped == [b"for ever", b"an hour"]
        assert (size, len(fifo), fifo.info().expired) == (4, 0, 2)


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)])
def test_a_time_to_live_is_whole_seconds_as_a_number_or_a_timedelta(
    tmp_path: Path, ttl: float | timedelta
) -> None:
    with open_fifo(tmp_path / "q", ttl_seconds=ttl) as fifo:
        fifo.push(b"1")
        fifo.push(b"2", ttl_seconds=ttl)
        fifo.push_many([b"3"], ttl_seconds=ttl)
    with forebay.open(tmp_path / "q", kind="fifo", ttl_seconds=ttl) as fifo:
        fifo.push(b"4")

        assert [entry.ttl_seconds for entry in peek_all(fifo)] == [60] * 4


@pytest.mark.parametrize("ttl", [0.5, timedelta(milliseconds=1_500), math.nan, math.inf, "60"])
def test_a_time_to_live_with_a_fraction_is_refused(tmp_path: Path, ttl: Any) -> None:
    with open_fifo(tmp_path / "q") as fifo, pytest.raises(InvalidOption, match="whole seconds"):
        fifo.push(b"1", ttl_seconds=ttl)
    with pytest.raises(InvalidOption, match=r"ttl_seconds = .*whole seconds"):
        open_fifo(tmp_path / "new", ttl_seconds=ttl)


def test_expired_entries_give_their_space_back(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", sync="os", clock=clock, ttl_seconds=1) as fifo:
        fifo.push_many(numbered(100))
        clock.pass_time(1_000)

        assert fifo.pop() is None
        assert (len(fifo), fifo.info().expired, len(tape_files(tmp_path / "q"))) == (0, 100, 1)


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
def test_a_step_of_the_wall_clock_neither_expires_nor_keeps_an_entry(
    tmp_path: Path, step_ms: int
) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", clock=clock, ttl_seconds=60) as fifo:
        fifo.push(b"x")
        fifo.push(b"y")
        clock.set_wall(step_ms)

        before = fifo.pop()
        clock.pass_time(60_000)

        assert (before, fifo.pop()) == (b"x", None)


def test_across_a_restart_wall_time_counts(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", clock=clock, ttl_seconds=60) as fifo:
        fifo.push_many([b"x", b"y"])
    clock.wall_ms += 60_000
    clock.run_ms = 0

    with open_fifo(tmp_path / "q", clock=clock) as fifo:
        assert len(fifo) == 2
        assert fifo.pop() is None


def test_ids_rise_although_the_clock_was_set_back_between_two_runs(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_fifo(tmp_path / "q", clock=clock) as fifo:
        first = fifo.push(b"x")
    clock.set_wall(-DAY_MS)

    with open_fifo(tmp_path / "q", clock=clock, ttl_seconds=60) as fifo:
        second = fifo.push(b"y")

        assert second > first
        assert fifo.pop_many(2) == [b"x", b"y"]


def test_ids_rise_where_the_low_bits_of_the_number_start_anew(tmp_path: Path) -> None:
    clock = TwoClocks()
    options = {"sync": "os", "clock": clock, "file_bytes": 1 << 20}
    with open_fifo(tmp_path / "q", **options) as fifo:
        fifo.push_many([b""] * 65_535)
        last = fifo.push(b"")
        first_of_next = fifo.push(b"")
        clock.pass_time(5)
        fifo.push_many([b""] * 10)

        assert (last & 0xFFFF, first_of_next & 0xFFFF) == (0xFFFF, 0)
        assert first_of_next > last
        assert len(fifo.pop_many(100_000)) == 65_547


@pytest.mark.parametrize("when_full", ["reject", "block", "drop_oldest"])
def test_a_queue_full_of_expired_entries_takes_new_ones(tmp_path: Path, when_full: str) -> None:
    clock = TwoClocks()
    options = {"sync": "os", "clock": clock, "max_bytes": 3_000, "when_full": when_full}
    with open_fifo(tmp_path / "q", ttl_seconds=1, **options) as fifo:
        fifo.push_many(numbered(22))
        clock.pass_time(1_000)

        fifo.push_many(numbered(20, first=100))

        assert fifo.pop_many(30) == numbered(20, first=100)
        assert (fifo.info().expired, fifo.info().dropped) == (22, 0)
