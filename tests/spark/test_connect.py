"""The format under Spark Connect, sent to the server as a zip of its sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.spark import package_zip
from forebay.spark.java import find_java
from tests.sources import python_path
from tests.support.values import numbered

STORY = Path(__file__).with_name("connect_story.py")
COUNT = 150


# In the long tier: the server is a Spark of its own, and takes as long as the tests of ten others.
@pytest.mark.full
def test_spark_connect_reads_streams_and_writes(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(COUNT))
    names = [package_zip(tmp_path / "forebay.zip"), tmp_path / "log", tmp_path / "copy"]
    find_java().export()
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    story = subprocess.run(
        [sys.executable, str(STORY), *map(str, names), str(tmp_path / "checkpoint")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert story.returncode == 0, story.stderr[-3000:]
    seen = json.loads(story.stdout.splitlines()[-1])
    assert seen == {"count": COUNT, "sum": COUNT * (COUNT - 1) // 2}
    # Not by what Spark tells of its progress: it also tells when nothing was new for a while.
    commits = (tmp_path / "checkpoint" / "commits").glob("[0-9]*")
    assert sorted(file.name for file in commits) == ["0", "1", "2"]
    with forebay.read(tmp_path / "copy", kind="log") as reader:
        assert [record.value for record in reader] == numbered(COUNT) * 2
