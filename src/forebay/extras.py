"""Libraries that not every installation has, and the extra that brings each.

A base installation has what logs, fifos, deadline queues and the command line need. What only some
users need comes with an extra: `pip install "forebay[beats]"`. A module that uses such a library
takes it from here. If it is missing, the import goes well and the first use raises `NotInstalled`,
so that a directory can be listed, recognised and described without it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from forebay.errors import NotInstalled


class Missing(ModuleType):
    """In place of a library that is not installed: whatever is asked of it raises."""

    def __init__(self, name: str, extra: str) -> None:
        super().__init__(name)
        self._extra = extra

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):
            # The import system and debuggers ask for these.
            raise AttributeError(attribute)
        raise _not_installed(self.__name__, self._extra)


def optional(name: str, extra: str) -> ModuleType:
    """Imports a library, or returns a stand-in that names the extra when it is used."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return Missing(name, extra)


def require(name: str, extra: str) -> None:
    """Raises `NotInstalled` if a library is missing, before anything depends on it."""
    if isinstance(optional(name, extra), Missing):
        raise _not_installed(name, extra)


def _not_installed(name: str, extra: str) -> NotInstalled:
    package = name.partition(".")[0]
    return NotInstalled(f'{package} is needed here: pip install "forebay[{extra}]"')
