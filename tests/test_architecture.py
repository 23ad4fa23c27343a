"""Which module may know which, and who may touch the disk."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, Source, python_files

# Of `./test --check` and the longer tiers.
pytestmark = pytest.mark.slow

# From the bottom up. A module may import what stands in a row below its own, and its own name.
# Siblings in a row do not know one another.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "damage", "clock", "extras"),
    ("kernels",),
    ("formats", "storage", "wire"),
    ("queues",),
    ("__init__",),
    ("aio", "exchange", "logging"),
    ("serve", "client", "forward"),
    ("tables",),
    ("spark",),
    ("pipelines", "pyspark_forebay"),
    ("cli",),
    ("__main__",),
)
# What lies beside the package in the repository, and is not installed with it.
NOT_INSTALLED = ("benchmarks", "examples", "tests", "tools")
# The words of the bottom row are one vocabulary: an error carries a Damage.
VOCABULARY = LAYERS[0]
RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}
# Annotations here name classes of the public face, which is imported when somebody evaluates them.
ANNOTATED = {"src/forebay/queues/opening.py", "src/forebay/queues/root.py"}

# Folders in which each kind of queue has a room of its own, as a package or as a module.
_KINDS = ("beats", "deadline", "fifo", "log")
ROOMS = {
    "forebay/queues": _KINDS,
    "forebay/spark/kinds": _KINDS,
    "forebay/formats": ("beats", "deadline", "entry", "fflg"),
}

# Codecs and protocols are bytes in, values out: no I/O, no threads, no clock.
PURE_UNITS = ("formats", "wire")
IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "selectors", "socket", "ssl", "subprocess"),
    *("threading", "time", "forebay.clock"),
}

# In these, only the door may touch the disk: the tests put another file system behind it.
DOOR = "src/forebay/storage/filesystem.py"
BEHIND_THE_DOOR = ("kernels", "formats", "storage", "queues")
# Public names of higher layers, which the face names for type checkers and imports at first use.
PUBLIC_ABOVE = {"forebay.forward.manager.OutputManager"}
DISK_MODULES = {"fcntl", "glob", "mmap", "shutil", "tempfile"}
DISK_FUNCTIONS = {
    "os": {
        *("open", "fdopen", "close", "dup", "lseek", "read", "readv", "pread", "preadv"),
        *("write", "writev", "pwrite", "pwritev", "sendfile", "splice", "copy_file_range"),
        *("sync", "fsync", "fdatasync", "truncate", "ftruncate"),
        *("posix_fallocate", "posix_fadvise", "rename", "renames", "replace", "link", "symlink"),
        *("unlink", "remove", "mkdir", "makedirs", "rmdir", "removedirs", "mkfifo", "mknod"),
        *("listdir", "scandir", "walk", "fwalk", "stat", "lstat", "fstat", "statvfs", "fstatvfs"),
        *("access", "chmod", "fchmod", "chown", "fchown", "utime", "readlink", "memfd_create"),
    },
    "os.path": {
        *("exists", "lexists", "isfile", "isdir", "islink", "ismount"),
        *("getsize", "getmtime", "getatime", "getctime", "realpath", "samefile"),
    },
    "io": {"open", "FileIO", "open_code"},
    "builtins": {"open"},
}
PATH_METHODS = {"iterdir", "read_bytes", "read_text", "write_bytes", "write_text", "rglob"}


def unit_of(path: str) -> str:
    """Names the row's entry that a file belongs to."""
    package, _, inner = path.removeprefix("src/").partition("/")
    return inner.partition("/")[0].removesuffix(".py") if package == "forebay" else package


def imported_modules(source: Source) -> Iterator[tuple[int, str]]:
    """Yields line and absolute name of every import, those inside functions too."""
    package = source.path.removeprefix("src/").split("/")[:-1]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def unit_of_module(name: str) -> str | None:
    """Names the entry that an imported module belongs to; None if it is not ours."""
    package, *inner = name.split(".")
    if package == "forebay":
        # `from forebay import Log` takes a public name, `from forebay import errors` a module.
        return inner[0] if inner and inner[0] in RANKS else "__init__"
    # `logging` is also a module of Python.
    return package if package in RANKS and package != "logging" else None


