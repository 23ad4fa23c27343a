"""Owns a toy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.queues.shared.handle import Closing
from forebay.storage.filesystem import DiskFilesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions:
    """A toy has no choice."""

    sync: str = "always"
    when_full: str = "reject"


class Toy(Closing):
    """Lines of text that are put at the end and taken from the front."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.options = ToyOptions(**options)
        self._directory = DiskFilesystem().open_directory(os.fspath(path), create=True)
        self._directory.lock()
        self._file = Path(path) / "toy.txt"
        self._file.touch()

    def lines(self) -> list[bytes]:
        return self._file.read_bytes().splitlines()

    def replace(self, values: list[bytes]) -> None:
        self._file.write_bytes(b"".join(value + b"\n" for value in values))

    def close(self) -> None:
        self._directory.close()
