"""`forebay demo`: kills its own writer, flips a bit, trims, and proves its claims each time."""

from __future__ import annotations

import os
import shutil
import tempfile
import time

import click

from forebay import __version__
from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.demo_records import RECORD_BYTES
from forebay.cli.demo_story import Story, WriterFailed
from forebay.cli.demo_teller import Teller
from forebay.cli.output import plural

_RECORDS_MIN = 2_000


@click.command("demo")
@click.option(
    "--records",
    type=click.IntRange(min=_RECORDS_MIN),
    default=1_000_000,
    show_default=True,
    help=f"How many records of {RECORD_BYTES} bytes to write.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--path", metavar="DIR", help="Where: a new or an empty directory.  [default: temporary]"
)
@click.option("--keep", is_flag=True, help="Leave the queue there to look at.")
@json_option
def command(records: int, seed: int, path: str | None, keep: bool, as_json: bool) -> int:
    """Write a million records, kill the writer in the middle with SIGKILL, and recover.

    Then prove that nothing acknowledged is missing, flip a bit and read round it, and trim. Each
    claim is checked on the bytes that are read back; code 1 if one does not hold. With --json each
    claim is an object, and a summary ends it.
    """
    directory = _prepare(path)
    teller = Teller(as_json)
    started = time.monotonic()
    size = records * RECORD_BYTES
    teller.line(
        f"forebay {__version__}: {plural(records, 'record')} ({size:,} bytes) in {directory}"
    )
    holds = False
    try:
        Story(os.path.join(directory, "log"), records, seed, teller).tell()
        holds = teller.failed == 0
    except WriterFailed as error:
        raise exits.Failure(str(error)) from None
    finally:
        kept = keep or teller.failed > 0
        if not kept:
            _clean_up(directory)
    teller.end(time.monotonic() - started, directory if kept else None)
    return exits.OK if holds else exits.ERROR


def _prepare(path: str | None) -> str:
    if path is None:
        return tempfile.mkdtemp(prefix="forebay-demo-")
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise exits.Failure(
            f"{path} is there and not empty; give a new directory", exits.CANNOT_CREATE
        )
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)


def _clean_up(directory: str) -> None:
    """Removes what the demo made: only its queue, and the directory if that is empty then."""
    shutil.rmtree(os.path.join(directory, "log"), ignore_errors=True)
    try:
        os.rmdir(directory)
    except OSError as error:
        # Somebody put something else there meanwhile: that is not ours to remove.
        raise exits.Failure(f"{directory} is left: {error.strerror}") from None
