"""`forebay top`: the queues of a root as a live table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from forebay.cli import exits
from forebay.cli.arguments import check_seconds, json_option
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import as_json_object, size_text, write_json, write_table
from forebay.cli.watching import QueueView, RootView, Watcher
from forebay.clock import SystemClock
from forebay.queues.shared.forwarding import Live

_COLUMNS = (
    *("queue", "kind", "records", "in/s", "out/s", "lag", "leased", "due", "aside", "oldest"),
    *("next", "size", "handles", "forwarding"),
)
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class _Rates:
    """Records per second that went in and out; None if that is not known."""

    written: float | None = None
    taken: float | None = None


@click.command("top")
@click.argument("root", type=click.Path(file_okay=False, readable=False))
@click.option("--once", is_flag=True, help="Print it once; nobody knows the rates then.")
@click.option(
    "--interval",
    type=float,
    default=2.0,
    show_default=True,
    callback=check_seconds,
    metavar="SECONDS",
    help="How often to look.",
)
@json_option
def command(root: str, once: bool, interval: float, as_json: bool) -> int:
    """Show the queues of ROOT: records, rates, lag, leases, the oldest, the next deadline.

    Until Ctrl-C; with --json an object for each queue and look. What a server knows alone (rates,
    leases of a deadline queue, handles) is empty while ROOT has none. Takes no lock.
    """
    watcher = Watcher(root)
    before: tuple[float, RootView] | None = None
    with Interrupts() as interrupts:
        try:
            while True:
                view, now = watcher.look(), time.monotonic()
                rates = {} if before is None else _rates(before[1], view, now - before[0])
                _print(view, rates, as_json=as_json, clears=not once and sys.stdout.isatty())
                if once:
                    return exits.OK
                before = now, view
                with interrupts.waiting():
                    time.sleep(interval)
        except Interrupted as stop:
            return stop.code


def _rates(before: RootView, now: RootView, seconds: float) -> dict[str, _Rates]:
    old = {queue.name: queue for queue in before.queues}
    return {
        queue.name: _Rates(
            _rate(old[queue.name].written, queue.written, seconds),
            _rate(old[queue.name].taken, queue.taken, seconds),
        )
        for queue in now.queues
        if queue.name in old
    }


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    # A server that has begun since counts from 0.
    if before is None or now is None or now < before or seconds <= 0:
        return None
    return (now - before) / seconds


def _print(view: RootView, rates: dict[str, _Rates], *, as_json: bool, clears: bool) -> None:
    if as_json:
        for queue in view.queues:
            rate = rates.get(queue.name, _Rates())
            row = {**asdict(queue), "in_per_second": rate.written, "out_per_second": rate.taken}
            write_json(as_json_object(row), flush=True)
        return
    if clears:
        sys.stdout.write(_CLEAR)
    rows = [tuple(_cells(queue, rates.get(queue.name, _Rates()))) for queue in view.queues]
    write_table(_COLUMNS, rows)
    sys.stdout.flush()


def _cells(queue: QueueView, rates: _Rates) -> Iterator[object]:
    now_ms = SystemClock().now_ms()
    yield queue.name
    yield queue.kind
    yield queue.records if queue.error is None else f"error: {queue.error}"
    yield None if rates.written is None else round(rates.written)
    yield None if rates.taken is None else round(rates.taken)
    yield max(queue.lag.values(), default=None)
    yield queue.leased
    yield queue.due
    yield queue.aside
    yield None if queue.oldest_ms is None else _span(now_ms - queue.oldest_ms)
    yield None if queue.next_ms is None else _span(queue.next_ms - now_ms)
    yield None if queue.bytes is None else size_text(queue.bytes)
    yield queue.handles
    yield "; ".join(map(_forwarding, queue.forwarders)) or None


def _forwarding(live: Live) -> str:
    """Returns what a forwarder is doing, in a few words."""
    text = f"{live.name} {live.state}"
    if live.state == "waiting" and live.last_error is not None:
        text += f": {live.last_error[:60]}"
    elif live.state == "sending":
        text += f" {live.rate:,.0f}/s"
    return text + (f", {live.set_aside} aside" if live.set_aside else "")


def _span(milliseconds: int) -> str:
    """Returns a time in its two largest units; with a sign if it is in the past."""
    seconds, sign = abs(milliseconds) // 1000, "-" if milliseconds < 0 else ""
    for unit, size, rest, lower in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{sign}{seconds // size}{unit}{seconds % size // lower}{rest}"
    return f"{sign}{seconds}s"
