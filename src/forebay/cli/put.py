"""`forebay put`: appends records from a pipe or from files.

Batches what is there and commits it at once; a slow pipe does not wait for a batch to fill.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from forebay import Log, LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument
from forebay.cli.framing import INPUT_FRAMINGS, BadInput, make_splitter
from forebay.cli.inspection import newest_version
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.kinds import NAMES, refuse_options
from forebay.cli.output import Bar, plural, size_text, talk, write_json
from forebay.errors import ForebayError, Locked, NotAQueue
from forebay.formats.fflg import LAYOUTS, VERSIONS_WRITABLE
from forebay.queues.kinds import kind_of
from forebay.queues.options import EVENT_VERSIONS, SYNC_POLICIES

if TYPE_CHECKING:
    from forebay import EventQueue, Fifo

_READ_BYTES = 1 << 18
_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
_Queue = TypeVar("_Queue", "Log", "EventQueue", "Fifo")
# The options that only a fifo has: of the command line, and of the queue.
_FIFO_OPTIONS = {
    "--ttl": "ttl_seconds",
    "--file-bytes": "file_bytes",
    "--max-bytes": "max_bytes",
    "--when-full": "when_full",
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
    type=click.Choice(["log", "beats", "fifo"]),
    help="What to make if nothing is there.  [default: log]",
)
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
    "--max-bytes", type=int, help="Fifo: the most that all entries may take, 32 bytes each more."
)
@click.option(
    "--when-full",
    type=click.Choice(["reject", "drop_oldest"]),
    help="Fifo: what to do at --max-bytes: stop with code 75 (default), or drop whole files of the "
    "oldest entries. Nobody else can take entries meanwhile, so there is no waiting.",
)
@key_option
@json_option
def command(
    path: str,
    files: tuple[str, ...],
    framing: str,
    sync: str,
    segment_bytes: int | None,
    version: str | None,
    kind: str | None,
    key_file: str | None,
    as_json: bool,
    **fifo_options: Any,
) -> int:
    """Append records to the queue PATH, which is made if it is not there.

    Into an event queue (--kind beats makes one) it puts lines of JSON, as "forebay cat" prints
    them; an event without timestamp_ns gets the present time.

    Reads lines from stdin, or from each FILE (- is stdin). The newline is not part of the record.
    At the end it tells the count and the offsets: on stderr, or with --json on stdout as
    {"first": offset, "count": records}; of a fifo (--kind fifo makes one) as {"count": entries,
    "last_id": id}.
    """
    if framing == "files" and not files:
        raise click.UsageError("--framing files needs a FILE; - is stdin")
    options: dict[str, Any] = {"sync": sync}
    if segment_bytes is not None:
        options["segment_bytes"] = segment_bytes
    names = files or ("-",)
    kind = _kind(path, kind)
    if kind == "fifo":
        from forebay.cli.fifo_put import FifoPutter, open_fifo

        given = {"--version": version, "--key-file": key_file, "--segment-bytes": segment_bytes}
        refuse_options("fifo", given)
        with Interrupts() as interrupts, _open(open_fifo, path, options | fifo_options) as fifo:
            return _put(FifoPutter(fifo), interrupts, names, framing, as_json)
    refuse_options(kind, {name: fifo_options[key] for name, key in _FIFO_OPTIONS.items()})
    if kind == "beats":
        from forebay.cli.event_put import EventPutter, open_for_put

        refuse_options("beats", {"--framing": framing if framing != "lines" else None})
        options |= {"version": version, "key_file": key_file}
        with Interrupts() as interrupts, _open(open_for_put, path, options) as queue:
            return _put(EventPutter(queue), interrupts, names, "lines", as_json)
    refuse_options("log", {"--key-file": key_file})
    if version is not None:
        if version not in map(str, VERSIONS_WRITABLE):
            raise click.UsageError(f"--version {version} has no meaning for a log")
        options["version"] = int(version)
    with Interrupts() as interrupts, _open(_open_log, path, options) as log:
        return _put(_Putter(log), interrupts, names, framing, as_json)


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


def _open_log(path: str, options: dict[str, Any]) -> Log:
    return Log(path, **options)


def _open(
    open_queue: Callable[[str, dict[str, Any]], _Queue], path: str, options: dict[str, Any]
) -> _Queue:
    try:
        return open_queue(path, options)
    except Locked:
        raise
    except (NotAQueue, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None


def _version_there(path: str) -> int:
    with LogReader(path) as reader:
        return newest_version(reader)


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


class _Putter:
    """Collects records and appends them in batches."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.first: int | None = None
        self.last = 0
        self.count = 0
        layout = LAYOUTS[log.options.version or _version_there(log.path)]
        room = log.options.segment_bytes - layout.header_bytes - layout.frame_bytes
        self.record_bytes_max = room
        self._empty_allowed = not layout.zero_size_ends
        self._pending: list[bytes] = []
        self._size = 0

    def add(self, records: list[bytes], source: str) -> None:
        """Takes records; appends if there are enough."""
        if not records:
            return
        largest = max(map(len, records))
        if largest > self.record_bytes_max or (not self._empty_allowed and b"" in records):
            self._refuse(records, source)
        self._pending += records
        self._size += sum(map(len, records))
        if self._size >= _BATCH_BYTES_MAX or len(self._pending) >= _BATCH_RECORDS_MAX:
            self.flush()

    def flush(self) -> None:
        """Appends what was collected."""
        if not self._pending:
            return
        offset = self.log.append_many(self._pending)
        if self.first is None:
            self.first = offset
        self.count += len(self._pending)
        self.last = offset + len(self._pending) - 1
        self._pending, self._size = [], 0

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells how many records were put, and their offsets."""
        first = self.log.end if self.first is None else self.first
        if as_json:
            write_json({"first": first, "count": self.count})
        elif self.count:
            talk(f"{prefix}{plural(self.count, 'record')}, offsets {first} to {self.last}")
        else:
            talk(f"{prefix}no records; the next offset is {first}")

    def _refuse(self, records: list[bytes], source: str) -> None:
        """Keeps what comes before the first record that cannot be stored, and says which it is."""
        for number, value in enumerate(records):
            if len(value) > self.record_bytes_max or (not value and not self._empty_allowed):
                self._pending += records[:number]
                which = self.count + len(self._pending) + 1
                what = (
                    f"has {len(value)} bytes; a segment takes {self.record_bytes_max}"
                    if value
                    else "is empty, which version 1 cannot store"
                )
                raise BadInput(f"{source}: record {which} {what}; nothing from it on was put")


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
    """Gives the bytes of an input as they come, and whether more are there right now."""
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
