"""`python -m benchmarks` runs from end to end with small numbers; no figure is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

pytestmark = pytest.mark.slow


def test_the_tables_are_measured_and_drawn(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ["--records", "2000", "--items", "1000", "--rounds", "1", "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options, "--path", tmp_path, "--page", page],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    logs, timers = json.loads(result.stdout)
    assert len(logs["microseconds"]["Forebay's Log"]) == 4
    assert len(logs["microseconds"]["SQLite WAL, by hand"]) == 4
    assert len(timers["microseconds"]["Forebay's DeadlineQueue"]) == 4
    assert "Forebay&#x27;s Log" in page.read_text()
    # A peer that is not there is named.
    text = " ".join(logs["notes"] + timers["notes"])
    assert ("LMDB, by hand" in logs["microseconds"]) != ("LMDB, by hand is not installed" in text)
