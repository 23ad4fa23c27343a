"""The configuration of `forebay serve`: a TOML file with limits, queues, and who may use them.

    [limits]
    clients = 200

    [queues.jobs]
    kind = "fifo"
    sync = "interval"
    allow = { write = ["www-data"], take = [1001] }

What a queue is called, what kind it is, and its options are those of `forebay.Root`. A queue that
is in the file has what the file says; others keep what they were defined with.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption
from forebay.queues.kinds import kind_named
from forebay.queues.root import Definition
from forebay.queues.shared.options import make_options
from forebay.serve.access import Access, read_users
from forebay.serve.limits import Limits


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says."""

    limits: Limits = field(default_factory=Limits)
    queues: Mapping[str, Definition] = field(default_factory=dict)
    access: Access = field(default_factory=lambda: Access({}))


def read_config(path: str) -> Config:
    """Reads a file; raises `InvalidOption`, which names the file and what is wrong in it."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        for name in document:
            if name not in ("limits", "queues"):
                raise InvalidOption(f"{name}: there are [limits] and [queues.NAME]")
        queues = _table("queues", document.get("queues", {}))
        return Config(
            Limits.of(_table("limits", document.get("limits", {}))),
            {name: _definition(name, queue) for name, queue in queues.items()},
            Access(
                {name: read_users(name, each.get("allow", {})) for name, each in queues.items()}
            ),
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidOption) as error:
        raise InvalidOption(f"{path}: {error}") from None


def _definition(name: str, given: Any) -> Definition:
    options = dict(_table(f"queues.{name}", given))
    options.pop("allow", None)
    kind = options.pop("kind", None)
    if not isinstance(kind, str):
        raise InvalidOption(f"[queues.{name}] kind = {kind!r}: must be given")
    if "background" in options:
        raise InvalidOption(f"[queues.{name}] background: the server does that work")
    try:
        make_options(kind_named(kind).options_class, options)
    except InvalidOption as error:
        raise InvalidOption(f"[queues.{name}] {error}") from None
    return Definition(kind, options)


def _table(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidOption(f"{name} = {given!r}: must be a table")
    return given
