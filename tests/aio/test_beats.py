"""`forebay.aio.BeatsQueue`: what is handed out is acknowledged, given back, or comes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forebay import Damaged
from forebay.aio import BeatsQueue
from tests.aio.helpers import begin_waiting
from tests.queues.beats_helpers import numbered, numbers_of
from tests.queues.helpers import flip


def test_a_batch_that_is_given_back_comes_before_newer_events(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with BeatsQueue(tmp_path / "q") as queue:
            await queue.put_many(numbered(4))
            first, second = await queue.read(2), await queue.read(1)
            await first.nack()
            await second.ack()
            await second.ack()
            again = await queue.read()
            return [len(first), *numbers_of(again), *numbers_of(await queue.read())]

    assert asyncio.run(run()) == [2, 0, 1, 3]


def test_who_waits_gets_what_another_task_gives_back(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with BeatsQueue(tmp_path / "q") as queue:
            await queue.put_many(numbered(2))
            batch = await queue.read()
            waiting = await begin_waiting(queue, queue.read(timeout=600))
            await batch.nack()
            async with asyncio.timeout(120):
                return numbers_of(await waiting)

    assert asyncio.run(run()) == [0, 1]


def test_damage_is_raised_once_and_can_be_looked_up(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with BeatsQueue(tmp_path / "q") as queue:
            await queue.put_many(numbered(3))
            flip(next((tmp_path / "q").glob("*.seg")), 60)
            with pytest.raises(Damaged):
                await queue.read(timeout=5)
            damage = queue.damage
            return [queue.version, len(damage), numbers_of(await queue.read(timeout=5))]

    assert asyncio.run(run()) == ["v2", 1, [1, 2]]
