"""A driver that is killed: `forebay pipeline ingest FILE`, with SIGKILL at one moment.

python -m tests.pipelines.killed_driver FILE MOMENT BATCH
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from forebay.cli.main import main
from forebay.pipelines import ingestion
from forebay.pipelines.output import Output


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_staging(batch: int) -> None:
    """Dies when all tables of a batch are written, and none is published."""
    real = Output.publish

    def publish(self: Output, number: int, staged: str) -> None:
        if number == batch:
            die()
        real(self, number, staged)

    set_attribute(Output, "publish", publish)


def after_rename(batch: int) -> None:
    """Dies when a batch is published, before Spark knows."""
    real = Output.publish

    def publish(self: Output, number: int, staged: str) -> None:
        real(self, number, staged)
        if number == batch:
            die()

    set_attribute(Output, "publish", publish)


def after_commit(batch: int) -> None:
    """Dies when Spark has taken note that a batch is done."""
    real = ingestion._Teller.tell

    def tell(self: Any) -> None:
        real(self)
        while os.path.exists(f"{self._output.checkpoint}/offsets/{batch}"):
            if os.path.exists(f"{self._output.checkpoint}/commits/{batch}"):
                die()
            time.sleep(0.001)

    set_attribute(ingestion._Teller, "tell", tell)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


MOMENTS: dict[str, Callable[[int], None]] = {
    "staged": after_staging,
    "renamed": after_rename,
    "committed": after_commit,
}

if __name__ == "__main__":
    file, moment, batch = sys.argv[1:]
    MOMENTS[moment](int(batch))
    main(["pipeline", "ingest", file, "--master", "local[2]"])
