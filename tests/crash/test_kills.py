"""Real processes, killed for real: `kill -9` at random moments loses nothing acknowledged.

Each record's content is a function of its number, so that a reader can judge it alone.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue, BeatsReader, Event, Fifo, FifoReader, Log
from tests.counting import Count
from tests.queues.beats_helpers import make_key
from tests.support.campaigns import FULL
from tests.support.killing import Tell, kill_a_writer
from tests.support.values import value_at

# Every file system of `tests/filesystems` has its own, over all kinds and policies.
KILLS_EACH = 40 if FULL else 10
EVENT_KILLS_EACH = 15 if FULL else 4
FIFO_KILLS_EACH = 20 if FULL else 6
# Trimmed by the writer alone, so that what is there stays while it is being checked.
OPTIONS: dict[str, Any] = {
    "segment_bytes": 40_000,
    "staging_bytes": 16_384,
    "trim_interval_seconds": None,
}


def write_log(tell: Tell, path: Path, seed: int, options: dict[str, Any]) -> None:
    """Appends in all ways there are, and reports each acknowledged end."""
    draw = random.Random(seed)
    log = Log(path, **OPTIONS, **options)
    consumer = log.consumer("reader")
    while True:
        end = log.end
        if draw.random() < 0.9:
            log.append(value_at(end))
            end += 1
        else:
            count = draw.randrange(1, 60)
            log.append_many([value_at(end + number) for number in range(count)])
            end += count
        tell(end)
        if draw.random() < 0.02:
            consumer.read(draw.randrange(1, 200))
            consumer.commit()
            log.trim()


def event_at(number: int) -> Event:
    return Event(number, 0, {}, {"value": value_at(number)})


def write_events(tell: Tell, path: Path, seed: int, options: dict[str, Any]) -> None:
    """Puts in all ways there are, and reports each acknowledged end; acknowledges now and then."""
    draw = random.Random(seed)
    queue = BeatsQueue(path, segment_bytes=40_000, **options)
    with BeatsReader(path, key_file=options.get("key_file")) as reader:
        end = max((event.timestamp_ns for event in reader), default=-1) + 1
    while True:
        count = 1 if draw.random() < 0.9 else draw.randrange(1, 60)
        queue.put_many([event_at(end + number) for number in range(count)])
        end += count
        tell(end)
        if draw.random() < 0.02:
            queue.read(draw.randrange(1, 200)).ack()


def write_fifo(tell: Tell, path: Path, seed: int, options: dict[str, Any]) -> None:
    """Pushes, pops and takes; reports each acknowledged end, and what has left for good."""
    draw = random.Random(seed)
    fifo = Fifo(path, file_bytes=40_000, staging_bytes=16_384, **options)
    while True:
        end, begin = fifo.info().end, fifo.info().begin
        count = 1 if draw.random() < 0.8 else draw.randrange(1, 60)
        if count == 1:
            fifo.push(value_at(end))
        else:
            fifo.push_many([value_at(end + number) for number in range(count)])
        end += count
        if draw.random() < 0.5:
            begin += len(fifo.pop_many(draw.randrange(1, 12)))
        elif draw.random() < 0.5 and not fifo._front.returned:
            with fifo.take():
                begin += 1
        tell(end << 32 | begin)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"sync": "always"}, {"sync": "os"}, {"sync": "interval"}, {"sync": "os", "version": 1}],
    ids=["always", "os", "interval", "os, version 1"],
)
def test_kill_at_random_moments_loses_nothing_acknowledged(
    tmp_path: Path, options: dict[str, Any], record_property: Count
) -> None:
    draw = random.Random(str(options))
    for seed in range(KILLS_EACH):
        write = partial(write_log, path=tmp_path / "q", seed=seed, options=options)
        acknowledged = kill_a_writer(write, seconds=draw.uniform(0, 0.04))
        with Log(tmp_path / "q", **OPTIONS, **options) as log:
            assert log.end >= acknowledged, (seed, acknowledged, log.end)
            begin = log.begin
            records = list(log.consumer("check", start="earliest")) if log.end > begin else []
            log.forget_consumer("check")
            assert [record.offset for record in records] == list(range(begin, log.end))
            assert all(record.value == value_at(record.offset) for record in records)

    record_property("kills", KILLS_EACH)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("version", ["v2", "v2-lz4", "v3-seed"])
def test_kill_at_random_moments_loses_no_event(
    tmp_path: Path, version: str, sync: str, record_property: Count
) -> None:
    draw = random.Random(f"{version} {sync}")
    key_file = make_key(tmp_path)
    options: dict[str, Any] = {"version": version, "sync": sync, "key_file": key_file}
    for seed in range(EVENT_KILLS_EACH):
        write = partial(write_events, path=tmp_path / "q", seed=seed, options=options)
        acknowledged = kill_a_writer(write, seconds=draw.uniform(0, 0.04))
        with BeatsQueue(tmp_path / "q", **options) as queue:
            events = []
            while batch := queue.read(1000):
                events += batch.events
            assert all(event == event_at(event.timestamp_ns) for event in events)
            with BeatsReader(tmp_path / "q", key_file=key_file) as reader:
                there = [event.timestamp_ns for event in reader]
            assert there == list(range(there[0], there[-1] + 1))
            assert there[-1] + 1 >= acknowledged, (seed, acknowledged, there[-1])
            numbers = [event.timestamp_ns for event in events]
            assert numbers == there[len(there) - len(numbers) :]
            assert not queue.damage or all(damage.torn for damage in queue.damage)

    record_property("kills", EVENT_KILLS_EACH)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os", "interval"])
def test_kill_at_random_moments_loses_no_entry_and_brings_none_back(
    tmp_path: Path, sync: str, record_property: Count
) -> None:
    draw = random.Random(sync)
    options: dict[str, Any] = {"sync": sync}
    for seed in range(FIFO_KILLS_EACH):
        write = partial(write_fifo, path=tmp_path / "q", seed=seed, options=options)
        told = kill_a_writer(write, seconds=draw.uniform(0, 0.04))
        end, gone = told >> 32, told & 0xFFFFFFFF
        with FifoReader(tmp_path / "q") as reader:
            before = [(entry.offset, entry.value) for entry in reader]
        with Fifo(tmp_path / "q", **options) as fifo:
            info = fifo.info()
            assert (info.end >= end, info.begin >= gone) == (True, True), (seed, told, info)
            with FifoReader(tmp_path / "q") as reader:
                entries = [(entry.offset, entry.value) for entry in reader]
        # The owner may find more, which was not acknowledged.
        assert before == entries[: len(before)]
        first = info.begin - (len(entries) - (info.end - info.begin))
        assert [offset for offset, _ in entries] == list(range(first, info.end))
        assert all(value == value_at(offset) for offset, value in entries)

    record_property("kills", FIFO_KILLS_EACH)
