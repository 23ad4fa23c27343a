"""Documents that are wrong in one place, under a checksum that is right.

A fuzzer that flips bits finds the checksum. These changes are made before the checksum: what a
program with a defect, or somebody who means harm, would leave.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from forebay.kernels.buffers import crc32

ODD_NUMBERS: tuple[Any, ...] = (-1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(2**70), 1.5)
ODD_TEXTS: tuple[str, ...] = (
    "",
    ".",
    "..",
    "/etc/passwd",
    "../ledger",
    "a/b.part",
    "nul\0.part",
    "\ud800",
    "\ud800.part",
    "line\nbreak",
    "é" * 200,
    "x" * 300,
    "x" * 300 + ".part",
    "tail",
    "staging.part",
    "about:w",
    "once:w",
    "log",
    "fifo",
    "deadline",
)
ODD_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": 1}, *ODD_NUMBERS, *ODD_TEXTS)


def seal(document: object, *, ensure_ascii: bool = True) -> bytes:
    """Returns a document as files hold it: JSON and its checksum."""
    body = json.dumps(document, ensure_ascii=ensure_ascii, separators=(",", ":")).encode()
    return body + f"\n{crc32(body):08x}\n".encode()


def each_change(document: Any) -> Iterator[tuple[str, Any]]:
    """Yields what was changed and the changed document: each value odd, missing, or twice."""
    for path in _paths(document):
        where = "/".join(map(str, path)) or "all of it"
        for odd in ODD_VALUES:
            yield f"{where} = {odd!r:.40}", _with(document, path, odd)
        if path:
            yield f"{where} is missing", _without(document, path)
            if isinstance(path[-1], int):
                yield f"{where} is there twice", _doubled(document, path)


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], (*above, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _paths(value[index], (*above, index))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def _without(document: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(document)
    del _at(changed, path[:-1])[path[-1]]
    return changed


def _doubled(document: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(document)
    _at(changed, path[:-1]).append(copy.deepcopy(_at(changed, path)))
    return changed


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document
