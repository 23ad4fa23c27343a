"""The settings of an ingest in a TOML file: the parameters of `ingest`, each by its name.

Relative paths in `source` and `out` are taken from the directory of the file, so that it means the
same wherever the program is started.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from typing import Any

from forebay.errors import InvalidOption
from forebay.pipelines.ingestion import ingest

# What only a program can give.
_NOT_IN_A_FILE = ("spark", "on_progress", "stop")


def known_settings() -> list[str]:
    """Names what a file may set."""
    return [name for name in inspect.signature(ingest).parameters if name not in _NOT_IN_A_FILE]


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the arguments for `ingest` that a file holds; raises `InvalidOption`."""
    try:
        with open(path, "rb") as file:
            settings = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{os.fspath(path)} is not TOML: {error}") from None
    known = known_settings()
    for name in settings:
        if name not in known:
            raise InvalidOption(
                f"{os.fspath(path)}: {name!r} is unknown; there are: {', '.join(known)}"
            )
    for name in ("source", "out"):
        if name not in settings:
            raise InvalidOption(f"{os.fspath(path)}: {name} is missing")
        settings[name] = _beside(os.path.dirname(os.path.abspath(path)), settings[name])
    return settings


def _beside(directory: str, value: Any) -> Any:
    """Makes relative paths begin at a directory; leaves what is no path to those who check it."""
    if isinstance(value, list):
        return [_beside(directory, one) for one in value]
    if isinstance(value, str) and value and "://" not in value and not value.startswith("file:"):
        return os.path.join(directory, value)
    return value
