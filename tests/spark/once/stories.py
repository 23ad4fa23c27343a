"""Stories that a stream must live through, told without Spark (`engine.py`).

Each raises `Broken` where a promise of the stream does not hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import DataLoss, Locked, Overtaken
from tests.queues.helpers import PER_SEGMENT, SEGMENT_BYTES
from tests.spark.once.checking import check_once
from tests.spark.once.engine import BATCHES_MAX, Engine
from tests.spark.once.machine import Machine
from tests.support.planting import Broken
from tests.support.values import numbered

LIMIT = 10
# Less than a segment: when one is full, the mark is synced with it.
FEW = 5


def open_log(path: Path, **options: Any) -> forebay.Log:
    return forebay.Log(path, segment_bytes=SEGMENT_BYTES, background=False, **options)


def fill(path: Path, count: int, first: int = 0) -> list[bytes]:
    values = numbered(count, first=first)
    with open_log(path) as log:
        log.append_many(values)
    return values


@contextmanager
def running(path: str | Path, **options: Any) -> Iterator[Engine]:
    """A query over queues that lose nothing: a loss that it sees all the same breaks a promise."""
    query = Engine(path, **options)
    try:
        yield query
    except (DataLoss, Overtaken) as error:
        raise Broken(str(error)) from error
    finally:
        query.kill()


def expect_loss(query: Engine) -> None:
    """Runs a query over records that were lost: it must not go on as if nothing had been."""
    try:
        query.run()
    except DataLoss:
        return
    finally:
        query.kill()
    raise Broken("records were lost, and the query did not notice")


def expect_locked(query: Engine) -> None:
    try:
        query.plan()
    except Locked:
        return
    raise Broken("two queries run under one name")


def a_query_with_a_limit(path: Path) -> None:
    """No batch may be larger."""
    values = fill(path, 5 * LIMIT)
    with running(path, maxOffsetsPerTrigger=LIMIT) as query:
        query.run()
        check_once(query.rows(), {str(path): values})
        if max(map(len, query.landed.values())) > LIMIT:
            raise Broken("a batch is larger than the limit")


def a_writer_that_never_rests(path: Path) -> None:
    """A query with AvailableNow ends behind what was there at its start."""
    values = fill(path, 5 * LIMIT)
    with (
        running(path, maxOffsetsPerTrigger=LIMIT, available_now=True) as query,
        open_log(path) as log,
    ):
        while query.plan():
            query.land()
            query.finish()
            log.append_many(numbered(LIMIT))
            if query.done > BATCHES_MAX:
                raise Broken("the query never ends")
        check_once(query.rows(), {str(path): values})


def a_power_cut_behind_the_stream(path: Path) -> None:
    """Half of the records were synced; the rest may go, and their offsets are given out again."""
    with pytest.MonkeyPatch.context() as patch, running(path) as query:
        machine = Machine(path, patch)
        with machine.owner(sync="os") as log:
            log.append_many(numbered(LIMIT))
            log.sync()
            log.append_many(numbered(LIMIT, first=100))
            machine.show()
            query.run()
            query.kill()
            now = machine.disk.operations
            nothing_more = next(machine.crashes(now, now, limit=1))
        machine.restart(nothing_more.files())
        values = numbered(LIMIT) + fill(path, 2 * LIMIT, first=200)
        query.run()
        check_once(query.rows(), {str(path): values})


def a_disk_that_lied(path: Path) -> None:
    """What was synced and read is gone after a power cut, and the offsets are given out again."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(path, patch)
        query = Engine(path)
        with machine.owner(sync="os") as log:
            log.append_many(numbered(LIMIT))
            log.sync()
            old = machine.files()
            log.append_many(numbered(LIMIT, first=100))
            log.sync()
            machine.show()
            query.run()
            query.kill()
        machine.restart(old)
        fill(path, 2 * LIMIT, first=200)
        expect_loss(query)


