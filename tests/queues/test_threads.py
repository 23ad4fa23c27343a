"""Many threads on one log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Closed, Log
from forebay.clock import SystemClock
from forebay.queues.shared.options import SyncPolicy
from tests.queues.helpers import SYNCS, numbered, run_threads, wait_until
from tests.support.inside import sync_together, writer_of

THREADS = 8
EACH = 500


def record(thread: int, number: int) -> bytes:
    return b"%d %d " % (thread, number) + b"." * (number % 90)


def order_of(values: list[bytes], thread: int) -> list[int]:
    split = [value.split(b" ") for value in values]
    return [int(parts[1]) for parts in split if int(parts[0]) == thread]


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("clock", ["system", "python"])
def test_threads_get_dense_offsets_and_keep_their_own_order(
    tmp_path: Path, sync: SyncPolicy, clock: str
) -> None:
    options: dict[str, Any] = {"sync": sync, "segment_bytes": 20_000, "staging_bytes": 8_192}
    if clock == "python":
        # Another clock takes another way through the staging buffer: under the queue's lock.
        options["clock"] = PythonClock()
    offsets: dict[int, list[int]] = {}
    with Log(tmp_path / "q", **options) as log:

        def work(thread: int) -> None:
            offsets[thread] = [log.append(record(thread, number)) for number in range(EACH)]

        run_threads(THREADS, work)

        assert log.end == THREADS * EACH

    with forebay.read(tmp_path / "q", kind="log") as reader:
        values = list(reader.values())
        times = [found.time_ms or 0 for found in reader]
    assert sorted(offset for given in offsets.values() for offset in given) == list(
        range(THREADS * EACH)
    )
    assert all(order_of(values, thread) == list(range(EACH)) for thread in range(THREADS))
    assert all(
        values[offset] == record(thread, number)
        for thread, given in offsets.items()
        for number, offset in enumerate(given)
    )
    assert times == sorted(times)


class PythonClock:
    """The machine's time, but not the class that is read in C."""

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def monotonic(self) -> float:
        return SystemClock().monotonic()


@pytest.mark.parametrize("sync", SYNCS)
def test_batches_of_several_threads_stay_together(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync, segment_bytes=5_000) as log:

        def work(thread: int) -> None:
            for batch in range(20):
                log.append(record(thread, batch * 11))
                log.append_many([record(thread, batch * 11 + n) for n in range(1, 11)])

        run_threads(4, work)

    with forebay.read(tmp_path / "q", kind="log") as reader:
        values = list(reader.values())
    assert len(values) == 4 * 20 * 11
    assert all(order_of(values, thread) == list(range(220)) for thread in range(4))
    firsts = [at for at, value in enumerate(values) if int(value.split(b" ")[1]) % 11 == 1]
    assert all(
        [int(value.split(b" ")[0]) for value in values[at : at + 10]]
        == [int(values[at].split(b" ")[0])] * 10
        for at in firsts
    )


@pytest.mark.slow
def test_durable_writers_share_syncs(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        sync_together(writer_of(log).commit, 32)

        def work(thread: int) -> None:
            for number in range(40):
                log.append(record(thread, number))

        run_threads(32, work)
        info = log.info()

    assert (info.durable, info.syncs) == (32 * 40, 40)


def append_until_closed(path: Path, sync: SyncPolicy) -> int:
    """Closes a log under the hands of its writers; gives the end that was acknowledged."""
    acknowledged: list[int] = []
    log = Log(path, sync=sync, segment_bytes=20_000)

    def work(thread: int) -> None:
        if thread == 0:
            wait_until(lambda: len(acknowledged) > 100)
            log.close()
            return
        try:
            while True:
                acknowledged.append(log.append(numbered(1)[0]))
        except Closed:
            pass

    run_threads(4, work)
    return max(acknowledged) + 1


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
def test_closing_while_threads_append_keeps_what_was_acknowledged(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    for number in range(10):
        path = tmp_path / str(number)
        acknowledged = append_until_closed(path, sync)

        with Log(path) as log:
            assert log.end >= acknowledged
