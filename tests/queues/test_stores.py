"""Readers of every kind need names and bytes only: they read from a place without a file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kinds import EACH, KINDS, Kind
from tests.support.bucket import Buckets

each_policy = pytest.mark.parametrize(("name", "policy"), EACH)
VALUES = [b"%03d" % number for number in range(100)]


def fill(kind: Kind, queue: Any) -> None:
    """Puts values: most of them in full files, the last one by itself, as into a buffer."""
    kind.put_many(queue, VALUES[:-1])
    kind.put(queue, VALUES[-1])


def read(kind: Kind, path: Path) -> list[bytes]:
    with kind.record.open_reader(path, filesystem=Buckets()) as reader:
        return kind.values_of(reader)


@each_policy
def test_a_queue_that_is_in_use_is_read_from_a_store(
    tmp_path: Path, name: str, policy: str
) -> None:
    kind = KINDS[name]
    with kind.open(tmp_path / "q", sync=policy, background=False) as queue:
        fill(kind, queue)

        assert read(kind, tmp_path / "q") == VALUES


@each_policy
def test_a_queue_that_was_closed_is_read_from_a_store(
    tmp_path: Path, name: str, policy: str
) -> None:
    kind = KINDS[name]
    with kind.open(tmp_path / "q", sync=policy, background=False) as queue:
        fill(kind, queue)

    assert read(kind, tmp_path / "q") == VALUES


def test_entries_that_were_put_aside_are_read_from_a_store(tmp_path: Path) -> None:
    kind = KINDS["fifo"]
    with kind.open(tmp_path / "q", max_attempts=1) as fifo:
        fifo.push(b"poison")
        with pytest.raises(ZeroDivisionError), fifo.take():
            raise ZeroDivisionError
        fifo.pop()

    with kind.record.open_reader(tmp_path / "q", filesystem=Buckets()) as reader:
        assert [entry.value for entry in reader.dead()] == [b"poison"]


def test_the_places_of_consumers_are_read_from_a_store(tmp_path: Path) -> None:
    kind = KINDS["log"]
    with kind.open(tmp_path / "q") as log:
        fill(kind, log)
        log.consumer("c", start=7).commit()

    with kind.record.open_reader(tmp_path / "q", filesystem=Buckets()) as reader:
        assert reader.consumers() == {"c": 7}
        assert reader.cursors() == {}


@each_policy
def test_a_queue_is_checked_in_a_store(tmp_path: Path, name: str, policy: str) -> None:
    kind = KINDS[name]
    with kind.open(tmp_path / "q", sync=policy, background=False) as queue:
        fill(kind, queue)

    report = kind.record.checks.check(str(tmp_path / "q"), progress, filesystem=Buckets())

    assert (report.records, report.damage, report.foreign) == (len(VALUES), (), ())


def progress(done: int, total: int | None) -> None:
    pass
