"""The tutorial, followed word for word: its programs are saved, its commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREBAY = f'#!/bin/sh\nexec "{sys.executable}" -m forebay "$@"\n'
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'


def matches(expected: str, found: str) -> bool:
    """Compares text in which `…` stands for anything within a line."""
    pattern = ".*".join(re.escape(part.rstrip(" ")) for part in expected.split("…"))
    return re.fullmatch(pattern, found) is not None


def follow(page: str, directory: Path) -> list[str]:
    """Saves every program and runs every command of a page; returns what differs from it."""
    programs = directory / "bin"
    programs.mkdir()
    for name, text in (("forebay", FOREBAY), ("python", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    # Of several processes, each must write its lines whole.
    environment["PYTHONUNBUFFERED"] = ""
    differences = []
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (directory / name).write_text(text)
            continue
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            result = subprocess.run(
                ["bash", "-c", command],
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if not matches(expected, result.stdout):
                differences.append(f"$ {command}\n{result.stdout}")
    return differences


@pytest.mark.usefixtures("servers")
def test_the_tutorial_can_be_followed_word_for_word(tmp_path: Path) -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")

    assert follow(page, tmp_path) == []


def test_a_tutorial_that_is_wrong_is_found_out(tmp_path: Path) -> None:
    program = "```python\n# one.py\nprint(1)\n```\n"
    page = f"{program}\n```console\n$ python one.py\n2\n$ echo a b\na …\n```\n"

    assert follow(page, tmp_path) == ["$ python one.py\n1\n"]
