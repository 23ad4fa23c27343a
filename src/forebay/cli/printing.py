"""Prints records and damage as `cat` and `tail` do: a batch at a time, so that it is fast."""

from __future__ import annotations

import binascii
import json

import click

from forebay.cli import exits
from forebay.cli.framing import join
from forebay.cli.inspection import damage_fields, describe, is_loss
from forebay.cli.output import say, write_bytes
from forebay.damage import Damage
from forebay.queues.log.scanner import RecordBatch


class Printer:
    """Puts records on stdout, raw or as JSON; damage stops it or is shown in its place."""

    def __init__(self, *, as_json: bool, framing: str, salvage: bool, flush: bool = False) -> None:
        self._as_json = as_json
        self._framing = framing
        self._salvage = salvage
        self._flush = flush
        self.count = 0

    def batch(self, batch: RecordBatch) -> None:
        """Prints records."""
        if self._as_json:
            data = _json_lines(batch)
        else:
            data = join(batch.values, self._framing)
        write_bytes(data, flush=self._flush)
        self.count += len(batch.values)

    def damage(self, damage: Damage) -> None:
        """Shows damage, or stops there if nobody asked to go on."""
        if not self._salvage:
            raise exits.Failure(f"{describe(damage)}; --salvage reads on", exits.DAMAGE)
        self.show(damage)

    def show(self, damage: Damage) -> None:
        """Shows damage in its place: in the stream as JSON, else on stderr."""
        if self._as_json:
            line = json.dumps({"damage": damage_fields(damage)}, separators=(",", ":"))
            write_bytes(line.encode() + b"\n", flush=self._flush)
        else:
            # The lines of the two streams shall come in the order of the log.
            write_bytes(b"", flush=True)
            say(describe(damage))

    def end(self, damage: Damage | None) -> None:
        """Shows what is behind the last record; an unfinished write is no reason to stop."""
        if damage is None:
            return
        if self._salvage:
            self.show(damage)
        elif is_loss(damage):
            self.damage(damage)
        else:
            say(
                f"{damage.path}, byte {damage.position}: {damage.length} bytes of an unfinished "
                "record behind the last one; nothing acknowledged is missing"
            )


def framing_of(framing: str | None, as_json: bool) -> str:
    """Returns the framing to use; JSON has its own."""
    if framing is not None and as_json:
        raise click.UsageError("--framing and --json exclude each other")
    return framing or "lines"


def _json_lines(batch: RecordBatch) -> bytes:
    encode = binascii.b2a_base64
    epoch_ms = batch.epoch_ms
    offset = batch.offset
    if batch.times is None:
        return b"".join(
            b'{"kind":"log","offset":%d,"time_ms":null,"value_b64":"%b"}\n'
            % (number, encode(value, newline=False))
            for number, value in enumerate(batch.values, offset)
        )
    return b"".join(
        b'{"kind":"log","offset":%d,"time_ms":%d,"value_b64":"%b"}\n'
        % (number, epoch_ms + ms, encode(value, newline=False))
        for number, (value, ms) in enumerate(zip(batch.values, batch.times, strict=True), offset)
    )
