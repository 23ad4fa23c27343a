"""`forebay.aio.Log` and its consumers: a place never runs ahead of what somebody was given."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Damaged, InvalidOption, Overtaken, Record
from forebay.aio import Log
from tests.aio.helpers import begin_waiting, until
from tests.queues.helpers import flip, frame_position, segment_files

VALUES = [b"%03d" % number for number in range(10)]


def values_of(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


def saved_place(path: Path) -> int:
    with forebay.Log(path) as log:
        place: int = log.info().positions["c"]
        return place


def test_a_commit_within_a_loop_saves_what_was_given_and_no_more(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        seen: list[bytes] = []
        async with Log(tmp_path / "q") as log:
            await log.append_many(VALUES)
            consumer = await log.consumer("c")
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 4:
                    await consumer.commit()
                    break
            assert (consumer.committed, consumer.lag) == (4, 6)
            async for record in consumer:
                seen.append(record.value)
        return seen

    assert asyncio.run(run()) == VALUES
    assert saved_place(tmp_path / "q") == 4


def test_tasks_that_share_a_consumer_get_each_record_once(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with Log(tmp_path / "q") as log:
            consumer = await log.consumer("c")
            reads = [consumer.read(2, timeout=120) for _ in range(5)]
            reading = [await begin_waiting(log, read) for read in reads]
            await log.append_many(VALUES)
            parts = await asyncio.gather(*reading)
            return [value for part in parts for value in values_of(part)]

    assert sorted(asyncio.run(run())) == VALUES


def test_tasks_that_share_a_consumer_save_no_place_past_an_open_block(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with Log(tmp_path / "q") as log:
            await log.append_many(VALUES[:2])
            consumer = await log.consumer("c")
            may_fail = asyncio.Event()

            async def fail_late() -> None:
                with contextlib.suppress(KeyError):
                    async with consumer.take():
                        await may_fail.wait()
                        raise KeyError

            failing = asyncio.ensure_future(fail_late())
            await until(lambda: consumer.position == 1)
            async with consumer.take() as record:
                taken = record.offset
            places = [consumer.committed]
            waiting = await begin_waiting(log, consumer.read(timeout=600))
            may_fail.set()
            await failing
            again = values_of(await waiting)
            await consumer.commit()
            return [taken, *places, again, consumer.committed]

    assert asyncio.run(run()) == [1, 0, VALUES[:1], 2]


def test_a_seek_forgets_what_was_read_ahead(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with Log(tmp_path / "q") as log:
            await log.append_many(VALUES)
            consumer = await log.consumer("c", start=2)
            records = aiter(consumer)
            first = await anext(records)
            with pytest.raises(InvalidOption):
                await consumer.seek(99)
            second = await anext(records)
            await consumer.seek(8)
            assert consumer.position == 8
            return values_of([first, second, *await consumer.read()])

    assert asyncio.run(run()) == [VALUES[2], VALUES[3], VALUES[8], VALUES[9]]


def test_damage_is_told_once_and_the_place_is_behind_it(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with Log(tmp_path / "q") as log:
            await log.append_many([b"x" * 100] * 3)
            flip(segment_files(tmp_path / "q")[0], frame_position(0) + 50)
            consumer = await log.consumer("c")
            with pytest.raises(Damaged):
                await consumer.read(timeout=5)
            assert consumer.position == 1
            return [record.offset for record in await consumer.read(timeout=5)]

    assert asyncio.run(run()) == [1, 2]


def test_who_was_overtaken_is_told_how_many_are_lost(tmp_path: Path) -> None:
    async def run() -> tuple[int, int, int]:
        options: dict[str, Any] = {
            "segment_bytes": 1_000,
            "max_bytes": 2_000,
            "when_full": "drop_oldest",
        }
        async with Log(tmp_path / "q", **options) as log:
            consumer = await log.consumer("c")
            for _ in range(40):
                await log.append(b"x" * 100)
            with pytest.raises(Overtaken) as caught:
                await consumer.read()
            return caught.value.lost, consumer.position, log.begin

    lost, position, begin = asyncio.run(run())
    assert lost == position == begin > 0


def test_the_log_tells_its_ends_and_trims_what_was_read(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with Log(tmp_path / "q", segment_bytes=1_000, trim_interval_seconds=None) as log:
            assert await log.append_many([b"x" * 100] * 20) == 0
            assert await log.put(b"last") == 20
            consumer = await log.consumer("c")
            await consumer.seek("latest")
            await consumer.commit()
            await consumer.close()
            removed = await log.trim()
            await log.forget_consumer("c")
            ends = [log.begin, log.end, log.durable]
            return [removed, *ends, (await log.info()).consumers, await log.adopt()]

    assert asyncio.run(run()) == [16, 16, 21, 21, {}, 0]


def test_a_consumer_may_be_closed_after_its_log(tmp_path: Path) -> None:
    async def run() -> str:
        async with Log(tmp_path / "q") as log:
            consumer = await log.consumer("c")
        await consumer.close()
        return repr(consumer)

    assert asyncio.run(run()) == f"<forebay.aio of <Consumer 'c' at 0 of {tmp_path / 'q'}>>"


def test_without_a_background_thread_a_consumer_sees_what_was_appended_on_the_loop(
    tmp_path: Path,
) -> None:
    async def run() -> list[bytes]:
        async with Log(tmp_path / "q", sync="os", background=False) as log:
            consumer = await log.consumer("c")
            reading = await begin_waiting(log, consumer.read(timeout=600))
            await log.append(b"1")
            async with asyncio.timeout(120):
                records = await reading
            await log.maintain()
            await log.sync()
            return values_of(records)

    assert asyncio.run(run()) == [b"1"]
