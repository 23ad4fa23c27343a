"""Repeats the tables of the README and of docs/speed.md: `python -m benchmarks [--spark]`.

Forebay and its peers do the same work in one run, in interleaved rounds; the table has medians. The
peers come with `pip install "forebay[benchmarks]"`; one that is not installed is left out, and
named. The result is printed, and written with plots to a page. Machines are shared and noisy:
compare the rows of one run, never the numbers of two machines.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import forebay  # noqa: E402  (only now the checkout is found)
from benchmarks.subjects import LOGS, TIMERS, Subject, Timer  # noqa: E402

SIZE = 278
BATCH = 1000
DURABLE = 400
PAST_MS = 1_700_000_000_000
SPAN_MS = 24 * 3600 * 1000
BAR_PIXELS = 420
STYLE = """
:root { color-scheme: light dark }
body { font: 15px system-ui; max-width: 60em; margin: 2em auto; padding: 0 1em }
td { padding: .1em .6em }
td:nth-child(2) { text-align: right }
rect { fill: #4a7aa8 }
tr:first-child rect { fill: #d9822b }
"""


@dataclass
class Table:
    """One table: microseconds by subject and measure, in the order of the subjects."""

    title: str
    columns: tuple[str, ...]
    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, subject: str, column: str, microseconds: float) -> None:
        """Adds what one round measured."""
        self.rows.setdefault(subject, {}).setdefault(column, []).append(microseconds)

    def median(self, subject: str, column: str) -> float | None:
        """Returns the median of the rounds; None if the subject cannot do this."""
        values = self.rows.get(subject, {}).get(column)
        return statistics.median(values) if values else None


def main() -> int:
    """Measures, prints and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000, help="of the deadline queue")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", default=".", help="a directory on the disk to be measured")
    parser.add_argument("--page", type=Path, default=Path("out/benchmarks.html"))
    parser.add_argument("--json", action="store_true", help="print one object and no tables")
    parser.add_argument("--spark", action="store_true", help="also the table of Spark; minutes")
    options = parser.parse_args()
    tables = [
        log_table(options.records, options.rounds, options.path),
        timer_table(options.items, options.rounds, options.path),
    ]
    if options.json:
        print(json.dumps([facts_of(table) for table in tables]))
    else:
        for table in tables:
            print("\n".join(markdown(table)), end="\n\n")
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(tables), encoding="utf-8")
    print(f"plots: {options.page}", file=sys.stderr)
    if options.spark:
        program = Path(__file__).with_name("spark.py")
        return subprocess.run([sys.executable, program], check=False).returncode
    return 0


