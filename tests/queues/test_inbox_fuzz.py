"""What others leave in `inbox/` and what stands in the ledger, wrong under a right checksum.

A batch is taken whole or refused into `quarantine/`; the queue opens, has what it had, goes on.
"""

from __future__ import annotations

import logging
import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.storage import inbox
from tests.kinds import KINDS
from tests.queues.helpers import numbered, values_of, write_part
from tests.support.campaigns import FULL
from tests.support.fuzz import each_change, seal

OWN = numbered(3)
BATCH = numbered(5, first=100)
PARTS = {"a-0.part": BATCH[:2], "a-1.part": BATCH[2:]}
# Everyday every third change, which still meets each place of a document and each odd value.
STEP = 1 if FULL else 3


def make_log(path: Path) -> None:
    with forebay.Log(path, background=False, segment_bytes=1000) as log:
        log.append_many(OWN)


def hand_in(path: Path) -> dict[str, Any]:
    """Leaves two parts; returns the manifest that would publish them."""
    parts = [write_part(path, name, values) for name, values in PARTS.items()]
    named = [{"name": part.name, "count": part.count, "size": part.size} for part in parts]
    return {"writer": "w", "batch": 1, "parts": named, "kind": "log"}


def names_in(path: Path) -> list[str]:
    return sorted(os.listdir(path)) if path.exists() else []


def contents(path: Path) -> list[bytes]:
    """Opens the log, which adopts, appends one more, and returns what it then holds."""
    with forebay.Log(path, background=False, segment_bytes=1000) as log:
        log.append(b"more")
        assert log.adopt() == 0
    with forebay.Log(path, background=False, segment_bytes=1000) as log:
        consumer = log.consumer("c", start="earliest")
        while True:
            try:
                return sorted(values_of(consumer.read()))
            except forebay.Damaged:
                # Told once, and gone on from.
                continue


@pytest.mark.slow
def test_a_manifest_that_is_wrong_in_one_place_costs_its_batch_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    make_log(tmp_path / "whole")
    manifest = hand_in(tmp_path / "whole")
    refused = taken = 0
    for number, (change, changed) in enumerate(islice(each_change(manifest), 0, None, STEP)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        (path / "inbox" / "m.ready").write_bytes(seal(changed))

        found = contents(path)

        kept = names_in(path / "quarantine")
        assert [name for name in names_in(path / "inbox") if name.endswith(inbox.READY)] == []
        if "m.ready" in kept:
            refused += 1
            assert found == sorted([*OWN, b"more"]), change
        else:
            taken += 1
            named = {part["name"] for part in changed["parts"]}
            batch = [value for name in named for value in PARTS[name]]
            assert found == sorted([*OWN, *batch, b"more"]), change

    assert refused * STEP > 150
    # Another writer, another batch number, no kind.
    assert taken * STEP > 5


@pytest.mark.parametrize("made_for", KINDS)
def test_a_batch_for_another_kind_of_queue_is_refused(tmp_path: Path, made_for: str) -> None:
    make_log(tmp_path / "q")
    manifest = hand_in(tmp_path / "q") | {"kind": made_for}
    (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))

    found = contents(tmp_path / "q")

    expected = [*OWN, *BATCH, b"more"] if made_for == "log" else [*OWN, b"more"]
    assert found == sorted(expected)


def test_a_batch_that_names_no_kind_is_taken(tmp_path: Path) -> None:
    make_log(tmp_path / "q")
    manifest = hand_in(tmp_path / "q")
    del manifest["kind"]
    (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))

    found = contents(tmp_path / "q")

    assert found == sorted([*OWN, *BATCH, b"more"])
    assert names_in(tmp_path / "q" / "quarantine") == []


def leave_folder(path: Path) -> None:
    path.mkdir()


def leave_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def leave_pipe(path: Path) -> None:
    os.mkfifo(path)


def leave_rubbish(path: Path) -> None:
    path.write_bytes(b"\xff\xfe rubbish")


def leave_nothing_in_it(path: Path) -> None:
    path.write_bytes(b"")


def leave_a_hole(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


LEFT = [leave_folder, leave_link, leave_pipe, leave_rubbish, leave_nothing_in_it, leave_a_hole]


@pytest.mark.parametrize("leave", LEFT)
@pytest.mark.parametrize("name", ["inbox/m.ready", "inbox/a-0.part", "ledger", "inbox"])
def test_whatever_stands_in_the_inbox_keeps_no_queue_from_opening(
    tmp_path: Path, leave: Any, name: str
) -> None:
    make_log(tmp_path / "q")
    if name != "inbox":
        manifest = hand_in(tmp_path / "q")
        (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))
        (tmp_path / "q" / name).unlink(missing_ok=True)
    leave(tmp_path / "q" / name)

    found = contents(tmp_path / "q")

    taken = [*OWN, *BATCH, b"more"] if name == "ledger" else [*OWN, b"more"]
    assert found == sorted(taken)
    assert Path(name).name in names_in(tmp_path / "q" / "quarantine") or leave is leave_folder


@pytest.mark.slow
def test_a_ledger_that_is_wrong_in_one_place_keeps_no_queue_from_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    ledger = {
        "adopted": {"v": 3},
        "moves": [{"part": "x-0.part", "segment": "00000000ff", "header": ""}],
    }
    make_log(tmp_path / "whole")
    for number, (change, changed) in enumerate(islice(each_change(ledger), 0, None, STEP)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        (path / "ledger").write_bytes(seal(changed))

        assert contents(path) == sorted([*OWN, b"more"]), change
