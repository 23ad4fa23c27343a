from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from examples.tour.events import event
from examples.tour.processes import Actor, ProcessFailed
from tests.cli.helpers import values_of
from tests.examples.helpers import processes_that_name
from tests.support.waiting import wait_until


class Ring(Exception):
    """An alarm clock rang."""


def ring(_number: int, _frame: object) -> None:
    raise Ring


@pytest.mark.slow
def test_a_signal_while_a_process_is_looked_at_does_not_keep_its_end_waiting(
    tmp_path: Path,
) -> None:
    producer = Actor("producer", str(tmp_path / "doors"), 10**9, 1.0, 100_000)
    producer.start()
    old = signal.signal(signal.SIGALRM, ring)
    try:
        for turn in range(2_000):
            with contextlib.suppress(Ring):
                signal.setitimer(signal.ITIMER_REAL, (1 + turn % 100) / 1_000_000)
                while True:
                    producer.look()
        # If a lock were still held, this would wait until the clock rings.
        signal.alarm(240)
        producer.end()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)

    assert processes_that_name(tmp_path) == []


@pytest.mark.slow
def test_a_producer_that_is_killed_goes_on_after_what_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "doors"
    # So many that it is killed in the middle, whoever is held up meanwhile.
    producer = Actor("producer", str(path), 10**9, 200.0, 100_000)

    def look_until(offset: int) -> bool:
        producer.look()
        return producer.acknowledged >= offset

    try:
        producer.start()
        assert wait_until(lambda: look_until(50))
        producer.kill()
        promised = producer.acknowledged
        producer.start()
        assert wait_until(lambda: look_until(promised + 50))
        found = producer.found
        producer.kill()
        count = len(values_of(path)) + 50
        producer = Actor("producer", str(path), count, 200.0, 100_000)
        producer.start()
        assert wait_until(lambda: look_until(count) and producer.done)
    finally:
        producer.end()

    assert found is not None
    assert 50 <= promised <= found
    assert producer.found == count - 50
    assert values_of(path) == [event("doors", offset) for offset in range(count)]


@pytest.mark.slow
def test_a_producer_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    producer = Actor("producer", str(tmp_path / "file"), 400, 200.0, 100_000)

    def look() -> bool:
        producer.look()
        return False

    producer.start()
    with pytest.raises(ProcessFailed, match="the producer of file exited early, with code 1"):
        wait_until(look)
    producer.end()