def trimming_goes_on(path: Path) -> None:
    """Another consumer has read everything, and the log is trimmed whenever the stream rests."""
    values = fill(path, 5 * PER_SEGMENT)
    with open_log(path) as log, running(path, maxOffsetsPerTrigger=LIMIT, consumerId="s") as query:
        log.consumer("other", start="latest").commit()
        while query.plan():
            log.trim()
            query.kill()
            query.land()
            query.kill()
            log.trim()
            query.land()
            query.finish()
        check_once(query.rows(), {str(path): values})
        if log.begin == 0:
            raise Broken("nothing was trimmed")


def a_queue_that_comes_later(path: Path) -> None:
    """It comes in with a batch that is planned, and read only after a restart."""
    values = {str(path / "a"): fill(path / "a", LIMIT)}
    with running(f"{path}/*") as query:
        query.run()
        query.kill()
        values[str(path / "b")] = fill(path / "b", LIMIT)
        query.plan()
        query.kill()
        query.run()
        check_once(query.rows(), values)


def a_restart_before_the_batch_is_done(path: Path) -> None:
    """Its rows have landed; meanwhile more records came."""
    values = fill(path, LIMIT)
    with running(path) as query:
        query.plan()
        query.land()
        query.kill()
        values += fill(path, LIMIT, first=LIMIT)
        query.run()
        check_once(query.rows(), {str(path): values})


def a_restart_in_the_first_batch(path: Path) -> None:
    """A query begins at the end; more records came before its first batch is replayed."""
    fill(path, LIMIT)
    with running(path, startingOffsets="latest") as query:
        query.begin()
        fill(path, LIMIT, first=LIMIT)
        query.plan()
        query.kill()
        fill(path, LIMIT, first=2 * LIMIT)
        query.run()
        if [offset for _, offset, _ in query.rows()] != list(range(LIMIT, 3 * LIMIT)):
            raise Broken("records that came after the start of the query were skipped")


def a_second_query_of_the_same_name(path: Path) -> None:
    """It would move the cursor past what the first one has not read."""
    fill(path, LIMIT)
    with running(path, consumerId="s") as first, running(path, consumerId="s") as second:
        first.plan()
        expect_locked(second)


def a_second_query_while_the_first_replays(path: Path) -> None:
    """A restarted query reads its planned batch before it asks for anything new."""
    fill(path, LIMIT)
    with running(path, consumerId="s") as first, running(path, consumerId="s") as second:
        first.plan()
        first.kill()
        first.land()
        expect_locked(second)


def a_stream_that_comes_up_before_the_owner(path: Path) -> None:
    """After a power cut the mark may be an old one; the records that the stream read are there."""
    with pytest.MonkeyPatch.context() as patch, running(path) as query:
        machine = Machine(path, patch)
        with machine.owner(sync="os") as log:
            log.append_many(numbered(FEW))
            log.sync()
            machine.show()
            query.run()
            query.kill()
            now = machine.disk.operations
            nothing_more = next(machine.crashes(now, now, limit=1))
        machine.restart(nothing_more.files())
        query.run()
        query.kill()
        values = numbered(FEW) + fill(path, LIMIT, first=FEW)
        query.run()
        check_once(query.rows(), {str(path): values})


def a_queue_that_vanished(path: Path) -> None:
    """Most of it was not read."""
    fill(path / "a", 5 * LIMIT)
    fill(path / "b", LIMIT)
    query = Engine(f"{path}/*", maxOffsetsPerTrigger=LIMIT)
    query.plan()
    query.land()
    query.finish()
    query.kill()
    shutil.rmtree(path / "a")
    expect_loss(query)


def a_segment_for_many_tasks(path: Path) -> None:
    """A segment is cut into parts, each of which is read by a task of its own."""
    values = numbered(1_000)
    with forebay.Log(path, background=False) as log:
        log.append_many(values)
    with running(path, maxPartitionBytes="10k") as query:
        query.run()
        check_once(query.rows(), {str(path): values})
