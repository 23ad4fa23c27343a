"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from forebay.cli.framing import OUTPUT_FRAMINGS
from forebay.formats.deadline.items import BURIED_BIT, ID_MAX

_Command = TypeVar("_Command", bound=Callable[..., Any])
# A number between them is a time of 1973 to 5138 in seconds, and one before 1973 in milliseconds.
_SECONDS_MIN = 10**8
_SECONDS_MAX = 10**11
# Where the context keeps the path, for errors that do not say where they happened.
PATH_KEY = "forebay.path"


def path_argument(command: _Command) -> _Command:
    """Adds the queue's directory."""
    # Whether it can be read, the queue says: a path that cannot is no mistake of the command line.
    path = click.Path(readable=False)
    return click.argument("path", type=path, callback=_remember)(command)


def paths_argument(command: _Command) -> _Command:
    """Adds the directories of one queue or more."""
    path = click.Path(readable=False)
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=path)(command)


def target_option(command: _Command) -> _Command:
    """Adds --to, the place of a copy."""
    return click.option(
        "--to",
        "target",
        required=True,
        metavar="DIR",
        help="The new queue: not there yet, or empty.",
    )(command)


def count_option(default: int | None, *, least: int = 1) -> Callable[[_Command], _Command]:
    """Returns what adds -n."""
    return click.option(
        "-n",
        "--count",
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        help="How many at most.",
    )


def consumer_option(command: _Command) -> _Command:
    """Adds --consumer."""
    return click.option(
        "--consumer",
        metavar="NAME",
        help="Log: whose next records; one that is new begins with the oldest.",
    )(command)


def wait_option(command: _Command) -> _Command:
    """Adds --wait."""
    return click.option(
        "--wait",
        type=float,
        callback=check_seconds,
        metavar="SECONDS",
        help="Wait so long for the queue if another process owns it.  [default: 0]",
    )(command)


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
        type=click.Path(dir_okay=False, readable=False),
        help="The key of an encrypted Beats queue: a file that only its owner can read.",
    )(command)


def framing_option(command: _Command) -> _Command:
    """Adds --framing for what is printed."""
    return click.option(
        "--framing",
        type=click.Choice(OUTPUT_FRAMINGS),
        help="What separates records: a newline (default), a NUL byte, or a big-endian u32 length "
        "before each.",
    )(command)


def due_options(command: _Command) -> _Command:
    """Adds --delay and --deadline, of which one may be given."""
    command = click.option(
        "--deadline",
        callback=_parse_deadline,
        metavar="WHEN",
        help="Deadline: when it is due: ms since 1970, or a time with its zone such as "
        "2026-11-01T09:00Z.",
    )(command)
    return click.option(
        "--delay",
        type=float,
        callback=check_seconds,
        metavar="SECONDS",
        help="Deadline: in how many seconds it is due.",
    )(command)


def check_seconds(
    _context: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    """Refuses what is not a number of seconds, and what leads past the last deadline."""
    if value is not None and not 0 <= value < 10.0**11:
        raise click.BadParameter(f"{value} is not a number of seconds, 0 or more")
    return value


def check_due(delay: float | None, deadline: int | None) -> None:
    """Refuses both of --delay and --deadline."""
    if delay is not None and deadline is not None:
        raise click.UsageError("--delay and --deadline exclude each other")


def token_argument(command: _Command) -> _Command:
    """Adds a token: what `take --lease` prints of an item."""
    return click.argument("token", callback=_parse_token)(command)


def tokens_argument(command: _Command) -> _Command:
    """Adds one token or more."""
    return click.argument(
        "tokens", nargs=-1, required=True, metavar="TOKEN...", callback=_parse_tokens
    )(command)


def parse_start(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> str | int | datetime:
    """Returns the place in a log that a text means: earliest, latest, an offset or a time."""
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
    """Returns the same, and None if nothing was given."""
    return None if value is None else parse_start(context, parameter, value)


def _remember(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.meta[PATH_KEY] = value
    return value


def _parse_token(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> tuple[int, int]:
    """Returns id and count of a token."""
    id, _, count = value.partition(".")
    if not (_is_number(id) and _is_number(count) and int(id) <= ID_MAX and int(count) > 0):
        raise click.BadParameter(
            f'{value!r} is not a token: it is ID.COUNT, as "forebay take --lease" prints it'
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
            f"{value} looks like seconds since 1970; give milliseconds, or a time with its zone"
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
            f"{value!r} is neither ms since 1970 nor a time with its zone such as "
            "2026-11-01T09:00Z or 2026-11-01T09:00+01:00"
        )
    return round(moment.timestamp() * 1000)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