def upward_imports(source: Source) -> list[str]:
    """Lists the imports that do not point down."""
    unit = unit_of(source.path)
    if unit not in RANKS:
        return [f"{source.path}:1: {unit!r} has no place in LAYERS"]
    found = []
    for line, name in imported_modules(source):
        if name.partition(".")[0] in NOT_INSTALLED:
            found.append(f"{source.path}:{line}: {name} is not installed with the package")
        other = unit_of_module(name)
        if name == "forebay" and source.path in ANNOTATED:
            continue
        if unit == "__init__" and name in PUBLIC_ABOVE:
            continue
        if other is None or other == unit or (unit in VOCABULARY and other in VOCABULARY):
            continue
        if RANKS[other] >= RANKS[unit]:
            found.append(f"{source.path}:{line}: {unit} may not import {name}")
    return found


def imports_of_other_rooms(source: Source) -> list[str]:
    """Lists the imports of one room into another: what two rooms need stands in what they share."""
    found = []
    for line, name in imported_modules(source):
        for house in ROOMS:
            room, other = room_of(source.path, house), room_of(name.replace(".", "/"), house)
            if room and other and room != other:
                found.append(f"{source.path}:{line}: room {room} may not import {name}")
    return found


def room_of(path: str, house: str) -> str | None:
    """Names the room of a module in a house; None for what is shared, or elsewhere."""
    inner = path.removeprefix("src/").removeprefix(f"{house}/")
    name = inner.partition("/")[0].removesuffix(".py")
    return name if inner != path.removeprefix("src/") and name in ROOMS[house] else None


def impure_imports(source: Source) -> list[str]:
    """Lists the imports that bring I/O, threads or the time into a codec."""
    if unit_of(source.path) not in PURE_UNITS:
        return []
    return [
        f"{source.path}:{line}: a codec may not import {name}"
        for line, name in imported_modules(source)
        if name in IMPURE_MODULES
        or name.partition(".")[0] in IMPURE_MODULES
        or name.rpartition(".")[0] in IMPURE_MODULES
    ]


def disk_calls(source: Source) -> list[str]:
    """Lists the calls that go past the door."""
    if source.path == DOOR or unit_of(source.path) not in BEHIND_THE_DOOR:
        return []
    aliases = module_aliases(source.tree)
    found = []
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = qualified_name(node.func, aliases)
            module, _, function = name.rpartition(".")
            if (
                module in DISK_MODULES
                or function in DISK_FUNCTIONS.get(module, ())
                or (isinstance(node.func, ast.Attribute) and function in PATH_METHODS)
            ):
                found.append(f"{source.path}:{node.lineno}: {name}() goes past {DOOR}")
    return found


