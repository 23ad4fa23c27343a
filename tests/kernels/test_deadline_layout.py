"""The compiled kernels and the plain ones have the same layout in mind."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.sources import ROOT


@pytest.mark.parametrize("name", ["deadline_columns", "deadline_fields"])
def test_the_numbers_of_the_compiler_are_those_of_the_interpreter(name: str) -> None:
    text = (ROOT / "src" / "forebay" / "kernels" / f"{name}.pxd").read_text()
    compiled = {key: int(number) for key, number in re.findall(r"^    (\w+) = (\d+)$", text, re.M)}
    module = importlib.import_module(f"forebay.kernels.{name}")

    plain = {key: number for key, number in vars(module).items() if key.isupper()}

    assert compiled == plain != {}
