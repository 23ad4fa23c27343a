"""`forebay put`: appends records from a pipe or from files.

Batches what is there and commits it at once; a slow pipe does not wait for a batch to fill.
"""

from __future__ import annotations

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
from forebay.cli.queues import open_waiting, options_for, refuse
from forebay.errors import (
    ForebayError,
    InvalidEvent,
    Locked,
    NotAQueue,
    RecordTooLarge,
)
from forebay.formats.fflg import VERSIONS_WRITABLE
from forebay.queues.kinds import KINDS, Kind, kind_named, sure_kind_of
from forebay.queues.shared.options import EVENT_VERSIONS, SYNC_POLICIES
from forebay.queues.shared.reports import plural_of

_READ_BYTES = 1 << 18
_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
# A batch goes in whole or not at all: in a queue with a bound it is a small part of it.
_BATCH_PART = 8
_CANNOT_CREATE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
# The options of queues: on the command line, and of their classes.
_OPTIONS = {
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
    help="How records lie in the input: a line each, a NUL byte after each, a big-endian u32 "
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
    type=click.Choice([kind.name for kind in reversed(KINDS)]),
    help=f"What to make if nothing is there.  [default: {KINDS[-1].name}]",
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
    help="The most that the queue may take: at least two segments or files; of a fifo with 32 "
    "bytes more for each entry.",
)
@click.option(
    "--when-full",
    type=click.Choice(["reject", "drop_oldest"]),
    help="At --max-bytes: stop with code 75 (default), or drop whole files of the oldest records, "
    "which a deadline queue cannot. Nobody else can take any meanwhile, so there is no waiting.",
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
    """Append records to the queue PATH, which is made if it is not there.

    Into a Beats queue (--kind beats makes one) it puts lines of JSON, as "forebay cat" prints
    them; an event without timestamp_ns gets the present time. Into a deadline queue (--kind
    deadline makes one) it puts items that are due after --delay, at --deadline, or now.

    Reads lines from stdin, or from each FILE (- is stdin). The newline is not part of the record.
    At the end it tells the count, and the offsets or ids: on stderr, or with --json on stdout as
    {"count":N,"first":N,"last":N,"first_str":"N","last_str":"N"}, null where they are not known.
    """
    if framing == "files" and not files:
        raise click.UsageError("--framing files needs a FILE; - is stdin")
    check_due(delay, deadline)
    names = files or ("-",)
    if "-" in names:
        check_stdin()
    found = _kind(path, kind)
    due = options_for(found, found.records.put, {"--delay": delay, "--deadline": deadline})
    if found.lines and framing != "lines":
        refuse(found, f"--framing {framing}")
    settings = _settings(found, options)
    with Interrupts() as interrupts, _open(found, path, settings, wait) as queue:
        putter = Putter(found, queue, due)
        return _put(putter, interrupts, names, framing, as_json)


def _settings(kind: Kind, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a queue that were given; refuses those that its kind does not have."""
    known = {field.name for field in dataclasses.fields(kind.options_class)}
    settings = {"sync": options["sync"]}
    for flag, name in _OPTIONS.items():
        value = options[name]
        if value is None:
            continue
        if name not in known:
            refuse(kind, flag)
        settings[name] = value
    if settings.get("version", "").isdigit():
        settings["version"] = int(settings["version"])
    # To block would be to wait for ever: while this process owns the queue nobody takes anything.
    return {"when_full": "reject", **settings}


def _kind(path: str, wanted: str | None) -> Kind:
    """Tells what is at a path, or what to make there; refuses to take one for the other."""
    default = kind_named(wanted or KINDS[-1].name)
    if not os.path.isdir(path) or not os.listdir(path):
        return default
    try:
        found = sure_kind_of(path)
    except NotAQueue:
        # It is no queue at all: the one that is wanted says what is in its way.
        return default
    if wanted is not None and wanted != found.name:
        raise click.UsageError(f"--kind {wanted}: {path} is {found.title}")
    return found


def _open(kind: Kind, path: str, settings: dict[str, Any], wait: float | None) -> Any:
    try:
        return open_waiting(lambda: kind.open_queue(path, **settings), wait)
    except Locked:
        raise
    except NotAQueue as error:
        raise exits.Failure(exits.message_of(error), exits.CANNOT_CREATE) from None
    except OSError as error:
        if error.errno not in _CANNOT_CREATE:
            raise
        raise exits.Failure(exits.message_of(error, path), exits.CANNOT_CREATE) from None


class Putter:
    """Collects records and puts them in batches."""

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
        """Takes records; puts if there are enough."""
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
        """Puts what was collected."""
        if not self._pending:
            return
        pending, self._pending, self._size = self._pending, [], 0
        first, self._last = self._kind.records.put(self._queue, pending, **self._due)
        self._first = first if self._first is None else self._first
        self.count += len(pending)

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells how many records were put, and where they are."""
        if not as_json:
            talk(f"{prefix}{self._text()}")
            return
        places = {"first": self._first, "last": self._last}
        texts = {f"{key}_str": None if n is None else str(n) for key, n in places.items()}
        try:
            write_json({"count": self.count, **places, **texts}, flush=True)
        except exits.Failure:
            # They are stored all the same: who puts them again has them twice.
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
            raise self._bad(source, f"is not one: {error}") from None
        return value

    def _bad(self, source: str, what: str) -> BadInput:
        which = f"{self._kind.record} {self.count + len(self._pending) + 1}"
        return BadInput(f"{source}: {which} {what}; nothing from it on was put")


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
