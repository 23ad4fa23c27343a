"""Settings that all tests share, and the one Spark session."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from forebay import Log
from forebay.storage import workers
from tests.scheduling import OneWorkerForSpark
from tests.sources import python_path
from tests.support.closing import close_all
from tests.support.memory import folder_in_memory
from tests.support.objects import CREDENTIALS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.leftovers", "tests.support.servers"]

# Machines are shared: a slow example says nothing. Everyday the examples are the same ones, so that
# a failure belongs to the change that it comes with; the quick tier tries fewer of them, the long
# tier more, and new ones.
FULL = os.environ.get("FOREBAY_FULL") == "1"
QUICK = os.environ.get("FOREBAY_QUICK") == "1"
settings.register_profile(
    "forebay",
    deadline=None,
    derandomize=not FULL,
    max_examples=1000 if FULL else 20 if QUICK else 50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("forebay")

# Pytest looks here for the place of `tmp_path`.
if memory := folder_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)

# Every test waits until its threads have ended: see `tests/support/leftovers.py`.
workers.IDLE_SECONDS = 0.005

# A suite that a shell runs in the background inherits an ignored SIGINT, and so would its children,
# which some tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tuned for many small jobs: a Java that starts fast, and nothing that pays only for large ones. The
# same for the Sparks that other processes start.
FAST_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{FAST_JAVA}' pyspark-shell"
SPARK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerForSpark:
    """Keeps the tests of Spark in one process."""
    return OneWorkerForSpark(config, log)


@pytest.hookimpl(tryfirst=True)  # Before the marks are looked at.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests that use Spark out of the quick tier: the first of them waits for Java."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keeps what was imported out of every later collection of garbage: it is never any."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _watcher(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Has the process open its one watcher of directories, which no test leaves behind then."""
    Log(tmp_path_factory.mktemp("watcher")).close()


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    """Closes what a test left to be closed."""
    yield
    close_all()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yields the Spark session of all tests: two threads, each task tried three times.

    A test may set SQL settings and register sources, and must put back what others would see.
    """
    from forebay.spark import session

    with pytest.MonkeyPatch.context() as patch:
        # The workers are other processes: they do not see the paths that pytest adds to its own.
        patch.setenv("PYTHONPATH", python_path())
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        warehouse: Path = tmp_path_factory.mktemp("warehouse")
        started = session("local[2,3]", **{**SPARK_CONF, "spark.sql.warehouse.dir": str(warehouse)})
    # `./test --full` runs the tests once more with an older one.
    assert started.version.startswith(os.environ.get("FOREBAY_SPARK", ""))
    yield started
    started.stop()
