"""What the disk cannot give back is damage like any other, and the rest is read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from forebay import Damaged, Log, LogReader
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    frame_position,
    numbered,
    segment_files,
    values_of,
)
from tests.support.bad_disk import BadDisk

COUNT = 3 * PER_SEGMENT
REASON = "cannot be read: Input/output error"


def make_log(path: Path, **options: Any) -> Path:
    with Log(path / "q", segment_bytes=SEGMENT_BYTES, **options) as log:
        log.append_many(numbered(COUNT))
    return path / "q"


def drain(log: Log) -> tuple[list[bytes], list[Damaged]]:
    """Reads everything; returns it, and what was raised on the way."""
    consumer = log.consumer("all")
    values: list[bytes] = []
    raised: list[Damaged] = []
    while True:
        try:
            records = consumer.read(1000)
        except Damaged as error:
            raised.append(error)
            continue
        if not records:
            return values, raised
        values += values_of(records)


@pytest.mark.parametrize("version", [1, 2])
def test_a_bad_sector_costs_the_records_in_it(tmp_path: Path, version: int) -> None:
    path = make_log(tmp_path, version=version)
    name = segment_files(path)[1].name
    disk = BadDisk({name: [(512, 513)]})

    with LogReader(path, salvage=True, filesystem=disk) as reader:
        values = list(reader.values())
        damage = reader.damage

    lost = sum(item.count or 0 for item in damage)
    assert lost + len(values) == COUNT
    assert set(values) < set(numbered(COUNT))
    assert {(item.path, item.reason) for item in damage} == {(f"{path}/{name}", REASON)}
    if version == 2:
        # The sector from 512 to 1,024 holds bytes of the records from 4 to 7.
        assert values == [v for n, v in enumerate(numbered(COUNT)) if not 12 <= n < 16]
        assert damage[0].position == frame_position(4)


@pytest.mark.parametrize("fault", ["sectors", errno.EIO, errno.EACCES])
def test_a_segment_that_cannot_be_read_at_all_costs_itself(
    tmp_path: Path, fault: str | int
) -> None:
    path = make_log(tmp_path)
    name = segment_files(path)[1].name
    disk = BadDisk({name: [(0, 2000)]}) if isinstance(fault, str) else BadDisk({}, {name: fault})

    with LogReader(path, salvage=True, filesystem=disk) as reader:
        values = list(reader.values())

    assert values == numbered(8) + numbered(8, first=16)
    assert [(d.path, d.offset, d.count) for d in reader.damage] == [(f"{path}/{name}", 8, 8)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_owner_raises_a_bad_sector_once_and_goes_on(tmp_path: Path, number: int) -> None:
    path = make_log(tmp_path)
    name = segment_files(path)[number].name
    disk = BadDisk({name: [(512, 513)]})

    with Log(path, filesystem=disk, segment_bytes=SEGMENT_BYTES) as log:
        log.append(b"more")
        values, raised = drain(log)

    first = number * PER_SEGMENT + 4
    assert values == [v for n, v in enumerate(numbered(COUNT)) if not first <= n < first + 4] + [
        b"more"
    ]
    assert [error.damage.reason for error in raised] == [REASON]


def test_a_time_is_found_in_spite_of_a_bad_sector(tmp_path: Path) -> None:
    path = make_log(tmp_path)
    disk = BadDisk({segment_files(path)[1].name: [(0, 512)]})

    with LogReader(path, salvage=True, filesystem=disk) as reader:
        assert reader.resolve(0) == 0
        assert len(list(reader.values(start=20))) == COUNT - 20
