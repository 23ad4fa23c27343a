"""The programs in the how-to pages run as they stand there, in the order of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/how-to/*.md"))
# What is on this page is for a reader who has a session at hand.
OF_SPARK = "docs/how-to/from-kafka.md"
WITH_PROGRAMS = [page for page in PAGES if page != OF_SPARK and blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_each_program_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    for program in blocks(page, "python"):
        exec(compile(program, page, "exec"), {})

    assert (tmp_path / "spool").is_dir()


def test_the_pages_are_listed() -> None:
    index = (ROOT / "docs/how-to/README.md").read_text()

    names = [Path(page).name for page in PAGES if not page.endswith("README.md")]
    assert [name for name in names if f"]({name})" not in index] == []
    assert WITH_PROGRAMS
