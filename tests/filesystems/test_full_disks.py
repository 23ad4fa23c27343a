"""A disk that runs full under a queue: an error, never the end of the process; nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.kinds import KINDS
from tests.queues.helpers import SYNCS
from tests.sources import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_ends_no_process_and_costs_nothing_acknowledged(
    small_disk: Path, kind: str, sync: str
) -> None:
    try:
        result = subprocess.run(
            [sys.executable, "-m", "tests.filesystems.filling", str(small_disk), kind, sync],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"},
        )
    finally:
        shutil.rmtree(small_disk)

    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["refused"] >= 1
    assert told["lost"] == 0
    assert told["closed"] in ("closed", "ENOSPC")
    assert told["took"] > 100
