"""`forebay forward`: sends queues to outputs, shows what is being done, and proves what was."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import check_seconds, json_option, key_option
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import (
    Bar,
    as_json_object,
    plural,
    say,
    time_text,
    write_facts,
    write_json,
)
from forebay.forward.config import ForwardConfig, config_of, read_configs
from forebay.forward.forwarder import Forwarder
from forebay.forward.proof import Proof, prove
from forebay.queues.shared.forwarding import Live, read_live

_LOOK_SECONDS = 0.2


def _pairs(
    _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    """Returns `Name=VALUE` options as a map."""
    found = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name] = value
    return found or None


@click.command("forward")
@click.argument("path", metavar="QUEUE|FILE.toml", type=click.Path(readable=False))
@click.option("--to", metavar="URL", help="http://…, https://…, …/_bulk, or file:DIR.")
@click.option("--name", metavar="NAME", help="Of its consumer and its state.  [default: forward]")
@click.option("--state", metavar="DIR", help="The state directory.")
@click.option(
    "--take",
    is_flag=True,
    help="Beats: own the queue and acknowledge events, so that state.dat moves.",
)
@click.option("--until-empty", is_flag=True, help="End when nothing waits.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--check", is_flag=True, help="Send nothing; prove where every record is.")
@click.option("--show", is_flag=True, help="Send nothing; print what the forwarder is doing.")
@click.option(
    "--format", type=click.Choice(["json", "raw"]), help="HTTP: lines of JSON, or bodies."
)
@click.option("--index", metavar="NAME", help="_bulk: index of documents that name none.")
@click.option(
    "--header-file",
    "header_files",
    multiple=True,
    callback=_pairs,
    metavar="NAME=FILE",
    help="HTTP: a header whose value is in a file of mode 0600.",
)
@click.option(
    "--header-env",
    "header_environment",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VARIABLE",
    help="HTTP: a header whose value is in a variable of the environment.",
)
@click.option("--ca-file", metavar="FILE", help="HTTPS: certificates to trust.")
@click.option("--batch-records", type=click.IntRange(min=1), metavar="N", help="[default: 1000]")
@click.option("--batch-bytes", type=click.IntRange(min=1), metavar="N", help="[default: 1 MiB]")
@click.option("--in-flight", type=click.IntRange(min=1), metavar="N", help="[default: 1]")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=float,
    callback=check_seconds,
    metavar="SECONDS",
    help="HTTP: for an answer.  [default: 30]",
)
@click.option(
    "--ttl",
    "ttl_seconds",
    type=float,
    callback=check_seconds,
    metavar="SECONDS",
    help="Log: drop records that are older.",
)
@key_option
@json_option
def command(
    path: str,
    until_empty: bool,
    limit: int | None,
    check: bool,
    show: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Send the records of a queue to an output, in order, until they are taken.

    Without --until-empty it goes on for ever. An output that is away is waited for; a record that
    the output refuses by itself is set aside; nothing is dropped. A Beats queue is only read,
    unless --take is given. FILE.toml has a table [forward.NAME] for each of several forwarders.

    --check counts the records that are delivered, set aside, waiting, dropped and damaged, and ends
    with code 1 if they are not all that there are.
    """
    configs = _configs(
        path,
        {name: value for name, value in given.items() if value not in (None, False)},
        need_to=not (check or show),
    )
    if check:
        return max([_check(config, as_json=as_json) for config in configs])
    if show:
        return max([_show(config, as_json=as_json) for config in configs])
    return _forward(configs, until_empty, limit, as_json=as_json)


def _configs(path: str, given: dict[str, Any], *, need_to: bool) -> list[ForwardConfig]:
    if os.path.isfile(path):
        if given:
            raise click.UsageError(f"{path} says it all: give no other options")
        return read_configs(path)
    if "to" not in given and need_to:
        raise click.UsageError("--to is missing: where do the records go?")
    name = given.pop("name", "forward")
    return [config_of(name, {"to": "file:", **given, "queue": path})]


