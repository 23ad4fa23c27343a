"""Compiles the modules that have a stub beside them; all else is in pyproject.toml.

They are Python files that run as they are, so a missing Cython, a missing compiler or a module that
does not compile costs speed, never the installation. All are compiled or none is: they call one
another without Python in between, and a mixture would not fit together. A wheel without compiled
modules is named `none-any`, so that it is never taken for a fast one. In the environment,
`FOREBAY_PURE=1` leaves the compiling out, and `FOREBAY_COMPILE=1` ends a build that cannot compile.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
# What Cython puts into every module otherwise, once for all of them.
SHARED = "forebay.kernels._cython_shared"
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    # Some calls are atomic only because of the interpreter's lock.
    "freethreading_compatible": False,
}


def extensions() -> list[Extension]:
    """Lists the modules that are to be compiled, and the one that they share."""
    if os.environ.get("FOREBAY_PURE") == "1":
        return []
    try:
        import Cython  # noqa: F401  (only whether it is there)
    except ImportError:
        warn("Cython is not installed")
        return []
    sources = [stub.with_suffix(".py") for stub in sorted(SOURCE.rglob("*.pyi"))]
    found = [extension(module_of(source), source) for source in sources]
    return [*found, extension(SHARED, Path(*SHARED.split(".")).with_suffix(".c"))]


def extension(name: str, source: Path) -> Extension:
    """Describes one module; debug symbols would be most of its size."""
    return Extension(name, [str(source)], extra_compile_args=["-g0"], extra_link_args=["-Wl,-s"])


def module_of(source: Path) -> str:
    """Returns the name that a source file is imported by."""
    return ".".join(source.relative_to(SOURCE).with_suffix("").parts)


class BuildAllOrNone(build_ext):
    """Compiles all modules, or says why none is compiled."""

    extensions: list[Extension]

    def initialize_options(self) -> None:
        """Uses all cores, unless the user says how many."""
        super().initialize_options()
        self.parallel = os.cpu_count()

    def run(self) -> None:
        """Builds all of them."""
        if self.inplace or self.editable_mode:
            # If a compile fails, what was compiled from older sources must not be imported.
            for path in SOURCE.rglob("*.so"):
                path.unlink()
        super().run()

    def build_extensions(self) -> None:
        """Builds all of them, or warns and leaves none."""
        try:
            self._try_compiler()
            self._translate()
            super().build_extensions()
        except Exception as error:  # Compilers fail in many ways; the plain files serve in all.
            if os.environ.get("FOREBAY_COMPILE") == "1":
                raise
            warn(" ".join(str(error).split()))
            for each in self.extensions:
                Path(self.get_ext_fullpath(each.name)).unlink(missing_ok=True)
            self.extensions = []
            self.distribution.ext_modules = []

    def _try_compiler(self) -> None:
        """Compiles one line. To translate all sources for a compiler that is not there is slow."""
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch, "try.c")
            source.write_text("#include <Python.h>\n")
            include = [sysconfig.get_path("include")]
            self.compiler.compile([str(source)], output_dir=scratch, include_dirs=include)

    def _translate(self) -> None:
        """Runs Cython to write the C sources."""
        from Cython.Build import cythonize

        translated = cythonize(
            self.extensions,
            nthreads=os.cpu_count() or 1,
            build_dir="build/cython",
            include_path=[str(SOURCE)],
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=SHARED,
            quiet=True,
        )
        sources = {each.name: each.sources for each in translated}
        for each in self.extensions:
            each.sources = sources[each.name]

    def build_extension(self, ext: Extension) -> None:
        """Builds one; an error names it."""
        try:
            super().build_extension(ext)
        except Exception as error:
            raise RuntimeError(f"{ext.name}: {error}") from error


class HonestWheel(bdist_wheel):
    """Names a wheel without compiled modules `none-any`."""

    def run(self) -> None:
        """Builds first: only then it is known whether anything is compiled."""
        self.run_command("build")
        if not self.distribution.ext_modules:
            self.root_is_pure = True
        super().run()


def warn(reason: str) -> None:
    """Says why nothing is compiled."""
    print(f"warning: nothing is compiled, plain Python runs instead: {reason}", file=sys.stderr)


setup(ext_modules=extensions(), cmdclass={"bdist_wheel": HonestWheel, "build_ext": BuildAllOrNone})
