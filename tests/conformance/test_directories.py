"""Each kind refuses the directory of each other kind, and changes nothing in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import NotAQueue
from tests.conformance.kinds import KINDS
from tests.queues.helpers import snapshot


def make(kind: str, path: Path) -> None:
    if kind == "root":
        with forebay.Root(path) as root:
            root.define("jobs", "deadline")
            root.queue("jobs").enqueue(b"a")
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
