"""What type checkers say of a user's program: options and verbs have names and types."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sources import ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio
from datetime import timedelta

import forebay
import forebay.aio
import forebay.pipelines

log = forebay.Log("q", sync="os", segment_bytes=1 << 20, sync_interval_seconds=timedelta(seconds=1))
offset: int = log.append(b"x")
for record in log.consumer("c").read(5, timeout=1.5):
    value: bytes = record.value
fifo = forebay.Fifo("f", max_entries=5)
with fifo.take(timeout=5) as entry:
    entry_id: int = entry.id
later = forebay.DeadlineQueue("d", lease_seconds=5)
item = later.dequeue()
if item is not None:
    later.release(item)
events = forebay.BeatsQueue("b", retry_seconds=1.5)
batch: forebay.EventBatch = events.read(5)

known: forebay.Fifo = forebay.open("f", kind="fifo", ttl_seconds=5)
name: forebay.KindName = "fifo"
unknown: forebay.AnyQueue = forebay.open("f", kind=name, sync="os", when_full="reject")
either: forebay.Log | forebay.Fifo | forebay.DeadlineQueue | forebay.BeatsQueue = unknown
other: forebay.AnyReader = forebay.read("f")
minute: forebay.Duration = timedelta(minutes=1)
defined: forebay.Definition = forebay.Root("r").definition("mail")
fifo.push(b"x", ttl_seconds=minute, timeout=minute)
reader: forebay.LogReader = forebay.read("q", kind="log", salvage=True)
report: forebay.Report = forebay.check("q")
settings = forebay.pipelines.read_settings("ingest.toml")
out: str = str(settings["out"])


async def main() -> None:
    async with forebay.aio.Fifo("f", sync="os", ttl_seconds=5) as fifo:
        entry_id: int = await fifo.push(b"x", ttl_seconds=5, timeout=1)
        async with fifo.take(timeout=5) as entry:
            value: bytes = entry.value
        async for entry in fifo:
            value = entry.value
        size: int = len(fifo)
    async with await forebay.aio.open("q", kind="log", segment_bytes=1 << 20) as log:
        consumer: forebay.aio.Consumer = await log.consumer("c", start="latest")
        async for record in consumer:
            value = record.value
        await consumer.commit()


asyncio.run(main())
"""
# Each line is a mistake, and the word that the message must have.
MISTAKES = {
    'forebay.Log("q", snyc="os")': "snyc",
    'forebay.Log("q", sync="sometimes")': "sync",
    'forebay.Fifo("f", max_entry=5)': "max_entry",
    'forebay.DeadlineQueue("d", lease_seconds="5")': "lease_seconds",
    'forebay.BeatsQueue("b", version=2.5)': "version",
    'forebay.open("f", kind="fifo", ttl_second=5)': "open",
    'forebay.open("f", kind="pipe")': "open",
    'forebay.open("f", kind="log").push(b"x")': "push",
    'forebay.open("f").push(b"x")': "push",
    'forebay.read("f", salvag=True)': "read",
    'log.append("text")': "bytes",
    "fifo.push(b'x', ttl=5)": "ttl",
    'forebay.aio.Fifo("x", ttl_second=1)': "ttl_second",
    'forebay.aio.Log("x", segment_bytes="1")': "segment_bytes",
    'forebay.aio.Fifo("x").push("text")': "bytes",
    'forebay.aio.Fifo("x").push(b"x", tll_seconds=5)': "tll_seconds",
    'forebay.aio.Fifo("x").take(time=5)': "time",
    'number: str = forebay.aio.Fifo("x").push(b"x")': "str",
    'forebay.aio.open("x", kind="log", ttl_seconds=1)': "open",
    'forebay.open("f", when_full="rejct")': "open",
    'forebay.pipelines.ingest(source="q", out="o", decod="raw")': "decod",
    'forebay.pipelines.ingest(source="q", out="o", decode="rawe")': "decode",
    'forebay.pipelines.plan(source="q", out="o", decod="raw")': "decod",
}


def mypy(folder: Path, program: str) -> dict[int, str]:
    """Returns what mypy says of each line of a program."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder), str(file)]
    # Outside the checkout its own settings do not count.
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    said: dict[int, str] = {}
    for line in result.stdout.splitlines():
        name, _, rest = line.partition(":")
        number, _, text = rest.partition(":")
        if name == file.name:
            said[int(number)] = said.get(int(number), "") + text
        else:
            assert line.startswith(("Success", "Found")), result.stdout + result.stderr
    return said


def pyright(folder: Path, program: str) -> dict[int, str]:
    """Returns what pyright says of each line of a program.

    Its package holds the program itself; its command would look for a Node of its own.
    """
    node, package = shutil.which("node"), importlib.util.find_spec("pyright")
    if node is None or package is None or package.origin is None:
        pytest.skip("pyright needs its package, and Node, which is not installed here")
    file = folder / "program.py"
    file.write_text(program)
    settings = {
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "reportUnusedVariable": False,
        "typeCheckingMode": "strict",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    main = Path(package.origin).parent / "dist" / "index.js"
    result = subprocess.run(
        [node, str(main), "--outputjson", "--project", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    said: dict[int, str] = {}
    for found in json.loads(result.stdout)["generalDiagnostics"]:
        line = found["range"]["start"]["line"] + 1
        said[line] = said.get(line, "") + found["message"]
    return said


@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: str(checker.__name__))
def test_a_right_program_passes_and_each_mistake_is_named(
    tmp_path: Path, checker: Callable[[Path, str], dict[int, str]]
) -> None:
    first = PROGRAM.count("\n") + 1

    right = checker(tmp_path, PROGRAM)
    wrong = checker(tmp_path, PROGRAM + "\n".join(MISTAKES))

    assert right == {}
    assert set(wrong) == set(range(first, first + len(MISTAKES)))
    for number, (mistake, word) in enumerate(MISTAKES.items(), start=first):
        assert word in wrong[number], (mistake, wrong[number])
