"""Starts a Spark session in which Forebay's queues can be read and written.

Spark on one machine needs the right environment before its Java starts: a Java that it supports,
workers that run the same Python as the program, and an address that works on a laptop without a
network. `session` provides these, and sets defaults for one machine. On a cluster it sets only what
the queues need.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import forebay.spark
from forebay.errors import InvalidOption, NotInstalled
from forebay.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"

# Without it Spark rejects a source that accepts filters, as this one does with `pushdown=true`.
_ALWAYS = {"spark.sql.python.filterPushdown.enabled": "true"}
# The times of records are in UTC, wherever the program runs.
_NEW = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# Spark treats a program like a shell, and would draw a bar over its output.
_NEW_CLASSIC = {"spark.ui.showConsoleProgress": "false"}
_NEW_LOCAL = {
    "spark.ui.enabled": "false",
    # Spark's default of 200 is for clusters: on one machine each partition costs more than it
    # gains.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # Arrow checks every access to a column twice; without that, reads take a tenth less time.
    "spark.driver.extraJavaOptions": (
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    ),
}


def session(
    master: str | None = None, *, app_name: str = "forebay", **conf: object
) -> forebay.spark.SparkSession:
    """Returns a Spark session: a new one, or the one that is running.

    `master` is `local[*]` by default; `local[2,3]` has two threads and tries a task three times,
    `spark://HOST:PORT` is a cluster and `sc://HOST:PORT` a Spark Connect server. A program that
    spark-submit started, or that has `SPARK_REMOTE` in its environment, keeps that master. `conf`
    holds Spark settings, which override the defaults: `session(**{"spark.driver.memory": "4g"})`.

    A running session keeps its master and its settings; `conf` is applied as far as Spark can
    change it. A new session sets `JAVA_HOME`, `PYSPARK_PYTHON` and, for a local master,
    `SPARK_LOCAL_IP` in the environment of this process, unless the user has set them.

    Raises `NotInstalled` if there is no usable Java or Spark.
    """
    for name in conf:
        if not name.startswith("spark."):
            raise InvalidOption(f"{name!r} is not a Spark setting: their names start with 'spark.'")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotInstalled(
            f'Spark cannot be used here ({error}): pip install "forebay[spark]"'
        ) from error
    if SparkSession.getActiveSession() is not None:
        return _build(SparkSession.builder, {**_ALWAYS, **conf})
    builder = SparkSession.builder.appName(app_name)
    elsewhere = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    if master is None and not elsewhere:
        master = LOCAL_MASTER
    if master is None:
        return _build(builder, {**_ALWAYS, **_NEW, **conf})
    if master.startswith("sc://"):
        return _build(builder.remote(master), {**_ALWAYS, **_NEW, **conf})
    local = master.startswith("local")
    _prepare_environment(local)
    defaults = {**_ALWAYS, **_NEW, **_NEW_CLASSIC, **(_NEW_LOCAL if local else {})}
    return _build(builder.master(master), {**defaults, **conf})


def is_running() -> bool:
    """Returns whether this process has a session already; False if Spark is not installed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return False
    return SparkSession.getActiveSession() is not None


def _build(builder: SparkSession.Builder, settings: dict[str, object]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _prepare_environment(local: bool) -> None:
    """Sets the variables that Spark's scripts, its Java and its Python workers read."""
    _check_spark_home()
    find_java().export()
    # Otherwise the workers use the `python3` on the PATH. If a virtual environment is not
    # activated, that is a different Python, without pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _check_spark_home() -> None:
    """Rejects a SPARK_HOME of another version: Java and Python would speak different protocols."""
    import pyspark

    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    found = _spark_versions(os.path.join(home, "jars"))
    if pyspark.__version__ not in found:
        raise NotInstalled(
            f"SPARK_HOME={home} holds {' and '.join(found) or 'no Spark'}, but pyspark is "
            f"{pyspark.__version__}: unset SPARK_HOME, or install the pyspark that matches it"
        )


def _spark_versions(jars: str) -> list[str]:
    try:
        names = os.listdir(jars)
    except OSError:
        return []
    matches = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", name) for name in names)
    return sorted(match[1] for match in matches if match)
