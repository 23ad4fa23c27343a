"""Without the libraries of the extras, everything else works, and an error names the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import NotInstalled
from forebay.extras import optional, require
from tests.sources import ROOT

pytestmark = pytest.mark.slow

EXTRAS = ["cbor2", "cryptography", "lz4", "pyarrow", "pandas", "numpy", "pyspark"]
EXTRAS += ["prometheus_client", "urllib3", "deltalake", "pyiceberg"]

# A base installation: importing any of them fails as if it were not there.
BASE = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None
import forebay
"""

QUEUES = """
import asyncio, forebay.aio

with forebay.Log("log") as log:
    log.append(b"one")
with forebay.Fifo("fifo") as fifo:
    fifo.push(b"one")
with forebay.DeadlineQueue("later") as later:
    later.enqueue(b"one")
    later.merge()
for name in ("log", "fifo", "later"):
    assert not forebay.check(name).damage
    assert [value for value in forebay.read(name).values()] == [b"one"]

async def main():
    async with forebay.aio.Fifo("fifo") as fifo:
        assert await fifo.pop() == b"one"
asyncio.run(main())
"""

COMMANDS = """
from forebay.cli.main import main
sys.argv = ["forebay", *sys.argv[1:]]
main()
"""


def run(directory: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BASE + program, *map(str, arguments)],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_logs_fifos_and_deadline_queues_need_no_extra(tmp_path: Path) -> None:
    result = run(tmp_path, QUEUES)

    assert (result.stderr, result.returncode) == ("", 0)


def test_the_command_line_needs_no_extra_and_doctor_names_them(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n")
    put = run(tmp_path, COMMANDS, "put", "log", "lines")
    listed = run(tmp_path, COMMANDS, "ls", ".")

    assert (put.returncode, listed.returncode) == (0, 0)
    assert "log" in listed.stdout


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            'forebay.BeatsQueue("beats").put({"fields": {}})',
            'cbor2 is needed here: pip install "forebay[beats]"',
        ),
        (
            'forebay.DeadlineQueue("later", compression="lz4")',
            'lz4 is needed here: pip install "forebay[lz4]"',
        ),
        (
            'forebay.Log("log").append(b""); forebay.read("log").__arrow_c_stream__()',
            'pyarrow is needed here: pip install "forebay[arrow]"',
        ),
    ],
)
def test_an_error_names_the_extra(tmp_path: Path, program: str, message: str) -> None:
    result = run(tmp_path, program)

    assert result.stderr.splitlines()[-1] == f"forebay.errors.NotInstalled: {message}"


def test_a_missing_library_imports_and_raises_when_it_is_used() -> None:
    missing = optional("no_such_library.part", "beats")

    with pytest.raises(NotInstalled, match=r'no_such_library is needed here: .*"forebay\[beats\]"'):
        missing.dumps({})
    with pytest.raises(NotInstalled):
        require("no_such_library", "lz4")


def test_a_library_that_is_there_is_the_library() -> None:
    assert optional("json", "beats").loads("[1]") == [1]
