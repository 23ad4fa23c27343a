"""`forebay bench`: measures this disk, and Forebay beside the bare system calls on it.

Each number of Forebay stands beside a floor: the cheapest calls that put the same bytes there.
Both are measured in turn in the same run, several rounds, and the medians are compared; a busy
machine slows both.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from forebay import Log, LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.output import Bar, plural, talk, write_json, write_table

_ROUNDS = 7
_CHUNK_BYTES = 1 << 20
_BATCH_RECORDS = 1_000
_DURABLE_RECORDS_MAX = 200
_PREALLOCATED_BYTES = 8 << 20

Measure = Callable[[str], float]


@click.command("bench")
@click.option(
    "--records",
    type=click.IntRange(min=100),
    default=300_000,
    show_default=True,
    help=f"Records a round; durable appends take at most {_DURABLE_RECORDS_MAX}.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1_000_000),
    default=278,
    show_default=True,
    help="Bytes of a record.",
)
@click.option("--path", metavar="DIR", help="On which disk: a directory.  [default: this one]")
@json_option
def command(records: int, size: int, path: str | None, as_json: bool) -> int:
    """Measure appending and reading on this disk, beside the bare system calls.

    The ratio says how many times the floor's time Forebay takes; below 1 it is faster. Writes into
    a directory of its own and removes it.
    """
    parent = path or os.getcwd()
    try:
        scratch = tempfile.mkdtemp(prefix="forebay-bench-", dir=parent)
    except OSError as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None
    talk(f"{plural(records, 'record')} of {size} bytes a round, {_ROUNDS} rounds, in {parent}")
    try:
        rows = _run(scratch, _Work(records, size))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    columns = ("what", "us a record", "records/s", "floor", "floor us", "ratio")
    if as_json:
        for what, ours, rate, floor, floor_us, ratio in rows:
            write_json(
                {
                    "what": what,
                    "microseconds": ours,
                    "records_per_second": rate,
                    "floor": floor,
                    "floor_microseconds": floor_us,
                    "ratio": ratio,
                }
            )
    else:
        write_table(columns, rows)
    return exits.OK


def _run(scratch: str, work: _Work) -> list[tuple[str, float, int, str, float, float]]:
    """Measures each pair in each round; gives the rows of the table."""
    pairs = work.pairs()
    times: dict[str, list[float]] = {}
    with Bar("bench", _ROUNDS * len(pairs)) as bar:
        for number in range(_ROUNDS):
            for step, (what, ours, _, bare) in enumerate(pairs):
                for name, measure in ((what, ours), (f"floor of {what}", bare)):
                    directory = os.path.join(scratch, "round")
                    os.mkdir(directory)
                    times.setdefault(name, []).append(measure(directory))
                    shutil.rmtree(directory)
                bar.update(number * len(pairs) + step + 1, what)
    rows = []
    for what, _, floor, _ in pairs:
        ours_us = statistics.median(times[what]) * 1e6
        floor_us = statistics.median(times[f"floor of {what}"]) * 1e6
        rate = round(1e6 / ours_us)
        ratio = round(ours_us / floor_us, 2)
        rows.append((what, round(ours_us, 3), rate, floor, round(floor_us, 3), ratio))
    return rows


class _Work:
    """The measurements; each takes an empty directory and gives seconds a record."""

    def __init__(self, records: int, size: int) -> None:
        self._count = records
        self._durable_count = min(records, _DURABLE_RECORDS_MAX)
        self._value = os.urandom(size)
        self._batch = [self._value] * min(_BATCH_RECORDS, records)
        self._total = records * size

    def pairs(self) -> list[tuple[str, Measure, str, Measure]]:
        """Lists what is measured, and beside what."""
        return [
            ("append, os", self._append, "os.write a record", self._write_records),
            ("append_many, os", self._append_many, "os.write 1 MiB", self._write_chunks),
            ("scan", self._scan, "os.pread 1 MiB", self._read_chunks),
            (
                "append, durable",
                self._append_durably,
                "pwrite + fdatasync",
                self._write_durably,
            ),
        ]

    def _append(self, directory: str) -> float:
        with Log(f"{directory}/log", sync="os") as log:
            append, value = log.append, self._value
            append(value)
            with _timed() as timer:
                for _ in range(self._count):
                    append(value)
        return timer.seconds / self._count

    def _append_many(self, directory: str) -> float:
        with Log(f"{directory}/log", sync="os") as log:
            seconds = self._fill(log)
        return seconds / self._count

    def _scan(self, directory: str) -> float:
        path = f"{directory}/log"
        with Log(path, sync="os") as log:
            self._fill(log)
        with LogReader(path) as reader, _timed() as timer:
            read = sum(len(batch.values) for batch in reader.batches())
        return timer.seconds / read

    def _append_durably(self, directory: str) -> float:
        with Log(f"{directory}/log") as log:
            log.append(self._value)
            with _timed() as timer:
                for _ in range(self._durable_count):
                    log.append(self._value)
        return timer.seconds / self._durable_count

    def _fill(self, log: Log) -> float:
        log.append(self._value)
        with _timed() as timer:
            left = self._count
            while left > 0:
                log.append_many(self._batch[:left])
                left -= len(self._batch)
        return timer.seconds

    def _write_records(self, directory: str) -> float:
        with _bare_file(directory) as descriptor, _timed() as timer:
            for _ in range(self._count):
                os.write(descriptor, self._value)
        return timer.seconds / self._count

    def _write_chunks(self, directory: str) -> float:
        with _bare_file(directory) as descriptor:
            seconds = self._fill_bare(descriptor)
        return seconds / self._count

    def _read_chunks(self, directory: str) -> float:
        with _bare_file(directory) as descriptor:
            self._fill_bare(descriptor)
            with _timed() as timer:
                position = 0
                while data := os.pread(descriptor, _CHUNK_BYTES, position):
                    position += len(data)
        return timer.seconds / self._count

    def _write_durably(self, directory: str) -> float:
        with _bare_file(directory) as descriptor:
            os.posix_fallocate(descriptor, 0, _PREALLOCATED_BYTES)
            os.fsync(descriptor)
            with _timed() as timer:
                for number in range(self._durable_count):
                    os.pwrite(descriptor, self._value, number * len(self._value))
                    os.fdatasync(descriptor)
        return timer.seconds / self._durable_count

    def _fill_bare(self, descriptor: int) -> float:
        chunk = os.urandom(_CHUNK_BYTES)
        with _timed() as timer:
            left = self._total
            while left > 0:
                left -= os.write(descriptor, chunk[:left] if left < len(chunk) else chunk)
        return timer.seconds


class _Timer:
    seconds = 0.0


@contextmanager
def _timed() -> Iterator[_Timer]:
    timer = _Timer()
    started = time.perf_counter()
    yield timer
    timer.seconds = time.perf_counter() - started


@contextmanager
def _bare_file(directory: str) -> Iterator[int]:
    descriptor = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
