"""Fifos are refused by the ingest, before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines import plan
from forebay.queues.fifo.queue import Fifo
from tests.pipelines.helpers import SCHEMA, append, event


@pytest.mark.parametrize("source", ["q/fifo", "q/*"])
def test_a_fifo_among_the_queues_is_refused_with_what_to_do_instead(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "q").mkdir()
    append(tmp_path / "q" / "log", [event(0)])
    Fifo(tmp_path / "q" / "fifo").close()

    with pytest.raises(InvalidOption, match=r"is a fifo, .* append them to a Log"):
        plan(source=str(tmp_path / source), out=tmp_path / "out", schema=SCHEMA)

    assert not (tmp_path / "out").exists()
