"""What all tests of the tables have in common."""

from __future__ import annotations

import pytest

from tests.support.libraries import start_threads


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    start_threads()