def module_aliases(tree: ast.Module) -> dict[str, str]:
    """Maps the names that imports bind to what they stand for."""
    aliases = {"open": "builtins.open"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return aliases


def qualified_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """Returns the dotted name of what is called, with aliases replaced."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{qualified_name(node.value, aliases)}.{node.attr}"
    return "?"


def test_imports_point_down_only() -> None:
    found = [text for source in python_files("src") for text in upward_imports(source)]

    assert not found, "\n".join(found)


def test_a_room_imports_no_other_room() -> None:
    found = [text for source in python_files("src") for text in imports_of_other_rooms(source)]

    assert not found, "\n".join(found)


def test_codecs_and_protocols_know_no_io_threads_or_clock() -> None:
    found = [text for source in python_files("src") for text in impure_imports(source)]

    assert not found, "\n".join(found)


def test_only_the_file_system_module_touches_the_disk() -> None:
    found = [text for source in python_files("src") for text in disk_calls(source)]

    assert not found, "\n".join(found)


def test_importing_forebay_imports_no_heavy_library() -> None:
    program = (
        "import sys, forebay; "
        "heavy = {'asyncio', 'concurrent', 'pyspark', 'pyarrow', 'click', 'rich', 'pandas'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )

    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/forebay/errors.py", "import forebay.kernels.fflg"),
        ("src/forebay/kernels/fflg.py", "from forebay.formats import fflg"),
        ("src/forebay/formats/fflg.py", "from forebay.storage.segments import Segments"),
        ("src/forebay/formats/fflg.py", "from ..storage import segments"),
        ("src/forebay/storage/segments.py", "from .. import wire"),
        ("src/forebay/queues/log/queue.py", "def late():\n    from forebay import Fifo"),
        ("src/forebay/queues/log/queue.py", "import forebay"),
        ("src/forebay/__init__.py", "from forebay import aio"),
        ("src/forebay/serve/server.py", "import forebay.client"),
        ("src/forebay/__init__.py", "from forebay.spark import source"),
        ("src/forebay/cli/main.py", "from examples.tour import page"),
        ("src/forebay/helpers.py", ""),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(path: str, text: str) -> None:
    assert len(upward_imports(Source(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/forebay/errors.py", "from forebay.damage import Damage"),
        ("src/forebay/__init__.py", "from forebay.queues.log.queue import Log"),
        (
            "src/forebay/queues/log/queue.py",
            "from . import options\nfrom forebay.formats import fflg",
        ),
        ("src/forebay/cli/main.py", "import forebay\nfrom forebay import Log, errors"),
        ("src/forebay/queues/opening.py", "import forebay"),
        ("src/forebay/serve/server.py", "import forebay.aio"),
        ("src/pyspark_forebay/__init__.py", "from forebay.spark.source import DefaultSource"),
        ("src/forebay/wire/damage.py", "import os, json"),
    ],
)
def test_an_import_that_points_down_is_allowed(path: str, text: str) -> None:
    assert upward_imports(Source(path, text)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/forebay/queues/log/recovery.py", "from forebay.queues.fifo.names import HEAD"),
        ("src/forebay/queues/fifo/queue.py", "from forebay.queues import deadline"),
        ("src/forebay/spark/kinds/fifo.py", "from forebay.spark.kinds import log"),
        (
            "src/forebay/formats/beats/frames.py",
            "def late():\n    from forebay.formats import fflg",
        ),
        ("src/forebay/formats/entry.py", "from forebay.formats.deadline.items import Entry"),
    ],
)
def test_an_import_of_another_room_is_found(path: str, text: str) -> None:
    assert len(imports_of_other_rooms(Source(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/forebay/queues/log/recovery.py", "from forebay.queues.shared.names import LOG"),
        ("src/forebay/queues/log/recovery.py", "from forebay.queues.log.writer import LogWriter"),
        ("src/forebay/queues/log/recovery.py", "from forebay.formats import fflg"),
        ("src/forebay/queues/kinds.py", "from forebay.queues.fifo.names import is_fifo"),
        ("src/forebay/spark/kinds/fifo.py", "from forebay.queues.fifo.reader import FifoReader"),
        ("src/forebay/spark/kinds/__init__.py", "from forebay.spark.kinds import log"),
    ],
)
def test_an_import_of_what_rooms_share_is_allowed(path: str, text: str) -> None:
    assert imports_of_other_rooms(Source(path, text)) == []


@pytest.mark.parametrize(
    "text", ["import time", "from threading import Lock", "from forebay.clock import Clock"]
)
def test_a_codec_that_knows_the_time_or_a_thread_is_found(text: str) -> None:
    assert len(impure_imports(Source("src/forebay/formats/fflg.py", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "import io\nio.open('x')",
        "import os\nos.pwrite(3, b'', 0)",
        "import os as system\nsystem.fsync(3)",
        "from os import fdatasync as sync\nsync(3)",
        "import os.path\nos.path.exists('x')",
        "from os import path\npath.getsize('x')",
        "import mmap\nmmap.mmap(3, 4096)",
        "import fcntl\nfcntl.flock(3, 2)",
        "from pathlib import Path\nPath('x').read_bytes()",
    ],
)
def test_a_call_that_goes_past_the_door_is_found(text: str) -> None:
    assert len(disk_calls(Source("src/forebay/storage/segments.py", text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (DOOR, "import os\nos.fsync(3)"),
        ("src/forebay/storage/segments.py", "directory.open('x').sync()"),
        (
            "src/forebay/queues/log/queue.py",
            "import os\nos.path.join(os.fspath(path), str(os.getpid()))",
        ),
        ("src/forebay/cli/main.py", "open('x')"),
    ],
)
def test_a_call_through_the_door_is_allowed(path: str, text: str) -> None:
    assert disk_calls(Source(path, text)) == []
