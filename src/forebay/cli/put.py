"""`forebay put`: appends records from a pipe or from files.

Batches what is there and commits it at once; a slow pipe does not wait for a batch to fill.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import (
    check_due,
    due_options,
    json_option,
    key_option,
    path_argument,
)
from forebay.cli.framing import INPUT_FRAMINGS, BadInput, make_splitter
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.kinds import NAMES, refuse_options
from forebay.cli.output import Bar, plural, size_text
from forebay.errors import ForebayError, Locked, NotAQueue
from forebay.formats.fflg import VERSIONS_WRITABLE
from forebay.queues.kinds import kind_of
from forebay.queues.shared.options import EVENT_VERSIONS, SYNC_POLICIES

if TYPE_CHECKING:
    from forebay import BeatsQueue, DeadlineQueue, Fifo, Log

_READ_BYTES = 1 << 18
_Queue = TypeVar("_Queue", "Log", "BeatsQueue", "Fifo", "DeadlineQueue")
# The options that not every kind has: of the command line, and of the queue.
_OPTIONS = {
    "--version": "version",
    "--key-file": "key_file",
    "--segment-bytes": "segment_bytes",
    "--ttl": "ttl_seconds",
    "--file-bytes": "file_bytes",
    "--max-bytes": "max_bytes",
    "--when-full": "when_full",
    "--delay": "delay",
    "--deadline": "deadline",
}
_OPTIONS_OF = {
    "log": ("--version", "--segment-bytes"),
    "beats": ("--version", "--segment-bytes", "--key-file"),
    "fifo": ("--ttl", "--file-bytes", "--max-bytes", "--when-full"),
    "deadline": ("--delay", "--deadline", "--max-bytes", "--when-full"),
}


@click.command("put")
@path_argument
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
)
@click.option(
    "--framing",
    type=click.Choice(INPUT_FRAMINGS),
    default="lines",
    show_default=True,
    help="How records lie in the input: a line each, a NUL byte behind each, a big-endian u32 "
    "length before each, or each FILE one record.",
)
@click.option(
    "--sync",
    type=click.Choice(SYNC_POLICIES),
    default="always",
    show_default=True,
    help="What a batch waits for: the disk; the disk every 100 ms; the system.",
)
@click.option("--segment-bytes", type=int, help="Size of a segment file.  [default: 100000000]")
@click.option(
    "--version",
    type=click.Choice(sorted({str(name) for name in (*VERSIONS_WRITABLE, *EVENT_VERSIONS)})),
    help="Format of new segments.  [default: what is there, else 2; with a key v3-seed]",
)
@click.option(
    "--kind",
    type=click.Choice(["log", "beats", "fifo", "deadline"]),
    help="What to make if nothing is there.  [default: log]",
)
@due_options
@click.option(
    "--ttl",
    "ttl_seconds",
    type=int,
    metavar="SECONDS",
    help="Fifo: how long the entries live; 0 is for ever.  [default: 0]",
)
@click.option(
    "--file-bytes", type=int, help="Fifo: size of a file.  [default: what is there, else 33554432]"
)
@click.option(
    "--max-bytes",
    type=int,
    help="Fifo: the most that all entries may take, 32 bytes each more. Deadline: the most that "
    "logs and runs may take.",
)
@click.option(
    "--when-full",
    type=click.Choice(["reject", "drop_oldest"]),
    help="At --max-bytes: stop with code 75 (default), or, fifo only, drop whole files of the "
    "oldest entries. Nobody else can take entries meanwhile, so there is no waiting.",
)
@key_option
@json_option
def command(
    path: str, files: tuple[str, ...], framing: str, kind: str | None, as_json: bool, **options: Any
) -> int:
    """Append records to the queue PATH, which is made if it is not there.

    Into a Beats queue (--kind beats makes one) it puts lines of JSON, as "forebay cat" prints
    them; an event without timestamp_ns gets the present time. Into a deadline queue (--kind
    deadline makes one) it puts items that are due after --delay, at --deadline, or now.

    Reads lines from stdin, or from each FILE (- is stdin). The newline is not part of the record.
    At the end it tells the count and the offsets: on stderr, or with --json on stdout as
    {"first": offset, "count": records}; of a fifo (--kind fifo makes one) as {"count": entries,
    "last_id": id}, and of a deadline queue as {"count": items, "first_id": id, "last_id": id}.
    """
    if framing == "files" and not files:
        raise click.UsageError("--framing files needs a FILE; - is stdin")
    check_due(options["delay"], options["deadline"])
    kind = _kind(path, kind)
    given = {flag: options[name] for flag, name in _OPTIONS.items()}
    others = {flag: value for flag, value in given.items() if flag not in _OPTIONS_OF[kind]}
    refuse_options(kind, others)
    if kind == "beats":
        refuse_options(kind, {"--framing": framing if framing != "lines" else None})
    if kind == "deadline" and options["when_full"] == "drop_oldest":
        refuse_options(kind, {"--when-full drop_oldest": True})
    settings = {_OPTIONS[flag]: given[flag] for flag in _OPTIONS_OF[kind]}
    with (
        Interrupts() as interrupts,
        _opened(kind, path, {"sync": options["sync"], **settings}) as putter,
    ):
        return _put(putter, interrupts, files or ("-",), framing, as_json)


@contextlib.contextmanager
def _opened(kind: str, path: str, options: dict[str, Any]) -> Iterator[Putter]:
    """Opens or makes a queue of a kind, and gives what puts records into it."""
    if kind == "fifo":
        from forebay.cli.fifo_put import FifoPutter, open_fifo

        with _open(open_fifo, path, options) as fifo:
            yield FifoPutter(fifo)
    elif kind == "beats":
        from forebay.cli.event_put import EventPutter, open_for_put

        with _open(open_for_put, path, options) as events:
            yield EventPutter(events)
    elif kind == "deadline":
        from forebay.cli.deadline_put import DeadlinePutter, open_deadline

        due = options.pop("delay"), options.pop("deadline")
        with _open(open_deadline, path, options) as queue:
            yield DeadlinePutter(queue, *due)
    else:
        from forebay.cli.log_put import LogPutter, open_log

        with _open(open_log, path, options) as log:
            yield LogPutter(log)


def _put(
    putter: Putter, interrupts: Interrupts, names: tuple[str, ...], framing: str, as_json: bool
) -> int:
    try:
        _put_all(putter, interrupts, names, framing)
    except Interrupted as stop:
        putter.flush()
        putter.report(as_json, "interrupted: ")
        return stop.code
    except BadInput as error:
        putter.flush()
        putter.report(as_json, "before the bad input: ")
        raise exits.Failure(str(error), exits.BAD_DATA) from None
    except (ForebayError, OSError):
        putter.report(as_json, "before the error: ")
        raise
    putter.report(as_json)
    return exits.OK


def _kind(path: str, wanted: str | None) -> str:
    """Tells what is at a path, or what to make there; refuses to take one for the other."""
    if not os.path.isdir(path) or not os.listdir(path):
        return wanted or "log"
    found = kind_of(path).name
    if wanted is None or wanted == found:
        return found
    if found == "log":
        try:
            LogReader(path).close()
        except NotAQueue:
            # It is no queue at all: the one that is wanted says what is in its way.
            return wanted
    raise click.UsageError(f"--kind {wanted}: {path} is {NAMES[found]}")


def _open(
    open_queue: Callable[[str, dict[str, Any]], _Queue], path: str, options: dict[str, Any]
) -> _Queue:
    try:
        return open_queue(path, options)
    except Locked:
        raise
    except (NotAQueue, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None


class Putter(Protocol):
    """Collects records and puts them in batches."""

    record_bytes_max: int

    @property
    def count(self) -> int:
        """How many were put."""
        ...

    def add(self, records: list[bytes], source: str) -> None:
        """Takes records; puts if there are enough."""
        ...

    def flush(self) -> None:
        """Puts what was collected."""
        ...

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells what was put."""
        ...


