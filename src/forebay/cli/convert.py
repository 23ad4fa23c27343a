"""`forebay convert`: copies an event queue into one of another version."""

from __future__ import annotations

import click

from forebay.cli.arguments import json_option, key_option, path_argument, salvage_option
from forebay.cli.event_copy import copy_events
from forebay.cli.kinds import act
from forebay.cli.recover import check_target
from forebay.formats.beats_versions import LAYOUTS

_WRITABLE = [name for name, row in LAYOUTS.items() if row.writable]


@click.command("convert")
@path_argument
@click.option(
    "--to-version",
    "version",
    required=True,
    type=click.Choice(_WRITABLE),
    help="The version of the copy.",
)
@click.option(
    "--to", "target", required=True, metavar="DIR", help="The new queue: not there yet, or empty."
)
@key_option
@salvage_option
@json_option
def command(
    path: str, version: str, target: str, key_file: str | None, salvage: bool, as_json: bool
) -> int:
    """Copy the event queue PATH into a new one of another version; PATH is not changed.

    The key is that of both, where a version is encrypted. What is done with in PATH is done with in
    the copy. Stops at damage with code 4, unless --salvage is given.
    """

    def convert() -> int:
        check_target(path, target)
        return copy_events(
            path, target, key_file=key_file, version=version, salvage=salvage, as_json=as_json
        )

    return act(path, "convert", {"beats": convert})
