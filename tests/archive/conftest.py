"""One object store for all tests of archives, and one process that talks to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.objects import ObjectStore, Remote


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Yields an S3 server on loopback."""
    started = ObjectStore(tmp_path_factory.mktemp("objects"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def remote(store: ObjectStore) -> Iterator[Remote]:
    """Yields a process that talks to the server."""
    started = Remote(store.port, "tests.archive.calls")
    yield started
    started.close()
