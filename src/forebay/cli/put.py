"""`forebay put`: appends records from a pipe or from files.

Commits whatever input has arrived as one batch; a slow pipe does not wait for a full batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    check_due,
    due_options,
    json_option,
    key_option,
    path_argument,
    wait_option,
)
from forebay.cli.framing import INPUT_FRAMINGS, BadInput, make_splitter
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import Bar, check_stdin, plural, size_text, talk, write_json
from forebay.cli.queues import open_for, options_for, refuse
from forebay.errors import (
    ForebayError,
    InvalidEvent,
    NotAQueue,
    RecordTooLarge,
)
from forebay.queues.kinds import KINDS, Kind, kind_named, sure_kind_of
from forebay.queues.shared.options import SYNC_POLICIES
from forebay.queues.shared.reports import plural_of

_READ_BYTES = 1 << 18
_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
# A batch is stored whole or not at all: in a bounded queue it is a small part of the bound.
_BATCH_PART = 8
_CANNOT_CREATE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
# Options of the command line, and the options of the queue classes that they set.
# Blocking would never end: while this process owns the queue, no other can take a record.
_OWNER = {"sync": "always", "when_full": "reject"}
_OPTIONS = {
    "--sync": "sync",
    "--version": "version",
    "--key-file": "key_file",
    "--segment-bytes": "segment_bytes",
    "--ttl": "ttl_seconds",
    "--file-bytes": "file_bytes",
    "--max-bytes": "max_bytes",
    "--when-full": "when_full",
}


@click.command("put")
@path_argument
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, readable=False, allow_dash=True)
)
@click.option(
    "--framing",
    type=click.Choice(INPUT_FRAMINGS),
    default="lines",
    show_default=True,
    help="How records are delimited: one per line, a NUL byte after each, a big-endian u32 "
    "length before each, or one record per FILE.",
)
@click.option(
    "--sync",
    type=click.Choice(SYNC_POLICIES),
    help="When to sync: each batch, every 100 ms, or leave it to the system.  [default: always]",
)
@click.option("--segment-bytes", type=int, help="Size of a segment file.  [default: 100000000]")
@click.option(
    "--version",
    metavar="V",
    help="Format of new segments.  [default: that of the queue, else 2; with a key v3-seed]",
)
@click.option(
    "--kind",
    type=click.Choice([kind.name for kind in reversed(KINDS)]),
    help=f"Kind of queue to create if there is none.  [default: {KINDS[-1].name}]",
)
@due_options
@click.option(
    "--ttl",
    "ttl_seconds",
    type=int,
    metavar="SECONDS",
    help="Fifo: how long entries live; 0 means for ever.  [default: 0]",
)
@click.option(
    "--file-bytes",
    type=int,
    help="Fifo: size of a file.  [default: that of the queue, else 33554432]",
)
@click.option(
    "--max-bytes",
    type=int,
    help="The most bytes the queue may use: at least two segments or files. In a fifo each entry "
    "takes 32 bytes more than its value.",
)
@click.option(
    "--when-full",
    type=click.Choice(["reject", "drop_oldest"]),
    help="At --max-bytes: stop with code 75 (default), or drop whole files, oldest first, which a "
    "deadline queue cannot do. Waiting is not offered: no other process can take records then.",
)
@wait_option
@key_option
@json_option
def command(
    path: str,
    files: tuple[str, ...],
    framing: str,
    kind: str | None,
    delay: float | None,
    deadline: int | None,
    wait: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Append records to the queue PATH, which is created if it does not exist.

    For a Beats queue (--kind beats creates one) the input is lines of JSON as "forebay cat" prints
    them; an event without timestamp_ns gets the present time. In a deadline queue (--kind deadline
    creates one) the items are due after --delay, at --deadline, or now.

    Reads lines from stdin or from each FILE (- is stdin). The newline is not part of the record. At
    the end the count and the offsets or ids are printed: on stderr, or with --json on stdout as
    {"count":N,"first":N,"last":N,"first_str":"N","last_str":"N"}, null where they are not known.
    """
    if framing == "files" and not files:
        raise click.UsageError("--framing files needs a FILE; - is stdin")
    check_due(delay, deadline)
    names = files or ("-",)
    if "-" in names:
        check_stdin()
    found, there = _kind(path, kind)
    due = options_for(found, found.records.put, {"--delay": delay, "--deadline": deadline})
    if found.lines and framing != "lines":
        refuse(found, f"--framing {framing}")
    settings = _settings(found, options)

    with Interrupts() as interrupts:
        try:
            with contextlib.nullcontext() if there else _creating(path):
                queue = open_for(found, path, wait, interrupts, owner=_OWNER, **settings)
        except Interrupted as stop:
            return stop.code
        with queue:
            return _put(Putter(found, queue, due), interrupts, names, framing, as_json)


