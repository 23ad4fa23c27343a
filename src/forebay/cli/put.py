"""`forebay put`: appends records from a pipe or from files.

Batches what is there and commits it at once; a slow pipe does not wait for a batch to fill.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import click

from forebay import Log, LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument
from forebay.cli.framing import INPUT_FRAMINGS, BadInput, make_splitter
from forebay.cli.inspection import newest_version
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import Bar, plural, size_text, talk, write_json
from forebay.errors import ForebayError, Locked, NotAQueue
from forebay.formats.fflg import LAYOUTS, VERSIONS_WRITABLE
from forebay.queues.options import SYNC_POLICIES

_READ_BYTES = 1 << 18
_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20


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
    type=click.Choice([str(version) for version in VERSIONS_WRITABLE]),
    help="Format of new segments.  [default: what is there, else 2]",
)
@json_option
def command(
    path: str,
    files: tuple[str, ...],
    framing: str,
    sync: str,
    segment_bytes: int | None,
    version: str | None,
    as_json: bool,
) -> int:
    """Append records to the log PATH, which is made if it is not there.

    Reads lines from stdin, or from each FILE (- is stdin). The newline is not part of the record.
    At the end it tells the count and the offsets: on stderr, or with --json on stdout as
    {"first": offset, "count": records}.
    """
    if framing == "files" and not files:
        raise click.UsageError("--framing files needs a FILE; - is stdin")
    options: dict[str, Any] = {"sync": sync}
    if segment_bytes is not None:
        options["segment_bytes"] = segment_bytes
    if version is not None:
        options["version"] = int(version)
    with Interrupts() as interrupts, _open(path, options) as log:
        putter = _Putter(log)
        try:
            _put_all(putter, interrupts, files or ("-",), framing)
        except Interrupted as stop:
            putter.flush()
            _report(putter, as_json, "interrupted: ")
            return stop.code
        except BadInput as error:
            putter.flush()
            _report(putter, as_json, "before the bad input: ")
            raise exits.Failure(str(error), exits.BAD_DATA) from None
        except (ForebayError, OSError):
            _report(putter, as_json, "before the error: ")
            raise
        _report(putter, as_json)
    return exits.OK


def _open(path: str, options: dict[str, Any]) -> Log:
    try:
        return Log(path, **options)
    except Locked:
        raise
    except (NotAQueue, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None


def _version_there(path: str) -> int:
    with LogReader(path) as reader:
        return newest_version(reader)


def _report(putter: _Putter, as_json: bool, prefix: str = "") -> None:
    first = putter.log.end if putter.first is None else putter.first
    if as_json:
        write_json({"first": first, "count": putter.count})
    elif putter.count:
        talk(f"{prefix}{plural(putter.count, 'record')}, offsets {first} to {putter.last}")
    else:
        talk(f"{prefix}no records; the next offset is {first}")


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


def _put_all(putter: _Putter, interrupts: Interrupts, names: tuple[str, ...], framing: str) -> None:
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