def _forward(
    configs: Sequence[ForwardConfig], until_empty: bool, limit: int | None, *, as_json: bool
) -> int:
    logger = logging.getLogger("forebay")
    handler = _Messages()
    logger.addHandler(handler)
    runs = [_Run(config, until_empty, limit) for config in configs]
    code = exits.OK
    try:
        with Interrupts() as interrupts, Bar("forwarding") as bar:
            try:
                for run in runs:
                    run.start()
                while any(run.is_alive() for run in runs):
                    with interrupts.waiting():
                        time.sleep(_LOOK_SECONDS)
                    _draw(bar, runs)
            except Interrupted as stop:
                code = stop.code
            finally:
                for run in runs:
                    run.stop()
                for run in runs:
                    run.join()
    finally:
        logger.removeHandler(handler)
    for run in runs:
        run.tell(as_json=as_json)
    for run in runs:
        if run.error is not None:
            raise run.error
    return code


class _Messages(logging.Handler):
    """Prints the messages of the forwarders on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a message."""
        say(record.getMessage())


class _Run(threading.Thread):
    """A forwarder on a thread of its own."""

    def __init__(self, config: ForwardConfig, until_empty: bool, limit: int | None) -> None:
        super().__init__(daemon=True)
        self.config = config
        self.error: BaseException | None = None
        self._until_empty = until_empty
        self._limit = limit
        self._stopped = False
        self.forwarder: Forwarder | None = None

    def run(self) -> None:
        """Forwards until the end."""
        try:
            with self.config.open(limit=self._limit) as forwarder:
                self.forwarder = forwarder
                if not self._stopped:
                    forwarder.run(until_empty=self._until_empty)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Makes it end soon."""
        self._stopped = True
        if self.forwarder is not None:
            self.forwarder.stop()

    def tell(self, *, as_json: bool) -> None:
        """Prints what has been done."""
        if self.forwarder is None:
            return
        settled = self.forwarder.settled
        facts = {
            "name": self.config.name,
            "queue": self.config.queue,
            "delivered": settled.delivered,
            "set_aside": settled.set_aside,
            "dropped": settled.dropped,
            "damaged": settled.damaged,
            "state": self.config.state_of(),
        }
        if as_json:
            write_json(facts)
        else:
            write_facts(facts)
        if settled.set_aside:
            where = f"{facts['state']}/set-aside"
            say(f'{plural(settled.set_aside, "record")} were refused: "forebay cat {where}"')


def _draw(bar: Bar, runs: Sequence[_Run]) -> None:
    lives = [read_live(run.config.state_of()) for run in runs if run.forwarder is not None]
    found = [live for live in lives if live is not None]
    done = sum(live.delivered + live.set_aside for live in found)
    lag = sum(live.lag or 0 for live in found)
    note = f"{done:,} sent, {lag:,} wait" if lag else f"{done:,} sent"
    waiting = next((live for live in found if live.state == "waiting"), None)
    if waiting is not None:
        note += f", {waiting.last_error}"
    bar.update(done, note, done + lag)


def _check(config: ForwardConfig, *, as_json: bool) -> int:
    proof = prove(config.queue, config.state_of(), key_file=config.key_file)
    if as_json:
        write_json({**as_json_object(proof), "holds": proof.holds})
    else:
        write_facts(_facts_of(proof))
    for fault in proof.faults:
        say(f"{config.queue}: {fault}")
    return exits.OK if proof.holds else exits.ERROR


def _facts_of(proof: Proof) -> dict[str, object]:
    facts = dataclasses.asdict(proof)
    del facts["faults"], facts["notes"]
    facts["holds"] = proof.holds
    for number, note in enumerate(proof.notes, 1):
        facts[f"note {number}"] = note
    return facts


def _show(config: ForwardConfig, *, as_json: bool) -> int:
    live = read_live(config.state_of())
    if live is None:
        raise exits.Failure(
            f"{config.queue}: no forwarder {config.name!r} has been here", exits.NOTHING
        )
    if as_json:
        write_json(as_json_object(live))
    else:
        write_facts(_shown(live))
    return exits.OK


def _shown(live: Live) -> dict[str, object]:
    facts = dataclasses.asdict(live)
    for name in ("last_error", "next_try", "updated"):
        if f"{name}_ms" in facts:
            stamp = "last_error_at" if name == "last_error" else name
            facts[stamp] = time_text(facts.pop(f"{name}_ms"))
    return facts