def log_table(records: int, rounds: int, place: str) -> Table:
    """Measures puts and a scan of queues that keep an order."""
    columns = ("one at a time", "batches of 1000", "scan", "durable, one at a time (p50)")
    table = Table(f"{records:,} records of {SIZE} bytes, µs a record", columns)
    values = [number.to_bytes(8, "big") + os.urandom(SIZE - 8) for number in range(BATCH)]
    count = max(1, records // BATCH)
    for kind in interleaved(LOGS, rounds, table):
        measure(kind, place, lambda it: singles(it, values, count, table))
        if kind.batches:
            measure(kind, place, lambda it: batches(it, values, count, table))
        if kind.durable_mode:
            measure(kind, place, lambda it: durables(it, it.put, values, table), durable=True)
    return table


def timer_table(items: int, rounds: int, place: str) -> Table:
    """Measures puts at random deadlines, and taking what is due."""
    columns = ("one at a time", "batches of 1000", "pop", "durable, one at a time (p50)")
    table = Table(f"{items:,} items with random deadlines, µs an item", columns)
    values = [os.urandom(SIZE) for _ in range(BATCH)]
    choice = random.Random(1)
    deadlines = [PAST_MS + choice.randrange(SPAN_MS) for _ in range(max(1, items // BATCH) * BATCH)]
    for kind in interleaved(TIMERS, rounds, table):
        measure(kind, place, lambda it: timed(it, values, deadlines, table))
        if kind.batches:
            measure(kind, place, lambda it: timed_batches(it, values, deadlines, table))
        measure(
            kind,
            place,
            lambda it: durables(it, lambda value: it.put_at(value, PAST_MS), values, table),
            durable=True,
        )
    return table


def interleaved(kinds: tuple[type[Subject], ...], rounds: int, table: Table) -> list[type]:
    """Returns the subjects that are installed, once for each round; the notes name the others."""
    for kind in kinds:
        if not kind.available():
            table.notes.append(f'{kind.name} is not installed: pip install "forebay[benchmarks]"')
        elif kind.note:
            table.notes.append(kind.note)
    return [kind for kind in kinds if kind.available()] * rounds


def measure(
    kind: type[Subject], place: str, work: Callable[..., None], *, durable: bool = False
) -> None:
    """Runs one measurement in an empty directory, with nothing left to be written from before."""
    directory = tempfile.mkdtemp(prefix="benchmark-", dir=place)
    os.sync()
    subject = kind()
    try:
        subject.open(os.path.join(directory, "queue"), durable=durable)
        work(subject)
        subject.close()
    finally:
        shutil.rmtree(directory)


def singles(subject: Subject, values: list[bytes], count: int, table: Table) -> None:
    """Puts one by one, then reads all of them."""
    put = subject.put
    start = time.perf_counter()
    for _ in range(count):
        for value in values:
            put(value)
    seconds = time.perf_counter() - start
    table.add(subject.name, "one at a time", seconds / (count * BATCH) * 1e6)
    start = time.perf_counter()
    found = subject.scan()
    if found is not None:
        assert found == count * BATCH, f"{subject.name} has {found} of {count * BATCH}"
        table.add(subject.name, "scan", (time.perf_counter() - start) / found * 1e6)


def batches(subject: Subject, values: list[bytes], count: int, table: Table) -> None:
    """Puts a thousand at a time."""
    start = time.perf_counter()
    for _ in range(count):
        subject.put_many(values)
    seconds = time.perf_counter() - start
    table.add(subject.name, "batches of 1000", seconds / (count * BATCH) * 1e6)


def durables(
    subject: Subject, put: Callable[[bytes], object], values: list[bytes], table: Table
) -> None:
    """Puts one by one, each durable on return; the median of single calls."""
    times = []
    for value in values[:DURABLE]:
        start = time.perf_counter()
        put(value)
        times.append(time.perf_counter() - start)
    table.add(subject.name, "durable, one at a time (p50)", statistics.median(times) * 1e6)


def timed(subject: Timer, values: list[bytes], deadlines: list[int], table: Table) -> None:
    """Puts one by one at their deadlines, then takes all that is due."""
    start = time.perf_counter()
    for number, deadline in enumerate(deadlines):
        subject.put_at(values[number % BATCH], deadline)
    seconds = time.perf_counter() - start
    table.add(subject.name, "one at a time", seconds / len(deadlines) * 1e6)
    start = time.perf_counter()
    taken = 0
    while subject.take_due() is not None:
        taken += 1
    assert taken == len(deadlines), f"{subject.name} gave {taken} of {len(deadlines)}"
    table.add(subject.name, "pop", (time.perf_counter() - start) / taken * 1e6)


def timed_batches(subject: Timer, values: list[bytes], deadlines: list[int], table: Table) -> None:
    """Puts a thousand at a time at their deadlines."""
    start = time.perf_counter()
    for first in range(0, len(deadlines), BATCH):
        subject.put_many_at(values, deadlines[first : first + BATCH])
    seconds = time.perf_counter() - start
    table.add(subject.name, "batches of 1000", seconds / len(deadlines) * 1e6)


def markdown(table: Table) -> list[str]:
    """Returns a table as the README has it, with the ratio to the first row in each cell."""
    lines = [f"**{table.title}**", "", "| | " + " | ".join(table.columns) + " |"]
    lines.append("| --- |" + " --- |" * len(table.columns))
    for subject in table.rows:
        cells = [cell(table, subject, column) for column in table.columns]
        lines.append(f"| {subject} | " + " | ".join(cells) + " |")
    return [*lines, "", *(f"- {note}" for note in table.notes)]


def cell(table: Table, subject: str, column: str) -> str:
    """Returns a median, and how many times as long as ours that is."""
    value, ours = table.median(subject, column), table.median(next(iter(table.rows)), column)
    if value is None or ours is None:
        return "-"
    shown = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return shown if subject == next(iter(table.rows)) else f"{shown} ({value / ours:.3g} ×)"


def facts_of(table: Table) -> dict[str, object]:
    """Returns a table for programs: every round of every cell."""
    return {"title": table.title, "microseconds": table.rows, "notes": table.notes}


def page(tables: list[Table]) -> str:
    """Returns the tables as a page, with a bar for each cell: shorter is faster."""
    machine = f"Forebay {forebay.__version__}, Python {platform.python_version()}, "
    machine += f"{os.cpu_count()} cores, {'compiled' if forebay.compiled else 'plain Python'}"
    parts = [
        "<!doctype html><meta charset=utf-8><title>Benchmarks</title>",
        f"<style>{STYLE}</style>",
        f"<h1>Benchmarks</h1><p>{html.escape(machine)}. Medians of one run; shorter is faster.",
    ]
    for table in tables:
        parts.append(f"<h2>{html.escape(table.title)}</h2>")
        for column in table.columns:
            parts.append(f"<h3>{html.escape(column)}</h3><table>")
            found = {name: table.median(name, column) for name in table.rows}
            longest = max((value for value in found.values() if value is not None), default=1.0)
            for name, value in found.items():
                if value is not None:
                    width = max(1, round(BAR_PIXELS * value / longest))
                    parts.append(
                        f"<tr><td>{html.escape(name)}<td>{value:.3g}<td>"
                        f'<svg width="{BAR_PIXELS}" height="14"><rect width="{width}" height="14"/>'
                        "</svg></tr>"
                    )
            parts.append("</table>")
        parts += [f"<p>{html.escape(note)}." for note in table.notes]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
