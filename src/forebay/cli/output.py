"""What the verbs print: tables, facts, JSON lines and bars.

On a terminal tables have colour and columns; elsewhere they are tab-separated with a line of
names. Bars are drawn on stderr and only on a terminal. `rich` is imported only for a terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forebay.cli import exits
from forebay.queues.shared import reports

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Counts and sizes are worded as in the reports.
plural = reports.plural
size_text = reports.size_text
_BAR_AFTER_SECONDS = 0.3
_TABLE_COLUMNS_MIN = 100
# The standard streams that were closed when the program started.
_closed: set[str] = set()


def prepare_streams() -> None:
    """Replaces streams that are closed, and makes every text printable.

    Otherwise a file of a queue would get the descriptor number of a closed stream, and the output
    would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _closed.add(name)
            descriptor = os.open(os.devnull, os.O_RDWR)
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - to the end
        elif number and getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def check_stdin() -> None:
    """Raises if stdin is closed."""
    if "stdin" in _closed:
        raise exits.Failure("stdin is closed; give a FILE or a pipe")


def check_stdout() -> None:
    """Raises if stdout cannot be written: a verb that prints its changes must then make none."""
    with to_stdout(), contextlib.suppress(io.UnsupportedOperation):
        descriptor = sys.stdout.fileno()
        os.write(descriptor, b"")
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            raise BrokenPipeError


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Reports a failure of stdout as one of stdout: the queue did not fail."""
    if "stdout" in _closed:
        raise exits.Failure("stdout is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise exits.Failure(f"cannot write to stdout: {error.strerror}") from None


def say(text: str) -> None:
    """Prints an error or a warning on stderr."""
    talk(f"forebay: {text}")


def talk(text: str) -> None:
    """Prints a line on stderr, apart from the data; it is no error if stderr cannot be written."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def write_line(text: str) -> None:
    """Prints a line of output."""
    with to_stdout():
        print(text)


def write_json(document: Mapping[str, Any], *, flush: bool = False) -> None:
    """Prints an object as one line."""
    with to_stdout():
        print(json_text(document).decode(), flush=flush)


def json_text(document: Mapping[str, Any]) -> bytes:
    """Returns an object as one line."""
    return json.dumps(document, separators=(",", ":")).encode()


def as_json_object(value: Any) -> Any:
    """Returns a value in the form that JSON takes: dataclasses as objects, ids also as text.

    Ids may exceed 2**53, and programs that read numbers as floats would change those.
    """
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        value = {field.name: getattr(value, field.name) for field in fields}
    if isinstance(value, Mapping):
        document = {}
        for name, item in value.items():
            document[name] = as_json_object(item)
            if name == "id" or name.endswith("_id"):
                document[f"{name}_str"] = None if item is None else str(item)
        return document
    return [as_json_object(item) for item in value] if isinstance(value, list | tuple) else value


def write_bytes(data: bytes, *, flush: bool = False) -> None:
    """Writes bytes to stdout unchanged."""
    if not data and not flush:
        return
    with to_stdout():
        sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.buffer.flush()


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows; numbers are right-aligned on a terminal."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            write_line("\t".join(_cell(value) for value in row))
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
    console = Console(highlight=False)
    # Below this width the terminal breaks the lines, which is better than breaking every cell.
    console.width = max(console.width, _TABLE_COLUMNS_MIN)
    console.print(table)


def write_facts(facts: Mapping[str, object]) -> None:
    """Prints names and values, one pair per line."""
    if not sys.stdout.isatty():
        for name, value in facts.items():
            write_line(f"{name}\t{_cell(value)}")
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


def plural_or_unknown(count: int | None, noun: str) -> str:
    """Returns a count with its noun, or "an unknown number of records"."""
    if count is None:
        return f"an unknown number of {reports.plural_of(noun)}"
    return plural(count, noun)


class Bar:
    """Shows progress on stderr, if that is a terminal and the work takes a while."""

    def __init__(self, label: str, total: int | None = None, *, hidden: bool = False) -> None:
        self._label = label
        self._total = total
        self._shown = sys.stderr.isatty() and not hidden
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: int, note: str = "", total: int | None = None) -> None:
        """Moves the bar; `total` is the full amount, once it is known."""
        if not self._shown:
            return
        self._total = self._total or total
        if self._progress is None:
            if time.monotonic() - self._started < _BAR_AFTER_SECONDS:
                return
            self._start()
        if self._progress is not None and self._task is not None:
            text = note or f"{done:,}"
            self._progress.update(self._task, completed=done, total=self._total, note=text)

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
