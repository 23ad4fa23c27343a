"""Appends records to a log."""

from __future__ import annotations

from typing import Any

import click

from forebay import Log, LogReader
from forebay.cli.framing import BadInput
from forebay.cli.inspection import newest_version
from forebay.cli.output import plural, talk, write_json
from forebay.formats.fflg import LAYOUTS, VERSIONS_WRITABLE

_BATCH_RECORDS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20


class LogPutter:
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


def open_log(path: str, options: dict[str, Any]) -> Log:
    """Opens or makes a log; options that were not given are the queue's own."""
    given = {name: value for name, value in options.items() if value is not None}
    version = given.get("version")
    if version is not None:
        if version not in map(str, VERSIONS_WRITABLE):
            raise click.UsageError(f"--version {version} has no meaning for a log")
        given["version"] = int(version)
    return Log(path, **given)


def _version_there(path: str) -> int:
    with LogReader(path) as reader:
        return newest_version(reader)
