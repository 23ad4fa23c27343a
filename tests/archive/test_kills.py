"""An archiver is killed while the log is written, read and trimmed: nothing is lost, nothing half.

After each kill the host and the archive are read: together they hold every record that was
acknowledged. The writer dies with the archiver; the next one recovers the log and goes on.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from forebay import Log, LogReader
from forebay.queues.archive.archiver import Archiver
from tests.archive.helpers import (
    HOST,
    SEGMENT_BYTES,
    append,
    archived_records,
    check_both,
    check_target,
    decoded,
    manifest_of,
)
from tests.counting import Count
from tests.support.campaigns import FULL, seeds
from tests.support.killing import Program, kill_a_writer
from tests.support.objects import ObjectStore, Remote, environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.crash]

KILLS = 30
KILLS_OF_A_ROUND = 40
REMOTE_KILLS = 3


def work(path: Path, address: str, tell: Callable[[int], None], *, keep: int | None = None) -> None:
    """Appends, consumes, trims and archives until it is killed; tells what was acknowledged."""
    with (
        Log(path, segment_bytes=SEGMENT_BYTES, trim_interval_seconds=0.005) as log,
        Archiver(path, address, host=HOST, trim=True, keep_bytes=keep) as archiver,
    ):
        # Only now: from here on the cursor keeps what is not archived.
        threading.Thread(target=produce, args=(log, tell), daemon=True).start()
        while True:
            archiver.run()


def produce(log: Log, tell: Callable[[int], None]) -> None:
    """Appends and consumes without end."""
    consumer = log.consumer("c")
    while True:
        append(log, 10)
        consumer.read(1_000)
        consumer.commit()
        tell(log.end)
        time.sleep(0.001)


def kill(path: Path, address: Path, seed: int, kills: int) -> int:
    """Kills so often; checks after each; returns how many records the archive got."""
    chance = random.Random(seed)
    target = address / HOST / path.name
    for _ in range(kills):
        end = kill_a_writer(
            lambda tell: work(path, str(address), tell),
            seconds=chance.uniform(0, 0.05),
            told=chance.randrange(1, 6),
        )
        check_target(target)
        check_both(path, archived_records(target), end)
    manifest = manifest_of(target)
    return 0 if manifest is None else manifest.end


def test_kills_lose_nothing_and_leave_nothing_half(tmp_path: Path, record_property: Count) -> None:
    archived = kill(tmp_path / "events", tmp_path / "archive", 0, KILLS)

    assert archived > 0
    record_property("kills of an archiver", KILLS)


@pytest.mark.full
def test_the_campaign_of_kills(tmp_path: Path, record_property: Count) -> None:
    rounds = 0
    for seed in seeds("archive", "kills"):
        assert kill(tmp_path / "events", tmp_path / "archive", seed, KILLS_OF_A_ROUND) > 0
        shutil.rmtree(tmp_path / "events")
        shutil.rmtree(tmp_path / "archive")
        rounds += 1

    record_property("kills of an archiver", rounds * KILLS_OF_A_ROUND)


def test_kills_of_an_archiver_to_an_object_store(
    tmp_path: Path,
    store: ObjectStore,
    remote: Remote,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Count,
) -> None:
    kills = 40 if FULL else REMOTE_KILLS
    path, target = tmp_path / "killed", store.folder / HOST / "killed"
    address = f"{store.address}/{HOST}/killed"
    chance = random.Random(0)
    for name, value in environment(store.port).items():
        monkeypatch.setenv(name, value)
    with Log(path, segment_bytes=SEGMENT_BYTES, trim_interval_seconds=0.005) as log:
        for _ in range(kills):
            program = Program(
                "tests.archive.victim", path, store.address, output=tmp_path / "output"
            )
            before = log.end
            append(log, 60)
            ready = wait_until(partial(has_moved, path, before))
            time.sleep(chance.uniform(0, 0.2))
            program.kill()

            assert ready, (tmp_path / "output").read_text()
            check_target(target)
            check_both(path, decoded(remote.call("records", address)), log.end)

    record_property("kills of an archiver to an object store", kills)


def has_moved(path: Path, before: int) -> bool:
    """Says whether records from an offset on were archived and read back."""
    with LogReader(path) as reader:
        return any(place > before for place in reader.cursors().values())
