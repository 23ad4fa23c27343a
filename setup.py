"""Compiles the kernels, if that is possible; all else is in pyproject.toml.

The kernels are Python files that run as they are. A missing Cython, a missing compiler or a kernel
that does not compile therefore costs speed, never the installation. `FOREBAY_PURE=1` in the
environment leaves the compiling out.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/forebay/kernels")
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}


def extensions() -> list[Extension]:
    """Lists the kernels that are to be compiled."""
    if os.environ.get("FOREBAY_PURE") == "1":
        return []
    try:
        import Cython  # noqa: F401  (only whether it is there)
    except ImportError:
        warn("Cython is not installed")
        return []
    return [
        Extension(f"forebay.kernels.{path.stem}", [str(path.with_suffix(".py"))], optional=True)
        # What has no stub is not compiled.
        for path in sorted(KERNELS.glob("*.pyi"))
    ]


class BuildKernels(build_ext):
    """Compiles each kernel on its own, so that one that fails does not take the others along."""

    # Cython translates one file at a time; the compilers run beside each other.
    _translating = threading.Lock()

    def initialize_options(self) -> None:
        """Uses all cores, unless the user says how many."""
        super().initialize_options()
        self.parallel = os.cpu_count()

    def run(self) -> None:
        """Builds all of them."""
        if self.inplace or self.editable_mode:
            # If a compile fails, the twin of an older source must not be what is imported.
            for path in KERNELS.glob("*.so"):
                path.unlink()
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Builds one, or warns."""
        from Cython.Build import cythonize

        try:
            with self._translating:
                (translated,) = cythonize(
                    [ext],
                    build_dir="build/cython",
                    include_path=["src"],
                    compiler_directives=DIRECTIVES,
                    quiet=True,
                )
            ext.sources = translated.sources
            super().build_extension(ext)
        except Exception as error:  # Compilers fail in many ways; the plain file serves in all.
            warn(f"{ext.name}: {error}")


def warn(reason: str) -> None:
    """Says why a kernel stays plain Python."""
    print(f"warning: not compiled, runs as plain Python: {reason}", file=sys.stderr)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
