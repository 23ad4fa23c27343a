"""The reference pages are what the docstrings and the help texts say now."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import forebay
from forebay.cli.main import VERBS
from tools import reference

pytestmark = pytest.mark.slow


def test_the_reference_is_current() -> None:
    stale = [path.name for path in reference.outdated()]

    assert not stale, f"run: python -m tools.reference (out of date: {', '.join(stale)})"


def test_a_page_that_is_missing_changed_or_too_many_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(reference.PAGES, tmp_path / "pages")
    monkeypatch.setattr(reference, "PAGES", tmp_path / "pages")
    (tmp_path / "pages" / "Log.md").unlink()
    (tmp_path / "pages" / "Fifo.md").write_text("# Fifo\n")
    (tmp_path / "pages" / "Stack.md").write_text("# Stack\n")

    assert [path.name for path in reference.outdated()] == ["Fifo.md", "Log.md", "Stack.md"]


def test_every_public_name_and_every_verb_has_its_place() -> None:
    pages = reference.pages()
    whole = "\n".join(pages.values())

    # What is not a page or a heading is a type that signatures name.
    types = {"AnyQueue", "AnyReader", "Duration", "KindName"}
    for name in set(forebay.__all__) - types:
        assert f"{name}.md" in pages or f"\n## {name}\n" in whole
    assert all(f"\n## {verb}\n" in pages["cli.md"] for verb in VERBS)
