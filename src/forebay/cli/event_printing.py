"""Prints events as JSON lines, and damage in its place."""

from __future__ import annotations

from forebay import BeatsReader
from forebay.cli import exits
from forebay.cli.inspection import describe
from forebay.cli.output import say, write_bytes
from forebay.cli.printing import Printer
from forebay.damage import Damage
from forebay.errors import UndecodableEvent
from forebay.formats.beats.text import TextDecoder
from forebay.queues.beats.reader import Payloads, undecodable
from forebay.queues.beats.segments import is_harmless


class EventPrinter:
    """Puts events on stdout, one a line; with `as_json` each tells its kind and segment."""

    def __init__(self, *, as_json: bool, salvage: bool, count: int | None = None) -> None:
        self._printer = Printer(as_json=as_json, framing="lines", salvage=salvage)
        self._as_json = as_json
        self._salvage = salvage
        self._left = count
        self._decoder = TextDecoder()

    def print_all(self, reader: BeatsReader, *, unread: bool) -> None:
        """Prints what a reader gives, up to the count; stops at damage unless asked to go on."""
        for damage in reader.side_damage:
            say(f"note: {damage.path}: {damage.reason}; no event is lost by it")
        for item in reader.scan(unread=unread):
            if self._left == 0:
                return
            if isinstance(item, Damage):
                self._damage(item)
            else:
                self._payloads(item)

    def _payloads(self, item: Payloads) -> None:
        lines: list[bytes] = []
        for number, payload in enumerate(item.payloads):
            if self._left == 0:
                break
            try:
                lines.append(self._line(item.segment, payload))
            except UndecodableEvent as error:
                write_bytes(b"".join(lines))
                lines.clear()
                self._damage(undecodable(item, number, error))
                continue
            if self._left is not None:
                self._left -= 1
        write_bytes(b"".join(lines))

    def _line(self, segment: int, payload: bytes) -> bytes:
        head = b'"kind":"beats","segment":%d,' % segment if self._as_json else b""
        return b'{%b"timestamp_ns":%d,"flags":%d,"meta":%b,"fields":%b}\n' % (
            head,
            *self._decoder.decode(payload),
        )

    def _damage(self, damage: Damage) -> None:
        if self._salvage:
            self._printer.show(damage)
        elif not is_harmless(damage):
            self._printer.damage(damage)
        else:
            write_bytes(b"", flush=True)
            say(describe(damage))


def print_events(
    path: str,
    *,
    key_file: str | None,
    salvage: bool,
    unread: bool,
    as_json: bool,
    count: int | None,
) -> int:
    """Prints the events of a queue, without a lock."""
    with BeatsReader(path, key_file=key_file, salvage=salvage) as reader:
        printer = EventPrinter(as_json=as_json, salvage=salvage, count=count)
        printer.print_all(reader, unread=unread)
    return exits.OK
