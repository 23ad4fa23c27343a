"""The loops over bytes, and which modules are compiled.

The modules of `MODULES` are ordinary Python files with Cython annotations: they run as they are,
and are compiled at installation if there is a C compiler. Both forms have one source and the same
tests. Next to each there is a `.pyi` with the types that its callers see. The modules in this
package know no queue and no lock, and no time but for `buffers.boot_ms`; those that hold the state
of a queue are in the package of that kind.

Either all of them are compiled or none is, because they call one another without Python in between.
If one is missing, or with `FOREBAY_PURE=1` in the environment, the plain files are loaded;
`compiled` tells which form is in use, and `PLAIN_REASON` why it is the plain one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from types import ModuleType

MODULES = (
    "forebay.kernels.buffers",
    "forebay.kernels.fflg",
    "forebay.kernels.entry",
    "forebay.kernels.beats",
    "forebay.kernels.deadline",
    "forebay.queues.log.staged",
    "forebay.queues.fifo.staged",
    "forebay.queues.deadline.schedule",
)
# What Cython would otherwise put into every module; there is no plain file for it.
SHARED = "forebay.kernels._cython_shared"


class _PlainFinder:
    """Finds the `.py` of a module before the import system finds its compiled form."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES or path is None:
            return None
        file = f"{name.rpartition('.')[2]}.py"
        return importlib.util.spec_from_file_location(name, os.path.join(path[0], file))


def _is_extension(name: str) -> bool:
    """Returns whether a module has a compiled file that this interpreter can load."""
    parts = name.split(".")[1:-1]
    folder = os.path.join(os.path.dirname(__path__[0]), *parts)
    spec = PathFinder.find_spec(name, [folder])
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


_found = [_is_extension(name) for name in (*MODULES, SHARED)]
compiled = all(_found) and os.environ.get("FOREBAY_PURE") != "1"


def _plain_reason() -> str | None:
    """Says why the plain files are in use; None if the compiled ones are."""
    if compiled:
        return None
    if os.environ.get("FOREBAY_PURE") == "1":
        return "FOREBAY_PURE=1 is set"
    if any(_found):
        return "only a part of the compiled modules is there"
    return "this installation has no compiled modules for this Python"


PLAIN_REASON = _plain_reason()
# A package in a zip file has no such files; there the import system finds the plain ones itself.
if any(_found) and not compiled:
    sys.meta_path.insert(0, _PlainFinder)
