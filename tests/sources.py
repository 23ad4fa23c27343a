"""The Python files of the project, as the tests of architecture and house style read them."""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("src", "tests", "tools", "benchmarks", "examples")


def python_path() -> str:
    """Returns where other processes find the package, the tests, and what this one was told."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [inherited])])


@dataclass(frozen=True)
class Source:
    """A Python file: its path below the root, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree: many rules look at each."""
        return list(ast.walk(self.tree))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """The comments, each with its line."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(it.start[0], it.string) for it in tokens if it.type == tokenize.COMMENT]


def python_files(*directories: str) -> Iterator[Source]:
    """Yields the files of the directories, by default of all that hold code."""
    for directory in directories or DIRECTORIES:
        yield from _files_of(directory)


@cache
def _files_of(directory: str) -> list[Source]:
    """Returns the files of a directory; each is read and parsed once."""
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / directory).rglob("*.py"))
    ]
