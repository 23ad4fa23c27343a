"""`forebay demo`: kills a writer, flips a bit, and compares what is left, record by record.

The offset of a record determines its bytes, so every record that is read back can be checked. The
writer that is killed is a separate process: this module, run as a program.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

import forebay
from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.output import plural, write_json
from forebay.queues.log.scanner import RecordBatch

RECORD_BYTES = 278
_RECORDS_MIN = 5_000
_BATCHES = 500
_SEGMENT_BYTES = 4_000_000
# So long that only a few fit into a pipe: the writer cannot finish before it is killed.
_ACKNOWLEDGEMENT_BYTES = 512


@click.command("demo")
@click.option(
    "--records",
    type=click.IntRange(min=_RECORDS_MIN),
    default=1_000_000,
    show_default=True,
    help=f"How many records of {RECORD_BYTES} bytes to write.",
)
@click.option(
    "--path", metavar="DIR", help="A new directory to use and keep.  [default: temporary]"
)
@json_option
def command(records: int, path: str | None, as_json: bool) -> int:
    """Write a million records, kill the writer halfway with SIGKILL, and recover.

    Checks that every acknowledged record is there, then flips a bit and reads past it. Each claim
    is checked on the bytes that are read back; the code is 1 if one does not hold. With --json each
    claim is an object, and a summary comes last.
    """
    if path is not None and os.path.exists(path):
        raise exits.Failure(f"{path} exists; give a new directory", exits.CANNOT_CREATE)
    directory = os.path.abspath(path or tempfile.mkdtemp(prefix="forebay-demo-"))
    demo = Demo(os.path.join(directory, "log"), records, as_json)
    demo.say(f"forebay {forebay.__version__}: {plural(records, 'record')} in {directory}")
    try:
        demo.run()
    finally:
        if path is None and not demo.failed:
            shutil.rmtree(directory)
    return exits.ERROR if demo.failed else exits.OK


class Demo:
    """One run of the demo, on a log that does not exist yet."""

    def __init__(self, path: str, count: int, as_json: bool) -> None:
        self.failed = 0
        self._claims = 0
        self._path = path
        self._count = count
        self._as_json = as_json

    def say(self, text: str) -> None:
        """Prints a line unless the output is JSON."""
        if not self._as_json:
            print(text, flush=True)

    def run(self) -> None:
        """Runs the three scenes and prints the verdict."""
        started = time.monotonic()
        self.say('1. a writer process appends under sync="os" and is killed halfway')
        self._kill_a_writer()
        self.say("2. another writer continues where the killed one stopped")
        for _ in append(self._path, self._count):
            pass
        right, bad = self._read_back(self._count)
        text = f"{right:,} of {self._count:,} records read back and compared byte by byte"
        holds = right == self._count and not bad
        self._claim(text, holds, {"right": right, "bad": len(bad)})
        self._flip_a_bit()
        seconds = round(time.monotonic() - started, 2)
        if self._as_json:
            write_json({"claims": self._claims, "failed": self.failed, "seconds": seconds})
        self.say(f"{self._claims - self.failed} of {self._claims} claims hold; {seconds} s")

    def _claim(self, text: str, holds: bool, facts: dict[str, object]) -> None:
        self._claims += 1
        self.failed += not holds
        self.say(f"   {'ok    ' if holds else 'FAILED'} {text}")
        if self._as_json:
            write_json({"claim": text, "holds": holds, **facts})

    def _kill_a_writer(self) -> None:
        package = os.path.dirname(os.path.dirname(forebay.__file__))
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        with subprocess.Popen(
            [sys.executable, "-m", "forebay.cli.demo", self._path, str(self._count)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        ) as writer:
            assert writer.stdout is not None
            acknowledged = 0
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged >= self._count // 2:
                    writer.kill()
        if writer.returncode != -signal.SIGKILL:
            raise exits.Failure(f"the writer exited on its own, with code {writer.returncode}")
        with forebay.Log(self._path) as log:
            end = log.end
        right, bad = self._read_back(end)
        self._claim(
            f"killed after {acknowledged:,} acknowledged records; {right:,} are there and correct, "
            f"{len(bad)} are missing or wrong",
            acknowledged <= end == right and not bad,
            {"acknowledged": acknowledged, "right": right, "bad": len(bad)},
        )

    def _flip_a_bit(self) -> None:
        victim = random.randrange(self._count // 2)
        segments = sorted(Path(self._path).glob("0*"))
        file = next(one for one in segments if record(victim) in one.read_bytes())
        data = bytearray(file.read_bytes())
        position = data.index(record(victim)) + random.randrange(RECORD_BYTES)
        self.say(f"3. one bit of record {victim:,} is flipped: {file.name}, byte {position:,}")
        data[position] ^= 1
        file.write_bytes(data)
        try:
            self._read_back(self._count)
            refused = False
        except forebay.Damaged:
            refused = True
        right, bad = self._read_back(self._count, salvage=True)
        self._claim(
            f"a plain read {'stops there' if refused else 'DID NOT NOTICE'}; salvage reads "
            f"{right:,} records correctly and loses {len(bad)}",
            refused and bad == [victim] and right == self._count - 1,
            {"victim": victim, "refused": refused, "right": right, "bad": len(bad)},
        )

    def _read_back(self, end: int, *, salvage: bool = False) -> tuple[int, list[int]]:
        with forebay.read(self._path, salvage=salvage, kind="log") as reader:
            return compare(reader.batches(), end)


def record(offset: int) -> bytes:
    """Returns the record at an offset."""
    return (b"%012d " % offset * 22)[:RECORD_BYTES]


def append(path: str, count: int) -> Iterator[int]:
    """Appends records up to `count`, in batches and one by one; yields the acknowledged count."""
    with forebay.Log(path, sync="os", segment_bytes=_SEGMENT_BYTES) as log:
        while (end := log.end) < count:
            stop = min(end + count // _BATCHES, count)
            log.append_many([record(offset) for offset in range(end, stop)])
            yield log.end
            if log.end < count:
                log.append(record(log.end))
                yield log.end


def compare(batches: Iterable[RecordBatch], end: int) -> tuple[int, list[int]]:
    """Counts the correct records; lists offsets below `end` that are missing, wrong or repeated."""
    right, expected = 0, 0
    bad: list[int] = []
    for batch in batches:
        bad += range(expected, batch.offset)
        for offset, value in enumerate(batch.values, batch.offset):
            if offset >= expected and value == record(offset):
                right += 1
            else:
                bad.append(offset)
        expected = max(expected, batch.offset + len(batch.values))
    return right, [*bad, *range(expected, end)]


if __name__ == "__main__":
    # Ctrl-C goes to the whole process group; when its parent is gone the writer stops on its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        for acknowledged in append(sys.argv[1], int(sys.argv[2])):
            os.write(1, f"{acknowledged:{_ACKNOWLEDGEMENT_BYTES - 1}d}\n".encode())
