"""All modules with a stub are compiled, or none is."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.kernels import MODULES, SHARED
from tests.sources import ROOT

REPORT = """
import importlib, forebay
from forebay.kernels import MODULES
files = [importlib.import_module(name).__file__ for name in MODULES]
print(forebay.compiled, *sorted({file.rpartition(".")[2] for file in files}))
"""


def file_of(name: str) -> str:
    file = importlib.import_module(name).__file__
    assert file is not None
    return file


def test_what_has_a_stub_is_what_is_compiled() -> None:
    stubs = sorted((ROOT / "src").rglob("*.pyi"))

    names = {".".join(stub.relative_to(ROOT / "src").with_suffix("").parts) for stub in stubs}

    assert names == set(MODULES)


def test_all_are_loaded_the_same_way() -> None:
    assert {file_of(name).endswith(".so") for name in MODULES} == {forebay.compiled}


@pytest.mark.slow
@pytest.mark.skipif(not forebay.compiled, reason="nothing is compiled here")
@pytest.mark.parametrize("missing", [MODULES[0], MODULES[-1], SHARED])
def test_if_one_is_missing_all_are_plain(tmp_path: Path, missing: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    *folders, stem = missing.split(".")
    (compiled,) = Path(tmp_path, "src", *folders).glob(f"{stem}.*.so")
    compiled.unlink()

    result = subprocess.run(
        [sys.executable, "-c", REPORT],
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "False py\n"


@pytest.mark.slow
def test_a_module_that_does_not_compile_is_named_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for stub in tmp_path.rglob("*.pyi"):
        if stub.stem != "beats":
            stub.unlink()
    with open(tmp_path / "src/forebay/kernels/beats.py", "a", encoding="utf-8") as source:
        source.write(
            "\n\n@cython.cfunc\ndef wrong() -> cython.no_such_type:\n    return missing()\n"
        )

    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: nothing")]
    assert len(warnings) == 1
    assert "beats" in warnings[0]
    assert not list(tmp_path.rglob("*.so"))
