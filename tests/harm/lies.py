"""Side files that lie: one field is odd, and every check of the file is right.

A flipped bit is found by a check. What a program with a defect leaves, or somebody who means harm,
is not: the queue has to doubt the values themselves. Whatever a side file claims, the queue opens
and goes on, gives out nothing that was never put and nothing twice, ends no call with a raw error,
and takes no more memory than it has data.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import resource
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from forebay.cli.main import main
from forebay.errors import Damaged, UnsupportedVersion
from tests.harm.cases import Hangs, time_limit
from tests.harm.recipes import RECIPES, Recipe, Seen
from tests.harm.states import Place, copy_queue, place_of
from tests.harm.values import ONE_MORE, value_of
from tests.support.fuzz import each_change, seal

STATES = ("closed", "killed")
SIDE_FILES = {
    "log": ("tail", "index", "index-check", "ledger", "losses", "cursors/stream"),
    "fifo": ("fifo-head", "fifo-tail", "fifo-bounds", "losses"),
    "beats": ("mark", "contents", "state.dat", "losses"),
    "deadline": ("deadline-manifest", "deadline-mark", "losses"),
}
_DOCUMENTS = ("ledger", "losses")
_UNCHECKED = ("state.dat", "index")
# What only this file tells, so that nothing can contradict it: the size of a tape's files.
_BELIEVED = {"fifo-head": range(8, 20)}
_PAGE = 4096
_ROWS = (28, 32)
_MEMORY_BYTES = 1 << 30
_ODD = (
    bytes(8),
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\xff" * 7 + b"\x7f",
    bytes(7) + b"\x01",
    b"\x01" + bytes(7),
    bytes(3) + b"\x01" + bytes(4),
    bytes(4) + b"\x80" + bytes(3),
)
# What stands in for a queue that has lost something: the file is there only then.
_LOSS = {
    "file": "elsewhere",
    "position": 1,
    "length": 2,
    "reason": "checksum does not match",
    "offset": None,
    "count": 3,
    "gone": True,
    "accepted": True,
}


@dataclass(frozen=True, slots=True)
class Lie:
    """A case: a file of a queue and what it says instead."""

    kind: str
    policy: str
    state: str
    file: str
    what: str
    content: bytes
    # Of `index`: its check is made right as well.
    check: bytes | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.policy} {self.state}: {self.file}, {self.what}"


@functools.cache
def all_lies(root: Path, kind: str) -> list[Lie]:
    """Lists every lie of every side file of a kind, in both states."""
    lies = []
    for policy in ("always", "os"):
        for state in STATES:
            queue = place_of(root, kind, policy, state).queue
            for file in SIDE_FILES[kind]:
                for what, content, check in _changes(queue, file):
                    lies.append(Lie(kind, policy, state, file, what, content, check))
    return lies


def _changes(queue: Path, file: str) -> Iterator[tuple[str, bytes, bytes | None]]:
    if file in _DOCUMENTS:
        there = queue / file
        document = json.loads(there.read_bytes().split(b"\n")[0]) if there.exists() else [_LOSS]
        for what, changed in each_change(document):
            yield what, seal(changed), None
        return
    data = (queue / file).read_bytes()
    if file in _UNCHECKED:
        for position in range(0, len(data) - 7, 4):
            for odd in _ODD:
                changed = data[:position] + odd + data[position + 8 :]
                yield f"byte {position} = {odd.hex()}", changed, _check_of(queue, file, changed)
        return
    checks = find_checks(data, _salts(queue))
    assert checks, f"{file} has no check that the suite knows"
    for what, content in _with_odd_fields(data, checks, _BELIEVED.get(file, range(0))):
        yield what, content, None


@dataclass(frozen=True, slots=True)
class Check:
    """A CRC-32 over the bytes from `start` to `end`, where it stands."""

    start: int
    end: int
    salt: int
    layout: str

    def seal(self, data: bytearray) -> None:
        crc = zlib.crc32(data[self.start : self.end], self.salt)
        struct.pack_into(self.layout, data, self.end, crc)


def find_checks(data: bytes, salts: list[int]) -> list[Check]:
    """Finds what the checks of a file cover, by trying: whole pages, and rows."""
    found: list[Check] = []
    starts = {*range(0, len(data), _PAGE), *(row for size in _ROWS for row in _rows(data, size))}
    for start in sorted(starts):
        if any(check.start < start < check.end for check in found):
            continue
        check = _find_check(data, start, salts)
        if check is not None:
            found.append(check)
    return found


def _rows(data: bytes, size: int) -> range:
    return range(0, len(data), size) if len(data) % size == 0 and len(data) < _PAGE else range(0)


def _find_check(data: bytes, start: int, salts: list[int]) -> Check | None:
    for salt in salts:
        crc = zlib.crc32(data[start : start + 8], salt)
        for end in range(start + 8, min(start + _PAGE, len(data)) - 3):
            stored = data[end : end + 4]
            for layout in (">I", "<I"):
                if any(stored) and struct.unpack(layout, stored)[0] == crc:
                    return Check(start, end, salt, layout)
            crc = zlib.crc32(data[end : end + 1], crc)
    return None


def _salts(queue: Path) -> list[int]:
    """Lists what the checks of rows begin with: the queue's id, or the version of its entries."""
    salts = [0]
    for file, position, size in (("contents", 8, 16), ("mark", 12, 16), ("fifo-head", 72, 8)):
        if (queue / file).exists():
            salts.append(zlib.crc32((queue / file).read_bytes()[position : position + size]))
    return salts


