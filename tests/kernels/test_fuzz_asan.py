"""Scans and the state of queues, compiled with AddressSanitizer: nothing goes past its buffer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import scan_fuzz, state_fuzz
from tests.sources import ROOT
from tests.support.campaigns import seeds

ROUNDS = 1_000
# Reads far past its buffer, by a target that lies there: what the sanitizer must find.
PAST_THE_END = "from forebay.kernels.beats import hop; hop(bytearray(b'\\x10\\0\\0\\0'), 0, 10**6)"
WITHOUT_ZLIB_NG = """
import sys
sys.modules["zlib_ng"] = None
from tests.kernels import {0}
{0}.run(int(sys.argv[1]), int(sys.argv[2]))
"""
FUZZERS = ("scan_fuzz", "state_fuzz")


def test_the_scans_take_harmed_bytes() -> None:
    assert scan_fuzz.run(seed=1, rounds=20) > 0


def test_the_state_of_queues_takes_random_calls() -> None:
    assert state_fuzz.run(seed=1, rounds=20) > 0


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose compiled modules are checked at every access."""
    if os.environ.get("FOREBAY_PURE") == "1":
        pytest.skip("plain Python reads no memory by itself")
    pytest.importorskip("Cython")
    library = find_library()
    folder = tmp_path_factory.mktemp("sanitized")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    flags = "-fsanitize=address -O1"
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, "CC": "gcc", "CFLAGS": flags, "LDFLAGS": "-fsanitize=address"},
        capture_output=True,
        check=True,
    )
    # Python's own allocator would hide where one object ends and the next begins.
    return {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{ROOT}",
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def find_library() -> str:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    command = [gcc, "-print-file-name=libasan.so"]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(name).is_absolute():
        pytest.skip("gcc has no libasan")
    return name


def run(sanitized: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=sanitized, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.full
def test_the_sanitizer_finds_a_read_past_the_end(sanitized: dict[str, str]) -> None:
    result = run(sanitized, "-c", PAST_THE_END)

    assert result.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_nothing_goes_past_its_bytes(sanitized: dict[str, str], fuzzer: str) -> None:
    for seed in seeds("codecs", f"asan-{fuzzer}", tests=len(FUZZERS)):
        numbers = (str(seed), str(ROUNDS))
        fast = run(sanitized, "-m", f"tests.kernels.{fuzzer}", *numbers)
        # Without zlib-ng the sums are taken of copies, which the sanitizer sees being made.
        slow = run(sanitized, "-c", WITHOUT_ZLIB_NG.format(fuzzer), *numbers)

        assert (fast.returncode, fast.stderr) == (0, ""), f"seed {seed}"
        assert (slow.returncode, slow.stderr) == (0, ""), f"seed {seed}, without zlib-ng"
