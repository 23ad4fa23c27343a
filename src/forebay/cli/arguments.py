"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from forebay.cli.framing import OUTPUT_FRAMINGS

_Command = TypeVar("_Command", bound=Callable[..., Any])


def path_argument(command: _Command) -> _Command:
    """Adds the queue's directory."""
    return click.argument("path", type=click.Path())(command)


def json_option(command: _Command) -> _Command:
    """Adds --json."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON: one object a line, on stdout."
    )(command)


def salvage_option(command: _Command) -> _Command:
    """Adds --salvage."""
    return click.option(
        "--salvage", is_flag=True, help="Go on past damage instead of stopping with code 4."
    )(command)


def key_option(command: _Command) -> _Command:
    """Adds --key-file."""
    return click.option(
        "--key-file",
        type=click.Path(dir_okay=False),
        help="The key of an encrypted event queue: a file that only its owner can read.",
    )(command)


def framing_option(command: _Command) -> _Command:
    """Adds --framing for what is printed."""
    return click.option(
        "--framing",
        type=click.Choice(OUTPUT_FRAMINGS),
        help="What separates records: a newline (default), a NUL byte, or a big-endian u32 length "
        "before each.",
    )(command)


def parse_start(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> str | int | datetime:
    """Gives the place in a log that a text means: earliest, latest, an offset or a time."""
    if value in ("earliest", "latest"):
        return value
    if value.isascii() and value.isdigit():
        return int(value)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither earliest, latest, an offset nor a time such as "
            "2026-11-01T09:00 or 2026-11-01T09:00:00Z"
        ) from None


def parse_optional_start(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | int | datetime | None:
    """Gives the same, and None if nothing was given."""
    return None if value is None else parse_start(context, parameter, value)
