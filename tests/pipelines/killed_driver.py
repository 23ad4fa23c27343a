"""A driver that is killed: `forebay pipeline ingest FILE`, with SIGKILL at one moment.

python -m tests.pipelines.killed_driver FILE MOMENT BATCH
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.cli.main import main
from forebay.pipelines.ingest import job as ingestion
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.output import Output, batch_name
from tests.support.killing import Program

_SECONDS_MAX = 240


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_landing(batch: int) -> None:
    """Dies when what was read is written, and nothing is made of it yet."""
    real = Builder.derive

    def derive(self: Builder, spark: Any, number: int, *rest: Any) -> Any:
        if number == batch:
            die()
        return real(self, spark, number, *rest)

    set_attribute(Builder, "derive", derive)


def after_staging(batch: int) -> None:
    """Dies when all tables of a batch are written, and none is published."""
    real = Output.publish

    def publish(self: Output, number: int, staged: str) -> None:
        if number == batch:
            die()
        real(self, number, staged)

    set_attribute(Output, "publish", publish)


def after_linking(batch: int) -> None:
    """Dies when the links of a batch are made, and lead nowhere."""
    real = Output._move_to_pool

    def move(self: Output, staged: str) -> None:
        if os.path.basename(staged).startswith(batch_name(batch)):
            die()
        real(self, staged)

    set_attribute(Output, "_move_to_pool", move)


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
    real = ingestion._Reporter.tell

    def tell(self: Any) -> None:
        real(self)
        while os.path.exists(f"{self._output.checkpoint}/offsets/{batch}"):
            if os.path.exists(f"{self._output.checkpoint}/commits/{batch}"):
                die()
            time.sleep(0.001)

    publish = Output.publish

    def publish_no_other(self: Output, number: int, staged: str) -> None:
        if number > batch:
            # It dies before this one, however late it learns that the one before is done.
            time.sleep(_SECONDS_MAX)
        publish(self, number, staged)

    set_attribute(ingestion._Reporter, "tell", tell)
    set_attribute(Output, "publish", publish_no_other)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


MOMENTS: dict[str, Callable[[int], None]] = {
    "landed": after_landing,
    "staged": after_staging,
    "linked": after_linking,
    "renamed": after_rename,
    "committed": after_commit,
}


def kill_driver(file: Path, moment: str, batch: int) -> None:
    """Runs a driver that dies at a moment of a batch, and what it started with it."""
    output = file.parent / f"driver-{moment}-{batch}"
    driver = Program(__name__, file, moment, batch, output=output)
    assert driver.wait() == -signal.SIGKILL, output.read_text()


if __name__ == "__main__":
    file, moment, batch = sys.argv[1:]
    MOMENTS[moment](int(batch))
    main(["pipeline", "ingest", file, "--master", "local[2]"])
