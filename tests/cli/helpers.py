"""What the tests of the command line share: runs of the program, and logs to run it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from forebay import Log, LogReader
from forebay.cli.main import main
from tests.sources import ROOT

SEGMENT_BYTES = 1_000
_TELL_LOADED = """
import sys
from forebay.cli.main import main

def tell_loaded():
    loaded = {"pandas", "py4j", "pyarrow", "pyspark", "rich"} & set(sys.modules)
    print(f"loaded: {sorted(loaded)}", flush=True)

"""
NOTHING_LOADED = b"loaded: []\n"


def run(*arguments: object, stdin: bytes = b"") -> Result:
    """Runs the program in this process; its output is piped."""
    return CliRunner().invoke(main, [str(item) for item in arguments], stdin)


def start(*arguments: object, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Starts the program as a process of its own."""
    return _start(["-m", "forebay"], arguments, stdin)


def start_held(
    program: str, *arguments: object, stdin: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Starts the program as a process of its own, after `program` has changed some of it.

    `tell_loaded()` prints which of the libraries that take long to load are there.
    """
    return _start(["-c", _TELL_LOADED + program + "\nmain()"], arguments, stdin)


def _start(
    command: list[str], arguments: tuple[object, ...], stdin: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *command, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def json_lines(result: Result) -> list[Any]:
    # Not by `splitlines`: text may hold other ends of lines.
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


def make_log(path: Path, values: list[bytes], **options: Any) -> Path:
    """Makes a closed log in small segments."""
    with Log(path, **{"segment_bytes": SEGMENT_BYTES, **options}) as log:
        log.append_many(values)
    return path


def numbered(count: int) -> list[bytes]:
    return [b"record %d" % number for number in range(count)]


def segments_of(path: Path) -> list[str]:
    with LogReader(path) as reader:
        return [reader.segments.names[base] for base in reader.segments.bases]


def values_of(path: Path) -> list[bytes]:
    with LogReader(path) as reader:
        return list(reader.values())


def flip(file: Path, position: int) -> None:
    """Flips all bits of one byte."""
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(data)


def leave_crashed(path: Path, values: list[bytes], rest: bytes = b"") -> None:
    """Makes a log whose writer was killed, with `rest` behind its last record."""
    program = (
        "import os, sys; from forebay import Log; log = Log(sys.argv[1], sync='os'); "
        "log.append_many([bytes.fromhex(text) for text in sys.argv[2:]]); os._exit(9)"
    )
    texts = [value.hex() for value in values]
    subprocess.run(
        [sys.executable, "-c", program, str(path), *texts], env=environment(), check=False
    )
    if rest:
        end = 34 + sum(12 + len(value) for value in values)
        file = path / segments_of(path)[-1]
        data = bytearray(file.read_bytes())
        data[end : end + len(rest)] = rest
        file.write_bytes(data)
