"""What is built from the source: the name of a slow wheel, and a whole source distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from forebay import __version__
from tests.sources import ROOT
from tools import boot

pytestmark = pytest.mark.slow

BUILD = """
import sys
from setuptools import build_meta
print(build_meta.{kind}(sys.argv[1]))
"""


def build(kind: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Builds from a copy of the sources, so that the checkout and its modules stay as they are."""
    source = directory / "source"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "build", "out", ".*")
    shutil.copytree(ROOT, source, ignore=ignored)
    return subprocess.run(
        [sys.executable, "-c", BUILD.format(kind=kind), str(directory)],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler_the_wheel_is_named_for_any_machine(tmp_path: Path) -> None:
    result = build("build_wheel", tmp_path, CC="/bin/false")

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"forebay-{__version__}-py3-none-any.whl"
    assert "warning: nothing is compiled, plain Python runs instead" in result.stderr
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        record = content.read(f"forebay-{__version__}.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: true" in record
    assert {"forebay/kernels/fflg.py", "forebay/py.typed", "forebay/kernels/fflg.pyi"} <= {*names}
    assert not [name for name in names if name.endswith((".so", ".c"))]


def test_a_build_that_must_compile_fails_without_a_compiler(tmp_path: Path) -> None:
    result = build("build_wheel", tmp_path, CC="/bin/false", FOREBAY_COMPILE="1")

    assert result.returncode != 0
    assert not list(tmp_path.glob("*.whl"))


def test_the_source_distribution_is_the_whole_repository(tmp_path: Path) -> None:
    build("build_sdist", tmp_path)

    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        found = {name.partition("/")[2] for name in content.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [name for name in listed if name not in found and not name.startswith(".")] == []
    assert not [name for name in found if name.endswith((".so", ".pyc"))]


def test_the_lock_files_share_no_package_and_name_no_index() -> None:
    first, second = boot.packages_of(boot.LOCK), boot.packages_of(boot.TESTS_LOCK)

    assert not first.keys() & second.keys()
    for lock in (boot.LOCK, boot.TESTS_LOCK, boot.JAVA_LOCK):
        assert "://" not in lock.read_text()
        assert all("--hash=sha256:" in text for text in boot.packages_of(lock).values())


def test_a_package_in_two_versions_keeps_the_lines_of_both(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("# head\na==1 ; python_version < '3'\n    # via b\nb==2\na==2\n")

    assert boot.packages_of(lock) == {
        "a": "a==1 ; python_version < '3'\n    # via b\na==2\n",
        "b": "b==2\n",
    }
