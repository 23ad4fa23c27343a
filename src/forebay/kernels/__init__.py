"""The loops that touch every record.

Ordinary Python files with Cython annotations: they run as they are, and are compiled when the
package is installed where there is a C compiler. One source, the same tests on both.

`FOREBAY_PURE=1` in the environment loads the plain files even where compiled ones are there.
Beside each module stands a `.pyi` with the types that its callers see.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PlainFinder:
    """Finds the `.py` of a kernel before the import system finds its compiled twin."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, stem = name.rpartition(".")
        if package != __name__ or path is None:
            return None
        return importlib.util.spec_from_file_location(name, os.path.join(path[0], f"{stem}.py"))


if os.environ.get("FOREBAY_PURE") == "1":
    sys.meta_path.insert(0, _PlainFinder)
