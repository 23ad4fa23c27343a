"""The file systems that the suites of this folder run on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.mounts import HERE, KINDS, Unavailable, mount

_mounted: dict[str, Path | str] = {}


def place_on(kind: str, factory: pytest.TempPathFactory) -> Path:
    """Makes a directory on a file system; skips the test if that cannot be had here."""
    if kind not in _mounted:
        try:
            _mounted[kind] = mount(kind, factory.mktemp(kind))
        except Unavailable as error:
            _mounted[kind] = str(error)
    found = _mounted[kind]
    if isinstance(found, str):
        pytest.skip(f"no {kind} here: {found}")
    return Path(tempfile.mkdtemp(dir=found))


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a new directory on each file system in turn."""
    return place_on(request.param, tmp_path_factory)


@pytest.fixture(params=[kind for kind in KINDS if kind != HERE])
def small_disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a new directory on each file system that a test may fill."""
    return place_on(request.param, tmp_path_factory)