def _put_all(putter: Putter, interrupts: Interrupts, names: tuple[str, ...], framing: str) -> None:
    total = _total_bytes(names)
    done = 0
    with Bar("put", total, hidden=total is None and sys.stdin.isatty()) as bar:
        for name in names:
            source = "stdin" if name == "-" else name
            splitter = make_splitter(framing, putter.record_bytes_max)
            try:
                for data, more in _chunks(name, interrupts):
                    putter.add(splitter.feed(data), source)
                    if not more:
                        putter.flush()
                    done += len(data)
                    bar.update(done, f"{plural(putter.count, 'record')}  {size_text(done)}")
                putter.add(splitter.finish(), source)
            except BadInput as error:
                if str(error).startswith(source):
                    raise
                raise BadInput(f"{source}: {error}") from None
        putter.flush()


def _total_bytes(names: tuple[str, ...]) -> int | None:
    return None if "-" in names else sum(os.path.getsize(name) for name in names)


def _chunks(name: str, interrupts: Interrupts) -> Iterator[tuple[bytes, bool]]:
    """Yields the bytes of an input as they come, and whether more are there right now."""
    if name != "-":
        with open(name, "rb", buffering=0) as file:
            yield from _descriptor_chunks(file.fileno(), interrupts)
        return
    try:
        descriptor = sys.stdin.fileno()
    except (io.UnsupportedOperation, AttributeError):
        yield sys.stdin.buffer.read(), True
        return
    yield from _descriptor_chunks(descriptor, interrupts)


def _descriptor_chunks(descriptor: int, interrupts: Interrupts) -> Iterator[tuple[bytes, bool]]:
    while True:
        with interrupts.waiting():
            data = os.read(descriptor, _READ_BYTES)
        if not data:
            return
        yield data, bool(select.select([descriptor], [], [], 0)[0])
