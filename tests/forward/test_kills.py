"""Kills between slot, request, answer and commit, while the server misbehaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import Log
from forebay.forward.http import HttpOutput
from tests.counting import Count
from tests.support.forwarding import check_holds, kill_until_done, numbered_objects
from tests.support.receiver import FAULTS, Receiver

pytestmark = [pytest.mark.slow, pytest.mark.crash]
# The slow ones cost a second each, and say nothing new about order or loss.
QUICK = [fault for fault in FAULTS if fault not in ("trickle", "slow")]


def poison_of(count: int, share: float, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [number for number in range(count) if draw.random() < share]


def parts(count: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def run_under_fire(
    folder: Path, receiver: Receiver, path: str, *, count: int, kills: int, seed: int, **more: Any
) -> tuple[int, dict[str, Any], list[int]]:
    """Forwards records with kills, faults and poison; returns the kills and what came."""
    bad = poison_of(count, more.pop("poisoned", 0.01), seed)
    script = {"number": "n", "poison": "poison", "seed": seed, "share": 0.2, "faults": QUICK}
    receiver.script(path, **{**script, **more.pop("script", {})})
    values = numbered_objects(count, bad)
    with Log(folder / "q", sync="os") as log:
        for part in parts(count, 10_000):
            log.append_many(values[part.start : part.stop])
    killed = kill_until_done(
        *(folder / "q", lambda: HttpOutput(receiver.url(path), timeout_seconds=5), kills, seed),
        **{"retry_seconds_max": 0.005, **more},
    )
    return killed, receiver.summary(path), bad


def check_all(folder: Path, found: dict[str, Any], count: int, bad: list[int]) -> None:
    proof = check_holds(folder / "q")
    assert found["violations"] == []
    assert (proof.delivered, proof.set_aside, proof.waiting) == (count - len(bad), len(bad), 0)
    assert found["records"] == count - len(bad)


def test_kills_lose_nothing_and_repeat_only_under_the_same_key(
    tmp_path: Path, receiver: Receiver
) -> None:
    killed, found, bad = run_under_fire(tmp_path, receiver, "kills", count=1500, kills=25, seed=1)

    assert killed >= 15
    check_all(tmp_path, found, 1500, bad)
    assert [value["n"] for value in receiver.values("kills")] == [
        number for number in range(1500) if number not in set(bad)
    ]


def test_kills_with_several_batches_in_flight_lose_nothing(
    tmp_path: Path, receiver: Receiver
) -> None:
    killed, found, bad = run_under_fire(
        *(tmp_path, receiver, "flight"),
        count=1000,
        kills=12,
        seed=2,
        in_flight=4,
        script={"unordered": True},
    )

    assert killed >= 6
    check_all(tmp_path, found, 1000, bad)


@pytest.mark.full
def test_thousands_of_outages_and_hundreds_of_kills(
    tmp_path: Path, receiver: Receiver, record_property: Count
) -> None:
    killed, found, bad = run_under_fire(
        *(tmp_path, receiver, "campaign"), count=60_000, kills=230, seed=11
    )

    outages = sum(found.get(fault, 0) for fault in FAULTS)
    record_property("kills", killed)
    record_property("outages", outages)
    record_property("records", found["records"])
    assert killed >= 200
    assert outages >= 2000
    check_all(tmp_path, found, 60_000, bad)


@pytest.mark.full
def test_ten_thousand_poison_records_among_a_million(
    tmp_path: Path, receiver: Receiver, record_property: Count
) -> None:
    count = 1_000_000
    killed, found, bad = run_under_fire(
        *(tmp_path, receiver, "million"),
        count=count,
        kills=0,
        seed=5,
        batch_records=500,
        poisoned=0.0102,
        script={"forget": True, "share": 0.001},
    )

    record_property("poison records", len(bad))
    record_property("records", found["records"])
    assert killed == 0
    assert len(bad) >= 10_000
    check_all(tmp_path, found, count, bad)
