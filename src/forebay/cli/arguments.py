"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from forebay.cli.framing import OUTPUT_FRAMINGS
from forebay.cli.output import check_stdout
from forebay.formats.deadline.items import BURIED_BIT, ID_MAX

_Command = TypeVar("_Command", bound=Callable[..., Any])
# A number in this range is a time of 1973 to 5138 if it is in seconds, and before 1973 if it is in
# milliseconds.
_SECONDS_MIN = 10**8
_SECONDS_MAX = 10**11
# Where the context keeps the path, for errors that do not name one.
PATH_KEY = "forebay.path"


def path_argument(command: _Command) -> _Command:
    """Adds the queue's directory."""
    # The queue reports a path that it cannot read: that is not a mistake in the command line.
    path = click.Path(readable=False)
    return click.argument("path", type=path, callback=_remember)(command)


def paths_argument(command: _Command) -> _Command:
    """Adds the directories of one or more queues."""
    path = click.Path(readable=False)
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=path)(command)


def target_option(command: _Command) -> _Command:
    """Adds --to, the target of a copy."""
    return click.option(
        "--to",
        "target",
        required=True,
        metavar="DIR",
        help="The new queue: a new path, or an empty directory.",
    )(command)


def count_option(default: int | None, *, least: int = 1) -> Callable[[_Command], _Command]:
    """Returns a decorator that adds -n."""
    return click.option(
        "-n",
        "--count",
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        help="The most records to print.",
    )


def consumer_option(command: _Command) -> _Command:
    """Adds --consumer."""
    return click.option(
        "--consumer",
        metavar="NAME",
        help="Log: the consumer to read as; a new one starts at the oldest record.",
    )(command)


def wait_option(command: _Command) -> _Command:
    """Adds --wait."""
    return click.option(
        "--wait",
        type=float,
        callback=check_seconds,
        metavar="SECONDS",
        help="How long to wait while another process owns the queue.  [default: 0]",
    )(command)


def json_option(command: _Command) -> _Command:
    """Adds --json; if stdout cannot be written, the verb fails before it changes anything."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_check_output,
        help="Print JSON on stdout, one object per line.",
    )(command)


def salvage_option(command: _Command) -> _Command:
    """Adds --salvage."""
    return click.option(
        "--salvage", is_flag=True, help="Skip damage instead of stopping with code 4."
    )(command)


def key_option(command: _Command) -> _Command:
    """Adds --key-file."""
    return click.option(
        "--key-file",
        type=click.Path(dir_okay=False, readable=False),
        help="The key of an encrypted Beats queue: a file that only its owner may read.",
    )(command)


def framing_option(command: _Command) -> _Command:
    """Adds --framing for the output."""
    return click.option(
        "--framing",
        type=click.Choice(OUTPUT_FRAMINGS),
        help="What separates records: a newline (default), a NUL byte, or a big-endian u32 length "
        "before each.",
    )(command)


def due_options(command: _Command) -> _Command:
    """Adds --delay and --deadline, which exclude each other."""
    command = click.option(
        "--deadline",
        callback=_parse_deadline,
        metavar="WHEN",
        help="Deadline: when the items are due, in ms since 1970 or as a time with a zone, such as "
        "2026-11-01T09:00Z.",
    )(command)
    return click.option(
        "--delay",
        type=float,
        callback=check_seconds,
        metavar="SECONDS",
        help="Deadline: in how many seconds the items are due.",
    )(command)


def check_seconds(
    _context: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    """Rejects a value that is not a number of seconds, or that leads past the last deadline."""
    if value is not None and not 0 <= value < 10.0**11:
        raise click.BadParameter(f"{value} is not a number of seconds, 0 or more")
    return value


def check_due(delay: float | None, deadline: int | None) -> None:
    """Rejects --delay together with --deadline."""
    if delay is not None and deadline is not None:
        raise click.UsageError("--delay and --deadline exclude each other")


def token_argument(command: _Command) -> _Command:
    """Adds a token, as `take --lease` prints it for an item."""
    return click.argument("token", callback=_parse_token)(command)


def tokens_argument(command: _Command) -> _Command:
    """Adds one or more tokens."""
    return click.argument(
        "tokens", nargs=-1, required=True, metavar="TOKEN...", callback=_parse_tokens
    )(command)


def conf_option(command: _Command) -> _Command:
    """Adds --conf, as `conf`: settings of Spark by name."""
    return click.option(
        "--conf",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parse_settings,
        help="A setting of Spark, such as spark.executor.memory=512m; may be repeated.",
    )(command)


def parse_place(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | int | datetime | None:
    """Returns the place in a log that a text names: earliest, latest, an offset or a time."""
    if value in (None, "earliest", "latest"):
        return value
    if value.isascii() and value.isdigit():
        return int(value)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not earliest, latest, an offset or a time such as "
            "2026-11-01T09:00 or 2026-11-01T09:00:00Z"
        ) from None


def _parse_settings(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        name, found, setting = value.partition("=")
        if not found or not name.startswith("spark."):
            raise click.BadParameter(f"{value!r} is not of the form spark.NAME=VALUE")
        settings[name] = setting
    return settings


def _check_output(_context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    if value:
        check_stdout()
    return value


def _remember(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.meta[PATH_KEY] = value
    return value


def _parse_token(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> tuple[int, int]:
    """Returns the id and count of a token."""
    id, _, count = value.partition(".")
    if not (_is_number(id) and _is_number(count) and int(id) <= ID_MAX and int(count) > 0):
        raise click.BadParameter(
            f'{value!r} is not a token: give ID.COUNT, as "forebay take --lease" prints it'
        )
    return int(id), int(count)


def _parse_tokens(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[int, int]]:
    return [_parse_token(context, parameter, value) for value in values]


def _parse_deadline(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | None:
    if value is None:
        return None
    time_ms = int(value) if _is_number(value) else _time_ms(value)
    if _is_number(value) and _SECONDS_MIN <= time_ms < _SECONDS_MAX:
        raise click.BadParameter(
            f"{value} looks like seconds since 1970; give milliseconds, or a time with a zone"
        )
    if not 0 <= time_ms < BURIED_BIT:
        raise click.BadParameter(f"{value} is not within the years 1970 to 6429")
    return time_ms


def _time_ms(value: str) -> int:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            f"{value!r} is neither ms since 1970 nor a time with a zone, such as "
            "2026-11-01T09:00Z or 2026-11-01T09:00+01:00"
        )
    return round(moment.timestamp() * 1000)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
