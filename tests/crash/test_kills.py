"""Real processes, killed for real: `kill -9` at random moments loses nothing acknowledged.

Each record's content is a function of its offset, so that a reader can judge it alone. The writer
tells through a pipe what was acknowledged, before it goes on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from forebay.queues.log import Log
from tests.counting import Count

KILLS_EACH = 60
OPTIONS: dict[str, Any] = {"segment_bytes": 40_000, "staging_bytes": 16_384}


def value_at(offset: int) -> bytes:
    """Makes the record of an offset: 8 to 807 bytes that nothing else gives."""
    start = blake2b(offset.to_bytes(8, "big"), digest_size=8).digest()
    return start * (1 + start[0] % 101)


def write_until_killed(path: Path, pipe: int, seed: int, options: dict[str, Any]) -> None:
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
        os.write(pipe, end.to_bytes(8, "big"))
        if draw.random() < 0.02:
            consumer.read(draw.randrange(1, 200))
            consumer.commit()
            log.trim()


def kill_a_writer(path: Path, seed: int, seconds: float, options: dict[str, Any]) -> int:
    """Lets a child write for a while, kills it, and gives the end that it had acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            write_until_killed(path, writing, seed, options)
        finally:
            os._exit(1)
    os.close(writing)
    first = os.read(reading, 8)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    received = bytearray(first)
    while data := os.read(reading, 1 << 20):
        received += data
    os.close(reading)
    whole = len(received) // 8 * 8
    return int.from_bytes(received[whole - 8 : whole], "big")


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
        acknowledged = kill_a_writer(tmp_path / "q", seed, draw.uniform(0, 0.04), options)
        with Log(tmp_path / "q", **OPTIONS, **options) as log:
            assert log.end >= acknowledged, (seed, acknowledged, log.end)
            begin = log.begin
            records = list(log.consumer("check", start="earliest")) if log.end > begin else []
            log.forget_consumer("check")
            assert [record.offset for record in records] == list(range(begin, log.end))
            assert all(record.value == value_at(record.offset) for record in records)

    record_property("kills", KILLS_EACH)
