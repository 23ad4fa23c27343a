"""The command `forebay`: finds the verb, runs it, and turns every error into a line and a code.

A verb's module is imported when the verb is used, so that `forebay put` in a loop starts fast. Data
goes to stdout and messages to stderr. No error of the library or the system shows a traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
from typing import Any

import click

from forebay import __version__
from forebay.cli import exits
from forebay.cli.arguments import PATH_KEY
from forebay.cli.output import prepare_streams, say
from forebay.errors import ForebayError
from forebay.kernels import PLAIN_REASON

# The verbs by use, each with its line of help.
GROUPS = {
    "Write and read": {
        "put": "Append records from lines, files or a pipe.",
        "take": "Print what is next or due, and remove or lease it.",
        "peek": "Print what is next, without removing it.",
        "cat": "Print records, from any position.",
        "tail": "Print the last records, and follow.",
    },
    "Jobs of a deadline queue": {
        "release": "Remove leased items for good.",
        "requeue": "Return a leased item, due later.",
        "bury": "Set a leased item aside.",
        "kick": "Bring back what was set aside, also in a fifo.",
        "merge": "Merge all files of the queue into one run.",
    },
    "Inspect": {
        "ls": "List the queues of a directory.",
        "info": "Print the state of queues; takes no lock.",
        "segments": "List the files of queues.",
        "consumers": "List the consumers of a log and their lag; forget one.",
        "doctor": "Check the installation and the disk.",
    },
    "Maintain": {
        "trim": "Remove segments that every consumer has read.",
        "fsck": "Verify every byte; changes nothing.",
        "recover": "Salvage what can be read into a new queue.",
        "convert": "Copy a queue into another format version.",
    },
    "Serve and watch": {
        "serve": "Serve all queues of a directory to other processes.",
        "top": "Show the queues of a directory as a live table.",
        "metrics": "Serve their state to Prometheus.",
        "unit": "Print a unit for systemd that serves a directory.",
    },
    "Beyond one queue": {
        "archive": "Copy finished segments to object storage or a directory.",
        "forward": "Send queues to HTTP, Elasticsearch or files; lose nothing.",
        "pipeline": "Load queues into tables with Spark, and prove it.",
        "demo": "Kill a writer, flip a bit, and check what is left.",
    },
}
VERBS = {verb: text for group in GROUPS.values() for verb, text in group.items()}
# Verbs that share a module.
_MODULES = {
    **dict.fromkeys(("cat", "peek", "tail"), "cat"),
    **dict.fromkeys(("release", "requeue", "bury", "kick"), "leases"),
    **dict.fromkeys(("serve", "unit"), "serve"),
}


class VerbGroup(click.Group):
    """The verbs by name, imported late, with one place that handles their errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the module of a verb."""
        if cmd_name not in VERBS:
            return None
        shared = _MODULES.get(cmd_name)
        module = importlib.import_module(f"forebay.cli.{shared or cmd_name}")
        command: click.Command = getattr(module, cmd_name if shared else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the verbs without importing them."""
        for use, verbs in GROUPS.items():
            with formatter.section(use):
                formatter.write_dl(list(verbs.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; an error of the library becomes one line on stderr."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return exits.BROKEN_PIPE
        except (ForebayError, OSError) as error:
            say(exits.message_of(error, ctx.meta.get(PATH_KEY)))
            return exits.code_of(error)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the program and exits with the code of the verb."""
        extra["standalone_mode"] = False
        prepare_streams()
        try:
            code = super().main(*args, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            say(_text(error))
            code = error.code if isinstance(error, exits.Failure) else error.exit_code
        except click.Abort:
            say("interrupted")
            code = exits.INTERRUPTED
        except BrokenPipeError:
            code = exits.BROKEN_PIPE
        except OSError as error:
            say(f"cannot write to stdout: {error.strerror}")
            code = exits.ERROR
        _drop_output()
        sys.exit(code if isinstance(code, int) else exits.OK)


def _version_text() -> str:
    """Returns the version and, because speeds differ up to forty times, what runs the loops."""
    speed = f"plain Python, slow: {PLAIN_REASON}" if PLAIN_REASON else "compiled"
    return f"forebay {__version__} ({speed}; Python {platform.python_version()})"


def _text(error: click.ClickException) -> str:
    """Returns the error as one line; a usage error also names the help to read."""
    text = error.format_message()
    if not isinstance(error, click.UsageError):
        return text
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # Its message is the whole help.
        text = "a command is missing"
    verb = error.ctx.command_path if error.ctx is not None else "forebay"
    return f'{text.rstrip(".")}; see "{verb} --help"'


def _drop_output() -> None:
    """Discards output that cannot be written; the interpreter would report it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.help_text(),
)
@click.version_option(__version__, prog_name="forebay", message=_version_text())
def main() -> None:
    """Durable queues on the local disk.

    A queue is a directory. Data goes to stdout and messages to stderr. Tables are tab-separated
    unless stdout is a terminal, and every verb takes --json, which prints one object per line.
    """
