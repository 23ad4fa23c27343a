"""Prints records and damage, a batch at a time for speed."""

from __future__ import annotations

from collections.abc import Iterable

import click

from forebay.cli import exits
from forebay.cli.framing import join
from forebay.cli.output import as_json_object, json_text, say, write_bytes
from forebay.damage import Damage
from forebay.queues.kinds import Kind
from forebay.queues.shared.reports import costs_records, describe_damage
from forebay.queues.shared.rows import Rows


class Printer:
    """Prints records on stdout, raw or as JSON; damage stops it or is printed in its place."""

    def __init__(
        self,
        kind: Kind,
        *,
        as_json: bool,
        framing: str | None = None,
        salvage: bool = False,
        count: int | None = None,
        flush: bool = False,
    ) -> None:
        """`count` is the most records to print."""
        if framing is not None and as_json:
            raise click.UsageError("--framing and --json exclude each other")
        if framing is not None and kind.lines:
            raise click.UsageError(f"--framing does not apply to {kind.title}")
        self._kind = kind
        self._as_json = as_json
        self._framing = framing or "lines"
        self._salvage = salvage
        self._left = count
        self._flush = flush
        self.count = 0

    def print_all(self, items: Iterable[Rows | Damage]) -> None:
        """Prints all items, up to the count."""
        for item in items:
            if self._left == 0:
                return
            self.print(item)

    def print(self, item: Rows | Damage) -> None:
        """Prints records or damage."""
        if isinstance(item, Damage):
            self._meet(item)
        else:
            self._rows(item if self._left is None else item.first(self._left))

    def _rows(self, rows: Rows) -> None:
        write_bytes(
            rows.json_lines()
            if self._as_json
            else join([value for value in rows.values if value is not None], self._framing),
            flush=self._flush,
        )
        self.count += len(rows)
        if self._left is not None:
            self._left -= len(rows)

    def _meet(self, damage: Damage) -> None:
        """Prints damage, or stops there if records are lost and --salvage was not given."""
        text = describe_damage(damage, self._kind.record)
        if self._salvage and self._as_json:
            write_bytes(json_text({"damage": as_json_object(damage)}) + b"\n", flush=self._flush)
            return
        # Flush stdout first, so that the lines of both streams appear in the order of the records.
        write_bytes(b"", flush=True)
        if self._salvage:
            say(text)
        elif costs_records(damage):
            raise exits.Failure(f"{text}; --salvage skips it", exits.DAMAGE)
        else:
            say(f"{text}; no acknowledged record is missing" if damage.torn else text)
