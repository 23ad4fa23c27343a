"""What the demo does: five scenes on one log, each with its claim."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forebay
from forebay import Damage, Damaged, Log, LogReader
from forebay.cli.demo_records import (
    RECORD_BYTES,
    Comparison,
    Records,
    claim_complete,
    claim_recovered,
    claim_salvaged,
    claim_trimmed,
    compare,
)
from forebay.cli.demo_teller import Teller
from forebay.cli.demo_writer import ACK_BYTES
from forebay.cli.output import Bar, size_text
from forebay.formats.fflg import LAYOUTS, VERSION_DEFAULT, segment_name
from forebay.queues.log.scanner import RecordBatch

_SEGMENT_BYTES = 16_000_000
_SEGMENTS_MIN = 12
# One page: the writer can be at most 128 acknowledgements ahead of who kills it.
_PIPE_BYTES = 4096


class Story:
    """One run of the demo on a log that is not there yet."""

    def __init__(self, path: str, records: int, seed: int, teller: Teller) -> None:
        self._path = path
        self._count = records
        self._seed = seed
        self._records = Records(seed)
        self._random = random.Random(seed)
        self._teller = teller
        self._layout = LAYOUTS[VERSION_DEFAULT]
        frame_bytes = self._layout.frame_bytes + RECORD_BYTES
        # Small demos get small segments, so that there is something to trim.
        self._segment_bytes = min(_SEGMENT_BYTES, records * frame_bytes // _SEGMENTS_MIN)
        self._batch = max(1, records // 2_000)

    def tell(self) -> None:
        """Runs the scenes in order."""
        self._kill_the_writer()
        self._finish()
        self._flip_a_bit()
        self._trim()

    def _kill_the_writer(self) -> None:
        tell = self._teller.line
        kill_at = self._count // 2 + self._random.randrange(self._count // 10)
        tell('1. a writer process appends under sync="os" and is killed in the middle')
        started = time.monotonic()
        acknowledged = self._run_writer(kill_at)
        rate = size_text(acknowledged * RECORD_BYTES / (time.monotonic() - started))
        tell(f"   SIGKILL after {acknowledged:,} acknowledged records ({rate} a second)")
        started = time.monotonic()
        with Log(self._path, segment_bytes=self._segment_bytes) as log:
            seconds = time.monotonic() - started
            end = log.end
            kept = log.info()["quarantined_bytes"]
        tell(f"   reopened in {seconds:.2f} s; bytes of unfinished writes set aside: {kept}")
        self._teller.claim(claim_recovered(acknowledged, end, self._read(end)))

    def _finish(self) -> None:
        tell = self._teller.line
        tell("2. a new writer goes on where the killed one stopped")
        end = self._run_writer(None)
        with LogReader(self._path) as reader:
            names = reader.segments.names.values()
            size = sum(os.path.getsize(os.path.join(self._path, name)) for name in names)
        over = size / end - RECORD_BYTES
        tell(f"   {end:,} records in {len(names)} segments, {over:.1f} bytes over each record")
        self._teller.claim(claim_complete(self._count, self._read(self._count)))

    def _flip_a_bit(self) -> None:
        tell = self._teller.line
        with LogReader(self._path) as reader:
            bases = reader.segments.bases
        number = self._random.randrange(1, len(bases) - 1)
        base = bases[number]
        index = self._random.randrange(bases[number + 1] - base)
        frame_bytes = self._layout.frame_bytes + RECORD_BYTES
        start = self._layout.header_bytes + index * frame_bytes + self._layout.frame_bytes
        position = start + self._random.randrange(RECORD_BYTES)
        file = Path(self._path, segment_name(base))
        tell(f"3. one bit of the sealed segment {file.name} is flipped, at byte {position:,}")
        _flip(file, position)
        try:
            refused = self._is_refused()
            found = self._salvage()
        finally:
            _flip(file, position)
        self._teller.claim(claim_salvaged(self._count, base + index, refused, found))
        tell("   the bit is put back")
        self._teller.claim(claim_complete(self._count, self._read(self._count)))

    def _trim(self) -> None:
        places = {
            "audit": self._count * 35 // 100 + self._random.randrange(self._count // 20),
            "search": self._count * 60 // 100,
            "billing": self._count - 1,
        }
        standing = ", ".join(f"{name} at {offset:,}" for name, offset in places.items())
        self._teller.line(f"4. three consumers: {standing}; then the log is trimmed")
        with Log(self._path, segment_bytes=self._segment_bytes) as log:
            for name, offset in places.items():
                consumer = log.consumer(name)
                consumer.seek(offset)
                consumer.commit()
            before = self._names()
            started = time.monotonic()
            removed_records = log.trim()
            seconds = time.monotonic() - started
            after = self._names()
            right = {
                name: [record.value for record in log.consumer(name).read(1)]
                == self._records.make(offset, 1)
                for name, offset in places.items()
            }
            begin = log.begin
        removed = [name for name in before if name not in after]
        lowest = min(places.values())
        bases = [int(name, 16) for name in before]
        behind = zip(before, bases[1:], strict=False)
        expected = [name for name, following in behind if following <= lowest]
        self._teller.line(f"   {removed_records:,} records went in {seconds:.2f} s")
        stayed = segment_name(begin)
        rest = self._read(self._count, begin)
        self._teller.claim(claim_trimmed(removed, expected, right, stayed, "audit", rest))

    def _names(self) -> list[str]:
        with LogReader(self._path) as reader:
            return [reader.segments.names[base] for base in reader.segments.bases]

    def _read(self, end: int, first: int = 0) -> Comparison:
        """Reads the log back and compares every record."""
        with forebay.read(self._path) as reader, self._bar("compare") as bar:
            items = _watched(reader.scan(first), bar)
            return compare(items, self._records, first, end)

    def _salvage(self) -> Comparison:
        with forebay.read(self._path, salvage=True) as reader, self._bar("salvage") as bar:
            found = compare(_watched(reader.batches(), bar), self._records, 0, self._count)
            found.damage += reader.damage
            return found

    def _is_refused(self) -> bool:
        with forebay.read(self._path) as reader:
            try:
                for _ in reader.batches():
                    pass
            except Damaged:
                return True
        return False

    def _bar(self, label: str) -> Bar:
        return Bar(f"   {label}", self._count, hidden=self._teller.as_json)

    def _run_writer(self, kill_at: int | None) -> int:
        """Starts the writer; kills it at an offset, or lets it finish. Gives what it promised."""
        arguments = [self._count, self._seed, self._batch, self._segment_bytes]
        root = os.path.dirname(os.path.dirname(forebay.__file__))
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with (
            subprocess.Popen(
                [sys.executable, "-m", "forebay.cli.demo_writer", self._path, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            ) as writer,
            self._bar("write") as bar,
        ):
            try:
                promised = _watch(writer, bar, kill_at)
            except BaseException:
                writer.kill()
                raise
        if kill_at is not None and writer.returncode != -9:
            raise WriterFailed(f"the writer ended by itself, with code {writer.returncode}")
        if kill_at is None and writer.returncode != 0:
            raise WriterFailed(f"the writer failed with code {writer.returncode}")
        return promised


def _watched(
    items: Iterator[RecordBatch] | Iterator[RecordBatch | Damage], bar: Bar
) -> Iterator[RecordBatch | Damage]:
    for item in items:
        yield item
        if isinstance(item, RecordBatch):
            bar.update(item.offset + len(item.values))


class WriterFailed(Exception):
    """The writer did not do what it was started for."""


def _watch(writer: subprocess.Popen[bytes], bar: Bar, kill_at: int | None) -> int:
    """Reads what the writer acknowledges, to the end; kills it once it has passed an offset."""
    assert writer.stdout is not None
    fcntl.fcntl(writer.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    started, first, promised = time.monotonic(), None, 0
    unread = b""
    while data := os.read(writer.stdout.fileno(), _PIPE_BYTES):
        unread += data
        whole = len(unread) // ACK_BYTES * ACK_BYTES
        if not whole:
            continue
        promised = int(unread[whole - ACK_BYTES : whole])
        unread = unread[whole:]
        first = promised if first is None else first
        if kill_at is not None and promised >= kill_at:
            writer.send_signal(signal.SIGKILL)
        rate = (promised - first) * RECORD_BYTES / max(time.monotonic() - started, 0.001)
        bar.update(promised, f"{promised:,} records  {size_text(rate)}/s")
    writer.wait()
    return promised


def _flip(file: Path, position: int) -> None:
    """Flips the lowest bit of one byte of a file."""
    with open(file, "r+b", buffering=0) as target:
        (byte,) = os.pread(target.fileno(), 1, position)
        os.pwrite(target.fileno(), bytes([byte ^ 1]), position)
