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
from tests.conformance.kinds import KINDS
from tests.queues.helpers import numbered, write_part
from tests.support.campaigns import FULL
from tests.support.fuzz import each_change, seal

ADOPTING = ["log", "fifo", "deadline"]
OWN = numbered(3)
BATCH = numbered(5, first=100)
PARTS = {"a-0.part": BATCH[:2], "a-1.part": BATCH[2:]}
# Everyday every third change, which still meets each place of a document and each odd value.
STEP = 1 if FULL else 3
# A deadline that was in 1970: the items are due, before those of the queue.
DUE = (1_000).to_bytes(8, "big")


def make_queue(path: Path, kind: str) -> None:
    case = KINDS[kind]
    with case.queue(path, background=False, **case.small) as queue:
        case.put_many(queue, OWN)


def hand_in(path: Path, kind: str, values: list[bytes] = BATCH) -> dict[str, Any]:
    """Leaves two parts; returns the manifest that would publish them."""
    prefix = DUE if kind == "deadline" else b""
    rows = [prefix + value for value in values]
    parts = [write_part(path, "a-0.part", rows[:2]), write_part(path, "a-1.part", rows[2:])]
    named = [{"name": part.name, "count": part.count, "size": part.size} for part in parts]
    return {"writer": "w", "batch": 1, "parts": named, "kind": kind}


def names_in(path: Path) -> list[str]:
    return sorted(os.listdir(path)) if path.exists() else []


def contents(path: Path, kind: str) -> list[bytes]:
    """Opens the queue, which adopts, puts one more, and returns what it then holds."""
    case = KINDS[kind]
    with case.queue(path, background=False, **case.small) as queue:
        case.put(queue, b"more")
        assert queue.adopt() == 0
    found: list[bytes] = []
    with case.queue(path, background=False, **case.small) as queue:
        while True:
            try:
                return sorted(found + case.drain(queue))
            except forebay.Damaged:
                # Told once, and gone on from.
                continue


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADOPTING)
def test_a_manifest_that_is_wrong_in_one_place_costs_its_batch_at_most(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    make_queue(tmp_path / "whole", kind)
    manifest = hand_in(tmp_path / "whole", kind)
    refused = taken = 0
    for number, (change, changed) in enumerate(islice(each_change(manifest), 0, None, STEP)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        (path / "inbox" / "m.ready").write_bytes(seal(changed))

        found = contents(path, kind)

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


@pytest.mark.parametrize("kind", ADOPTING)
@pytest.mark.parametrize("made_for", ["log", "fifo", "deadline", "events"])
def test_a_batch_for_another_kind_of_queue_is_refused(
    tmp_path: Path, kind: str, made_for: str
) -> None:
    make_queue(tmp_path / "q", kind)
    manifest = hand_in(tmp_path / "q", kind) | {"kind": made_for}
    (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))

    found = contents(tmp_path / "q", kind)

    expected = [*OWN, *BATCH, b"more"] if kind == made_for else [*OWN, b"more"]
    assert found == sorted(expected)


@pytest.mark.parametrize(("kind", "taken"), [("log", True), ("fifo", True), ("deadline", False)])
def test_a_batch_that_names_no_kind_is_taken_where_any_bytes_are_a_record(
    tmp_path: Path, kind: str, taken: bool
) -> None:
    make_queue(tmp_path / "q", kind)
    manifest = hand_in(tmp_path / "q", kind)
    del manifest["kind"]
    (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))

    found = contents(tmp_path / "q", kind)

    assert found == sorted([*OWN, *(BATCH if taken else []), b"more"])
    refused = [] if taken else ["a-0.part", "a-1.part", "m.ready"]
    assert names_in(tmp_path / "q" / "quarantine") == refused


def test_records_without_a_deadline_do_not_get_into_a_deadline_queue(tmp_path: Path) -> None:
    make_queue(tmp_path / "q", "deadline")
    part = write_part(tmp_path / "q", "a-0.part", [DUE + b"good", b"short"])
    named = [{"name": part.name, "count": part.count, "size": part.size}]
    manifest = {"writer": "w", "batch": 1, "parts": named, "kind": "deadline"}
    (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))

    assert contents(tmp_path / "q", "deadline") == sorted([*OWN, b"more"])
    assert names_in(tmp_path / "q" / "quarantine") == ["a-0.part", "m.ready"]


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
@pytest.mark.parametrize("kind", ADOPTING)
@pytest.mark.parametrize("name", ["inbox/m.ready", "inbox/a-0.part", "ledger", "inbox"])
def test_whatever_stands_in_the_inbox_keeps_no_queue_from_opening(
    tmp_path: Path, kind: str, leave: Any, name: str
) -> None:
    make_queue(tmp_path / "q", kind)
    if name != "inbox":
        manifest = hand_in(tmp_path / "q", kind)
        (tmp_path / "q" / "inbox" / "m.ready").write_bytes(seal(manifest))
        (tmp_path / "q" / name).unlink(missing_ok=True)
    leave(tmp_path / "q" / name)

    found = contents(tmp_path / "q", kind)

    taken = [*OWN, *BATCH, b"more"] if name == "ledger" else [*OWN, b"more"]
    assert found == sorted(taken)
    assert Path(name).name in names_in(tmp_path / "q" / "quarantine") or leave is leave_folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADOPTING)
def test_a_ledger_that_is_wrong_in_one_place_keeps_no_queue_from_opening(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    ledger = {
        "adopted": {"v": 3},
        "moves": [{"part": "x-0.part", "segment": "00000000ff", "header": ""}],
        "end": [7, 8],
    }
    make_queue(tmp_path / "whole", kind)
    for number, (change, changed) in enumerate(islice(each_change(ledger), 0, None, STEP)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        (path / "ledger").write_bytes(seal(changed))

        assert contents(path, kind) == sorted([*OWN, b"more"]), change
