"""`forebay convert`: copies a queue into files of another version."""

from __future__ import annotations

import click

from forebay.cli.arguments import json_option, key_option, path_argument, salvage_option
from forebay.cli.event_copy import copy_events
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import say
from forebay.cli.recover import check_target
from forebay.formats.beats.versions import LAYOUTS, LOSSY_IN_BEATS, lossy_warning

_EVENT_VERSIONS = [name for name, row in LAYOUTS.items() if row.writable]
# What the original deadline queue reads.
_DEADLINE_VERSION = "1"


@click.command("convert")
@path_argument
@click.option(
    "--to-version",
    "version",
    required=True,
    type=click.Choice([*_EVENT_VERSIONS, _DEADLINE_VERSION]),
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
    """Copy the queue PATH into files of another version; PATH is not changed.

    For Beats queues, one of the versions of Beats. The key is that of both, where a version is
    encrypted. What is done with in PATH is done with in the copy.

    For deadline queues, version 1: a run that the original program reads. Buried items are left
    out and counted.

    Stops at damage with code 4, unless --salvage is given.
    """

    def convert_items() -> int:
        from forebay.cli.deadline_copy import convert_deadline

        refuse_options("deadline", {"--key-file": key_file})
        if version != _DEADLINE_VERSION:
            raise click.UsageError(f"--to-version {version} is for a Beats queue; give 1")
        check_target(path, target)
        return convert_deadline(path, target, salvage, as_json)

    def convert() -> int:
        if version == _DEADLINE_VERSION:
            raise click.UsageError("--to-version 1 is for a deadline queue; give v1 for Beats")
        check_target(path, target)
        if version in LOSSY_IN_BEATS:
            say(f"warning: {lossy_warning(version)}")
        return copy_events(
            path, target, key_file=key_file, version=version, salvage=salvage, as_json=as_json
        )

    return act(path, "convert", {"beats": convert, "deadline": convert_items})
