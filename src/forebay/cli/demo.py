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
from forebay.cli.demo_records import RECORD_BYTES, Claim
from forebay.cli.output import plural, write_json

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
@click.option("--path", metavar="DIR", help="Where: a new or an empty directory.  [default: temporary]")
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
    teller.line(f"forebay {__version__}: {plural(records, 'record')} ({size:,} bytes) in {directory}")
    holds = False
    try:
        from forebay.cli.demo_story import Story

        Story(os.path.join(directory, "log"), records, seed, teller).tell()
        holds = teller.failed == 0
    finally:
        kept = keep or (teller.failed > 0)
        if not kept:
            _clean_up(directory, path)
    teller.end(time.monotonic() - started, directory if kept else None)
    return exits.OK if holds else exits.ERROR


class Teller:
    """Tells the story: lines for people, or claims as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.claims = 0
        self.failed = 0

    def line(self, text: str) -> None:
        """Tells what happens."""
        if not self.as_json:
            print(text, flush=True)

    def claim(self, claim: Claim) -> None:
        """Tells what was checked, and whether it holds."""
        self.claims += 1
        self.failed += not claim.holds
        if self.as_json:
            write_json({"claim": claim.name, "holds": claim.holds, **claim.facts})
        else:
            print(f"   {'ok    ' if claim.holds else 'FAILED'} {claim.text}", flush=True)

    def end(self, seconds: float, directory: str | None) -> None:
        """Tells the verdict."""
        if self.as_json:
            write_json({"claims": self.claims, "failed": self.failed, "seconds": round(seconds, 2)})
            return
        if self.failed:
            print(f"{self.failed} of {self.claims} claims FAILED; {seconds:.1f} s")
        else:
            print(f"all {self.claims} claims hold; {seconds:.1f} s")
        if directory is not None:
            log = os.path.join(directory, "log")
            print(f"kept: forebay info {log} | forebay fsck {log} | forebay cat {log} --json")


def _prepare(path: str | None) -> str:
    if path is None:
        return tempfile.mkdtemp(prefix="forebay-demo-")
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise exits.Failure(
            f"{path} is there and not empty; give a new directory", exits.CANNOT_CREATE
        )
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)


def _clean_up(directory: str, path: str | None) -> None:
    """Removes what the demo made: only its queue, and the directory if that is empty then."""
    shutil.rmtree(os.path.join(directory, "log"), ignore_errors=True)
    try:
        os.rmdir(directory)
    except OSError as error:
        # Somebody put something else there meanwhile: that is not ours to remove.
        raise exits.Failure(f"{directory} is left: {error.strerror}") from None
