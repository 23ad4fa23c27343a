"""Options out of their bounds are refused, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay import Closed, InvalidOption, Log
from forebay.queues.log.options import LogOptions
from tests.kinds import KINDS, Kind

WAITS: dict[str, Callable[[Any, Any], object]] = {
    "log": lambda log, timeout: log.consumer("c").read(timeout=timeout),
    "fifo": lambda fifo, timeout: fifo.pop(timeout=timeout),
    "beats": lambda queue, timeout: queue.read(timeout=timeout),
}


@pytest.mark.parametrize("timeout", [math.nan, "1", b"1", [1]])
@pytest.mark.parametrize("name", WAITS)
def test_a_timeout_that_is_no_time_is_named_in_the_error(
    tmp_path: Path, name: str, timeout: Any
) -> None:
    message = r"timeout = .*: must be a number of seconds"
    with KINDS[name].open(tmp_path / "q") as queue, pytest.raises(InvalidOption, match=message):
        WAITS[name](queue, timeout)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_closed_queue_has_no_length(tmp_path: Path, kind: Kind) -> None:
    queue = kind.open(tmp_path / "q")
    kind.put(queue, b"value")
    before = len(queue)
    queue.close()

    assert before == 1
    with pytest.raises(Closed):
        len(queue)
    assert "closed" in repr(queue)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("sync", "sometimes", "'always', 'interval', 'os'"),
        ("sync", None, "'always', 'interval', 'os'"),
        ("sync", True, "'always', 'interval', 'os'"),
        ("when_full", "explode", "'block', 'reject', 'drop_oldest'"),
        ("version", -1, "None, 0, 1, 2"),
        ("version", 3, "None, 0, 1, 2"),
        ("version", True, "None, 0, 1, 2"),
        ("sync_interval_seconds", 0, "0.001 to 3600 seconds"),
        ("sync_interval_seconds", 3601, "0.001 to 3600 seconds"),
        ("sync_interval_seconds", True, "0.001 to 3600 seconds"),
        ("segment_bytes", 999, "1000 to 2147483647"),
        ("segment_bytes", 2**31, "1000 to 2147483647"),
        ("segment_bytes", "1000", "1000 to 2147483647"),
        ("segment_bytes", True, "1000 to 2147483647"),
        ("staging_bytes", 4_095, "4096 to 4194304"),
        ("staging_bytes", (4 << 20) + 1, "4096 to 4194304"),
        ("max_bytes", 199_999_999, "200000000 to"),
        ("max_bytes", 2**62 + 1, "200000000 to"),
        ("max_bytes", 0, "200000000 to"),
        ("trim_interval_seconds", 0, "at least 0.001 seconds"),
        ("trim_interval_seconds", -1.0, "at least 0.001 seconds"),
        ("trim_interval_seconds", float("nan"), "at least 0.001 seconds"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_bound(
    tmp_path: Path, name: str, value: Any, bound: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        Log(tmp_path / "q", **{name: value})

    assert f"{name} = {value!r}: must be" in str(caught.value)
    assert bound in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("trim_interval_seconds", "5"), ("background", "no"), ("group_readable", 3)],
)
def test_a_value_of_another_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        LogOptions(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"segment_bytes": 1_000, "max_bytes": 2_000},
        {"segment_bytes": 2**31 - 1},
        {"staging_bytes": 4_096},
        {"staging_bytes": 4 << 20, "sync": "os"},
        {"sync_interval_seconds": 0.001, "sync": "interval"},
        {"sync_interval_seconds": 3600},
        {"trim_interval_seconds": None},
        {"trim_interval_seconds": 0.001},
        {"trim_interval_seconds": timedelta(minutes=1)},
        {"version": 1},
        {"version": None},
    ],
)
def test_values_at_their_bounds_are_taken(tmp_path: Path, options: dict[str, Any]) -> None:
    with Log(tmp_path / "q", **options) as log:
        assert log.append(b"a") == 0


def test_an_unknown_option_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'segment_size'"):
        Log(tmp_path / "q", segment_size=5_000)  # type: ignore[call-arg]  # that is what is tested

    assert not (tmp_path / "q").exists()


def test_the_defaults_are_those_of_the_documentation() -> None:
    options = LogOptions()

    assert (options.sync, options.when_full, options.max_bytes) == ("always", "block", None)
    assert (options.segment_bytes, options.sync_interval_seconds) == (100_000_000, 0.1)
    assert (options.trim_interval_seconds, options.version) == (60.0, None)
