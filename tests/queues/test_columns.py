"""Arrow columns say the same as records."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest

import forebay
from forebay.queues.shared.options import SyncPolicy


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_arrow_gives_every_record_with_offset_time_and_value(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    with forebay.Log(tmp_path / "log", sync=sync, segment_bytes=5000, background=False) as log:
        log.append_many([bytes([number % 256]) * (number % 300) for number in range(200)])
        log.append(b"the last one, staged under os")
        with forebay.read(tmp_path / "log", kind="log") as reader:
            table = pyarrow.table(reader)
            records = list(reader)

    assert table["offset"].to_pylist() == [record.offset for record in records]
    assert table["timestamp"].to_pylist() == [record.time for record in records]
    assert table["value"].to_pylist() == [record.value for record in records]
    assert len(records) == 201


def test_arrow_gives_no_times_where_the_format_has_none(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log", version=1) as log:
        log.append_many([b"one", b"two"])

    with forebay.read(tmp_path / "log") as reader:
        table = pyarrow.table(reader)

    assert table.to_pylist() == [
        {"offset": 0, "timestamp": None, "value": b"one"},
        {"offset": 1, "timestamp": None, "value": b"two"},
    ]


def test_arrow_meets_damage_as_records_do(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many([b"record %d" % number for number in range(9)])
    segment = tmp_path / "log" / "0000000000"
    data = bytearray(segment.read_bytes())
    data[data.index(b"record 4")] ^= 1
    segment.write_bytes(data)

    with forebay.read(tmp_path / "log", salvage=True) as reader:
        table = pyarrow.table(reader)
        lost = [damage.offset for damage in reader.damage]
    # A C stream carries only the message of an error.
    with (
        forebay.read(tmp_path / "log") as reader,
        pytest.raises(pyarrow.ArrowInvalid, match=r"0000000000, byte \d+: checksum"),
    ):
        pyarrow.table(reader)

    assert table["offset"].to_pylist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert lost == [4]
