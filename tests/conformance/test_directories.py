"""Each kind refuses the directory of each other kind, and changes nothing in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import NotAQueue
from tests.kinds import KINDS
from tests.queues.helpers import snapshot


def write_file(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"from an earlier version")


def make(kind: str, path: Path) -> None:
    if kind == "root":
        with forebay.Root(path) as root:
            root.define("jobs", "deadline")
            root.queue("jobs", "deadline").enqueue(b"a")
        return
    with KINDS[kind].queue(path) as queue:
        KINDS[kind].put(queue, b"a")


OPENERS: dict[str, Callable[..., Any]] = {
    **{name: kind.queue for name, kind in KINDS.items()},
    "root": forebay.Root,
}
PAIRS = [(made, opened) for made in OPENERS for opened in OPENERS if made != opened]


@pytest.mark.parametrize(("made", "opened"), PAIRS)
@pytest.mark.parametrize("options", [{}, {"sync": "os"}])
def test_a_kind_refuses_the_directory_of_another(
    tmp_path: Path, made: str, opened: str, options: dict[str, str]
) -> None:
    make(made, tmp_path / "q")
    before = snapshot(tmp_path / "q")

    with pytest.raises(NotAQueue):
        OPENERS[opened](tmp_path / "q", **({} if opened == "root" else options))

    assert snapshot(tmp_path / "q") == before


@pytest.mark.parametrize("kind", ["fifo", "deadline"])
def test_batches_that_an_earlier_version_left_in_the_inbox_are_told_and_kept(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(kind, tmp_path / "q")
    for name in ("a.ready", "a-0.part"):
        write_file(tmp_path / "q" / "inbox" / name)

    with KINDS[kind].queue(tmp_path / "q") as queue:
        found = KINDS[kind].drain(queue)

    assert found == [b"a"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{tmp_path}/q/inbox: 1 batches wait there" in record.getMessage()
    assert sorted(os.listdir(tmp_path / "q" / "inbox")) == ["a-0.part", "a.ready"]


@pytest.mark.parametrize("kind", ["fifo", "deadline"])
def test_an_empty_inbox_is_not_worth_a_word(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(kind, tmp_path / "q")
    (tmp_path / "q" / "inbox").mkdir()

    KINDS[kind].queue(tmp_path / "q").close()

    assert caplog.records == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_with_the_name_of_a_temporary_file_is_kept_aside(
    tmp_path: Path, kind: str
) -> None:
    make(kind, tmp_path / "q")
    (tmp_path / "q" / "losses.new").mkdir()

    with KINDS[kind].queue(tmp_path / "q") as queue:
        KINDS[kind].put(queue, b"b")

    assert (tmp_path / "q" / "quarantine" / "losses.new").is_dir()
    assert not (tmp_path / "q" / "losses.new").exists()
