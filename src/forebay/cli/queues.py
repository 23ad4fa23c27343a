"""What the verbs need to work on a queue of any kind: its kind, its options, its lock."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from forebay.cli import exits
from forebay.cli.interrupts import Interrupts
from forebay.cli.output import Bar, say
from forebay.cli.waiting import LOOK_SECONDS, wait_for_lock
from forebay.client.finding import is_served
from forebay.errors import ForebayError, Locked
from forebay.queues.kinds import KINDS, ORIGINAL, Kind, sure_kind_of
from forebay.queues.shared.reports import Progress

_Opened = TypeVar("_Opened")


def find(path: str, verb: str, able: Callable[[Kind], bool]) -> Kind:
    """Returns the kind of the queue at a path; rejects one that the verb does not apply to."""
    kind = sure_kind_of(path)
    if able(kind):
        return kind
    *others, last = (other.title for other in KINDS if able(other))
    meant = f"{', '.join(others)} or {last}" if others else last
    text = f'"{verb}" is for {meant}; {path} is {kind.title}'
    if kind is ORIGINAL:
        text += ': "forebay recover" copies them into a queue'
    raise click.UsageError(text)


def offers(name: str) -> Callable[[Kind], bool]:
    """Returns a test of whether a kind's package has a function."""
    return lambda kind: hasattr(kind.checks, name) or hasattr(kind.records, name)


def has_consumers(kind: Kind) -> bool:
    """Returns whether a kind has named consumers."""
    return kind.has_consumers


def options_for(
    kind: Kind, function: Callable[..., object], given: Mapping[str, object]
) -> dict[str, Any]:
    """Returns the options that were given; rejects any that the kind's function does not take."""
    known = inspect.signature(function).parameters
    options = {}
    for flag, value in given.items():
        name = flag.removeprefix("--").replace("-", "_")
        if value is None or value is False:
            continue
        if name not in known:
            refuse(kind, flag)
        options[name] = value
    return options


def refuse(kind: Kind, flag: str) -> None:
    """Rejects an option that does not apply to a kind."""
    raise click.UsageError(f"{flag} does not apply to {kind.title}")


def need_consumer(kind: Kind, verb: str, consumer: str | None) -> None:
    """Requires --consumer for a kind that is read by name."""
    if kind.has_consumers and consumer is None:
        raise click.UsageError(f'"{verb}" needs --consumer NAME for {kind.title}')


def open_waiting(
    path: str,
    open_queue: Callable[[], _Opened],
    wait: float | None,
    interrupts: Interrupts | None = None,
) -> _Opened:
    """Opens the queue at a path; tries again for `wait` seconds while another process owns it.

    `interrupts`: the guard that the caller has set; it delivers signals while this waits.
    """
    until = time.monotonic() + (wait or 0)
    while True:
        try:
            return open_queue()
        except Locked:
            left = until - time.monotonic()
            if left <= 0:
                raise
        with contextlib.nullcontext() if interrupts is None else interrupts.waiting():
            if not wait_for_lock(path, left):
                # It is not the lock of the directory: a Beat has one of its own.
                time.sleep(min(left, LOOK_SECONDS))


def open_for(
    kind: Kind,
    path: str,
    wait: float | None,
    interrupts: Interrupts | None = None,
    *,
    owner: Mapping[str, Any],
    **options: Any,
) -> Any:
    """Opens the queue for a verb: shared if a server has it, otherwise as its owner.

    `owner`: options that this program chooses as an owner; `options` are those of the user.
    """

    def open_now() -> Any:
        if is_served(path):
            return kind.open_queue(path, shared=True, **options)
        return kind.open_queue(path, **{**owner, **options})

    return open_waiting(path, open_now, wait, interrupts)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Shows a bar; Ctrl-C and SIGTERM take effect when progress is reported."""
    with Interrupts() as interrupts, Bar(label) as bar:

        def tell(done: int, total: int | None) -> None:
            interrupts.check()
            bar.update(done, total=total)

        yield tell


def for_each(paths: Sequence[str], action: Callable[[str], int]) -> int:
    """Runs an action for each path; an error at one does not stop the next.

    Returns the first code that is not 0.
    """
    if len(paths) == 1:
        return action(paths[0])
    codes = []
    for path in paths:
        try:
            codes.append(action(path))
        except exits.Failure as error:
            say(error.format_message())
            codes.append(error.code)
        except BrokenPipeError:
            raise
        except (ForebayError, OSError) as error:
            say(exits.message_of(error, path))
            codes.append(exits.code_of(error))
    return next((code for code in codes if code), exits.OK)
