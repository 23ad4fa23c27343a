"""What the verbs print: tables, facts, JSON lines and bars.

On a terminal tables have colour and columns; elsewhere they are tab-separated with a line of
names. Bars are drawn on stderr and only on a terminal. `rich` is imported only for a terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_BAR_AFTER_SECONDS = 0.3


def say(text: str) -> None:
    """Prints a line of an error or a warning."""
    print(f"forebay: {text}", file=sys.stderr)


def talk(text: str) -> None:
    """Prints a line for people, beside the data."""
    print(text, file=sys.stderr)


def write_json(document: Mapping[str, Any]) -> None:
    """Prints one object as one line."""
    print(json.dumps(document, separators=(",", ":")))


def write_bytes(data: bytes, *, flush: bool = False) -> None:
    """Puts bytes on stdout as they are."""
    sys.stdout.buffer.write(data)
    if flush:
        sys.stdout.buffer.flush()


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows; numbers stand to the right on a terminal."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            print("\t".join(_cell(value) for value in row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        right = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_pretty(value)) for value in row))
    Console(highlight=False).print(table)


def write_facts(facts: Mapping[str, object]) -> None:
    """Prints names and values, one a line."""
    if not sys.stdout.isatty():
        for name, value in facts.items():
            print(f"{name}\t{_cell(value)}")
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        console.print(f"[bold]{name:<{width}}[/bold]  {escape(_pretty(value))}")


def time_text(time_ms: int | None) -> str | None:
    """Returns a time as ISO 8601 in UTC, with milliseconds."""
    if time_ms is None:
        return None
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size: float) -> str:
    """Returns a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun: "1 record", "2,000 entries"."""
    if noun.endswith("s"):
        return f"{count:,} {noun}{'' if count == 1 else 'es'}"
    if noun.endswith("y"):
        return f"{count:,} {noun if count == 1 else noun[:-1] + 'ies'}"
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plural_or_unknown(count: int | None, noun: str) -> str:
    """Returns a count with its noun; "an unknown number of records" if nobody knows it."""
    if count is None:
        return f"an unknown number of {plural(2, noun).removeprefix('2 ')}"
    return plural(count, noun)


class Bar:
    """Shows on stderr how far something is, if stderr is a terminal and it takes a while."""

    def __init__(self, label: str, total: int | None = None, *, hidden: bool = False) -> None:
        self._label = label
        self._total = total
        self._shown = sys.stderr.isatty() and not hidden
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: int, note: str = "") -> None:
        """Moves the bar."""
        if not self._shown:
            return
        if self._progress is None:
            if time.monotonic() - self._started < _BAR_AFTER_SECONDS:
                return
            self._start()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note or f"{done:,}")

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task(self._label, total=self._total, note="")
        self._progress.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("\t", " ").replace("\n", " ")


def _pretty(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _cell(value) or "-"
