"""The command `forebay`: finds the verb, runs it, and turns every error into a line and a code.

A verb's module is imported when the verb is used, so that `forebay put` in a loop starts fast.
Data goes to stdout, talk to stderr. No error of the library or the system shows a traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

import click

from forebay import __version__
from forebay.cli import exits
from forebay.cli.output import say
from forebay.errors import ForebayError

VERBS = {
    "put": "Append records from lines, files or a pipe.",
    "cat": "Print records, from any place on.",
    "take": "Print what is next or due, and remove it, or lease it.",
    "release": "Take leased items away for good.",
    "requeue": "Give a leased item back, due later.",
    "bury": "Put a leased item aside.",
    "kick": "Make buried items pending again.",
    "peek": "Print what a fifo or a deadline queue gives next; it stays.",
    "tail": "Print the last records, and follow.",
    "info": "Tell the state of a queue; needs no lock.",
    "segments": "List the segment files.",
    "consumers": "List the consumers and their lag; forget one.",
    "trim": "Remove segments that every consumer has read.",
    "merge": "Make one run of all that a deadline queue has.",
    "fsck": "Verify every byte; changes nothing.",
    "recover": "Salvage what can be read into a new queue.",
    "convert": "Copy a Beats queue into another version.",
    "pipeline": "Bring queues into tables on Spark, and prove it.",
    "doctor": "Check the installation and the disk.",
    "demo": "Kill a writer, flip a bit, and check what is left.",
}


class VerbGroup(click.Group):
    """The verbs by name, imported late, with one place for their errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the module of a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"forebay.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; an error of the library becomes one line on stderr."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            return exits.BROKEN_PIPE
        except (ForebayError, OSError) as error:
            say(exits.message_of(error))
            return exits.code_of(error)
        return result

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the program and ends it with the verb's exit code."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except click.UsageError as error:
            error.show()
            code = error.exit_code
        except exits.Failure as error:
            say(error.format_message())
            code = error.code
        except click.ClickException as error:
            say(error.format_message())
            code = error.exit_code
        except click.Abort:
            say("interrupted")
            code = exits.INTERRUPTED
        sys.exit(code if isinstance(code, int) else exits.OK)


def _drop_output() -> None:
    """Sends what is still buffered nowhere, or the interpreter would complain at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.help_text(),
)
@click.version_option(__version__, prog_name="forebay", message="%(prog)s %(version)s")
def main() -> None:
    """Durable queues on the local disk.

    A queue is a directory. Data goes to stdout and talk to stderr; tables are tab-separated when
    they are not on a terminal, and every verb knows --json: one object a line.
    """