def _with_odd_fields(
    data: bytes, checks: list[Check], believed: range
) -> Iterator[tuple[str, bytes]]:
    """Makes a field odd in all slots of a file, so that the newest is the same."""
    size = max(check.end - check.start for check in checks)
    for field in range(4, size, 4):
        if field in believed:
            continue
        for odd in _ODD:
            changed = bytearray(data)
            for check in checks:
                low, high = check.start + field, min(check.start + field + 8, check.end)
                if low < check.end:
                    changed[low:high] = odd[: high - low]
                check.seal(changed)
            if changed != data:
                yield f"byte {field} = {odd.hex()}", bytes(changed)


def _check_of(queue: Path, file: str, content: bytes) -> bytes | None:
    """Makes `index-check` right for another `index`."""
    if file != "index":
        return None
    data = bytearray((queue / "index-check").read_bytes())
    for check in find_checks(bytes(data), [0]):
        struct.pack_into(">II", data, check.start + 12, *[zlib.crc32(content)] * 2)
        check.seal(data)
    return bytes(data)


def run_lie(root: Path, lie: Lie) -> None:
    """Runs a case; raises AssertionError with what is wrong."""
    work = Path(tempfile.mkdtemp(dir=root))
    try:
        place = place_of(root / "made", lie.kind, lie.policy, lie.state)
        queue = copy_queue(place.queue, work / "queue")
        (queue / lie.file).write_bytes(lie.content)
        if lie.check is not None:
            (queue / "index-check").write_bytes(lie.check)
        with _memory_limit():
            _look(lie, RECIPES[lie.kind], place, queue)
    finally:
        shutil.rmtree(work)


def _look(lie: Lie, recipe: Recipe, place: Place, queue: Path) -> None:
    looks: dict[str, Callable[[], None]] = {
        "read": lambda: _check_seen(recipe.read_all(queue, salvage=True), place),
        "fsck": lambda: _verb((0, 4), "fsck", queue, "--json"),
        "info": lambda: _verb((0,), "info", queue, "--json"),
        "recover": lambda: _verb((0, 4), "recover", queue, "--to", f"{queue}-copy"),
        "owner": lambda: _own(lie, recipe, place, queue),
        "next owner": lambda: recipe.open_later(queue, lie.policy).close(),
        "fsck afterwards": lambda: _verb((0, 4), "fsck", queue),
    }
    for name, look in looks.items():
        try:
            with time_limit():
                look()
        except Hangs:
            raise AssertionError(f"{name}: hangs") from None
        except UnsupportedVersion:
            # A newer program wrote it: the one refusal that is right.
            return
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def _check_seen(seen: Seen, place: Place) -> None:
    assert not seen.wrong, seen.wrong[:3]
    twice = sorted({number for number in seen.given if seen.given.count(number) > 1})
    assert not twice, f"twice: {twice}"
    known = {*place.truth.there, *place.truth.gone}
    assert known.issuperset(seen.given), "given out, and never put"


def _own(lie: Lie, recipe: Recipe, place: Place, path: Path) -> None:
    queue = recipe.open_later(path, lie.policy)
    try:
        for seen in recipe.take_all(queue, place.truth):
            _check_seen(seen, place)
        try:
            value = recipe.put_and_take(queue)
        except Damaged:
            # A gap that is claimed is told when something comes after it.
            value = recipe.put_and_take(queue)
        assert value == value_of(ONE_MORE), "it does not go on"
    finally:
        queue.close()


def _verb(codes: tuple[int, ...], verb: str, path: Path, *arguments: str) -> None:
    result = CliRunner().invoke(main, [verb, str(path), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{result.exception!r}") from result.exception
    if "version" in result.output and result.exit_code == 65:
        raise UnsupportedVersion(result.output)
    assert result.exit_code in codes, f"code {result.exit_code}: {result.output[-300:]}"


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    """Bounds the address space: what a number claims is not what may be allocated."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sample(lies: list[Lie], count: int, seed: int) -> list[Lie]:
    """Chooses some of them."""
    return random.Random(seed).sample(lies, min(count, len(lies)))
