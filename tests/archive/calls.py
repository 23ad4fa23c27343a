"""What the tests have done in a process that talks to an object store."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import forebay
from tests.support.objects import run_verb

__all__ = ["archive", "damage", "records", "run_verb"]


def archive(path: str, address: str, **options: Any) -> dict[str, Any]:
    """Makes one pass of an archiver."""
    return dataclasses.asdict(forebay.archive(path, address, **options))


def records(address: str) -> list[tuple[int, str]]:
    """Reads an archive; returns offsets and values."""
    with forebay.read(address, kind="log") as reader:
        return [(each.offset, base64.b64encode(each.value).decode()) for each in reader]


def damage(address: str) -> list[str]:
    """Verifies an archive; returns what is wrong."""
    return [str(each) for each in forebay.check(address).damage]