def _settings(kind: Kind, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the queue options that were given; rejects any that the kind does not have."""
    known = {field.name for field in dataclasses.fields(kind.options_class)}
    settings: dict[str, Any] = {}
    for flag, name in _OPTIONS.items():
        value = options[name]
        if value is None:
            continue
        if name not in known:
            refuse(kind, flag)
        settings[name] = value
    if settings.get("version", "").isdigit():
        settings["version"] = int(settings["version"])
    return settings


def _kind(path: str, wanted: str | None) -> tuple[Kind, bool]:
    """Returns the kind at a path, or the kind to create there, and whether there is a queue."""
    default = kind_named(wanted or KINDS[-1].name)
    if not os.path.isdir(path) or not os.listdir(path):
        return default, False
    try:
        found = sure_kind_of(path)
    except NotAQueue:
        # Not a queue at all: opening it as the wanted kind reports why that is not possible.
        return default, False
    if wanted is not None and wanted != found.name:
        raise click.UsageError(f"--kind {wanted}: {path} is {found.title}")
    return found, True


@contextlib.contextmanager
def _creating(path: str) -> Iterator[None]:
    """Turns errors into a failure with the code for a queue that cannot be created."""
    try:
        yield
    except NotAQueue as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None
    except OSError as error:
        if error.errno not in _CANNOT_CREATE:
            raise
        raise exits.Failure(exits.message_of(error, path), exits.CANNOT_CREATE) from None


class Putter:
    """Collects records and appends them in batches."""

    def __init__(self, kind: Kind, queue: Any, due: dict[str, Any]) -> None:
        self._kind = kind
        self._queue = queue
        self._due = due
        self._parse = getattr(kind.records, "parse", None)
        limits = self._limits = kind.records.limits(queue)
        self._pending: list[bytes] = []
        self._size = 0
        self._first: int | None = None
        self._last: int | None = None
        self.count = 0
        self.record_bytes_max = limits.record_bytes_max
        self._batch_bytes_max = _BATCH_BYTES_MAX
        total = limits.total_bytes_max
        if total is not None:
            self.record_bytes_max = min(self.record_bytes_max, total - limits.extra_bytes)
            self._batch_bytes_max = min(_BATCH_BYTES_MAX, total // _BATCH_PART)

    def add(self, records: list[bytes], source: str) -> None:
        """Adds records; flushes when a batch is full."""
        for given in records:
            value = given if self._parse is None else self._parsed(given, source)
            if value is None:
                continue
            if len(value) > self.record_bytes_max:
                what = f"has {len(value)} bytes; the queue takes {self.record_bytes_max}"
                raise self._bad(source, what)
            if not value and self._limits.empty is not None:
                raise self._bad(source, f"is empty, which {self._limits.empty}")
            size = len(value) + self._limits.extra_bytes
            full = self._size + size > self._batch_bytes_max
            if full or len(self._pending) >= _BATCH_RECORDS_MAX:
                self.flush()
            self._pending.append(value)
            self._size += size

    def flush(self) -> None:
        """Appends the collected records."""
        if not self._pending:
            return
        pending, self._pending, self._size = self._pending, [], 0
        first, self._last = self._kind.records.put(self._queue, pending, **self._due)
        self._first = first if self._first is None else self._first
        self.count += len(pending)

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Prints how many records were appended, and where they are."""
        if not as_json:
            talk(f"{prefix}{self._text()}")
            return
        places = {"first": self._first, "last": self._last}
        texts = {f"{key}_str": None if n is None else str(n) for key, n in places.items()}
        try:
            write_json({"count": self.count, **places, **texts}, flush=True)
        except (exits.Failure, BrokenPipeError):
            # The records are stored nevertheless: if the caller repeated the put, they would be
            # stored twice.
            talk(f"{prefix}{self._text()}")
            raise

    def _text(self) -> str:
        record, place = self._kind.record, self._kind.place
        if not self.count:
            return f"no {plural_of(record)}"
        text = plural(self.count, record)
        if self._last is None:
            return text
        if self._first is None:
            return f"{text}, the last with {place} {self._last}"
        if self._first == self._last:
            return f"{text}, {place} {self._last}"
        return f"{text}, {plural_of(place)} {self._first} to {self._last}"

    def _parsed(self, line: bytes, source: str) -> bytes | None:
        assert self._parse is not None
        try:
            value: bytes | None = self._parse(line)
        except (InvalidEvent, RecordTooLarge) as error:
            raise self._bad(source, f"is not valid: {error}") from None
        return value

    def _bad(self, source: str, what: str) -> BadInput:
        which = f"{self._kind.record} {self.count + len(self._pending) + 1}"
        return BadInput(f"{source}: {which} {what}; it and what follows were not put")


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
    """Yields the bytes of an input as they arrive, and whether more can be read right now."""
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
