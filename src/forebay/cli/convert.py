"""`forebay convert`: copies a queue into files of another version."""

from __future__ import annotations

import click

from forebay.cli.arguments import (
    json_option,
    key_option,
    path_argument,
    salvage_option,
    target_option,
)
from forebay.cli.output import say
from forebay.cli.queues import find, options_for
from forebay.cli.recover import run_copy
from forebay.formats.beats.versions import LOSSY_IN_BEATS, lossy_warning
from forebay.queues.kinds import KINDS, convert
from forebay.queues.shared.reports import CopyReport, Progress


@click.command("convert")
@path_argument
@click.option(
    "--to-version",
    "version",
    required=True,
    type=click.Choice([version for kind in KINDS for version in kind.versions]),
    help="The format version of the copy.",
)
@target_option
@key_option
@salvage_option
@json_option
def command(
    path: str, version: str, target: str, key_file: str | None, salvage: bool, as_json: bool
) -> int:
    """Copy the queue PATH into files of another format version. PATH is not changed.

    For a Beats queue, the version is one of those of Beats. If a version is encrypted, the same key
    is used for both queues. What is acknowledged in PATH is acknowledged in the copy.

    For a deadline queue, the version is 1: a run that the original program reads. Buried items are
    left out and counted.

    Stops at damage with code 4, unless --salvage is given.
    """
    kind = find(path, "convert", lambda kind: bool(kind.versions))
    options = options_for(kind, kind.checks.convert, {"--key-file": key_file})
    if version not in kind.versions:
        there = ", ".join(kind.versions)
        raise click.UsageError(f"--to-version {version}: {path} is {kind.title}; give {there}")
    if version in LOSSY_IN_BEATS:
        say(f"warning: {lossy_warning(version)}")

    def copy(tell: Progress) -> CopyReport:
        return convert(path, target, version, salvage=salvage, progress=tell, **options)

    return run_copy("convert", kind, path, target, copy, as_json=as_json)
