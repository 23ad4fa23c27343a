"""What a type checker says of a user's program: options have names and types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import forebay

log = forebay.Log("q", sync="os", segment_bytes=1 << 20)
offset: int = log.append(b"x")
fifo = forebay.Fifo("f", max_entries=5)
later = forebay.DeadlineQueue("d", lease_seconds=5)
events = forebay.BeatsQueue("b", retry_seconds=1.5)
"""
MISTAKES = {
    'forebay.Log("q", snyc="os")': 'Unexpected keyword argument "snyc"',
    'forebay.Fifo("f", max_entry=5)': 'Unexpected keyword argument "max_entry"',
    'forebay.DeadlineQueue("d", lease_seconds="5")': 'Argument "lease_seconds"',
    'forebay.BeatsQueue("b", version=2.5)': 'Argument "version"',
}


def mypy(tmp_path: Path, program: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(file)]
    # Outside the checkout its own settings do not count.
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    return result.stdout


def test_a_program_with_right_options_passes_and_each_mistake_is_named(tmp_path: Path) -> None:
    right = mypy(tmp_path, PROGRAM)
    wrong = mypy(tmp_path, PROGRAM + "\n".join(MISTAKES))

    assert "Success" in right, right
    assert [text for text in MISTAKES.values() if text not in wrong] == []
