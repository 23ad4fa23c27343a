"""A driver that is killed: `forebay pipeline ingest FILE`, with SIGKILL at one moment.

python -m tests.pipelines.killed_driver FILE MOMENT BATCH
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.cli.main import main
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.output import BATCHES, Intent, Output
from forebay.tables import delta, iceberg, plain
from forebay.tables.store import Directory
from tests.support.killing import Program


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_landing(batch: int) -> None:
    """Dies when what was read is written, and nothing is made of it yet."""
    real = Builder.derive

    def derive(self: Builder, staged: Any, number: int, *rest: Any) -> Any:
        if number == batch:
            die()
        return real(self, staged, number, *rest)

    set_attribute(Builder, "derive", derive)


def after_staging(batch: int) -> None:
    """Dies when all tables of a batch are written, and nothing says that they are to be taken."""
    real = Output.publish

    def publish(self: Output, intent: Intent) -> None:
        if intent.manifests[0].batch == batch:
            die()
        real(self, intent)

    set_attribute(Output, "publish", publish)


def after_intent(batch: int) -> None:
    """Dies when the intent is written, and no table has the batch."""
    real = Output._finish

    def finish(self: Output, intent: Intent) -> None:
        if intent.manifests[0].batch == batch:
            die()
        real(self, intent)

    set_attribute(Output, "_finish", finish)


def after_first_table(batch: int) -> None:
    """Dies when one table has the batch, and `landed` has not."""
    for owner in (plain.Table, delta.Table, iceberg.Table):
        real: Any = owner.append

        def append(self: Any, number: int, files: Any, real: Any = real) -> None:
            real(self, number, files)
            if number == batch:
                die()

        set_attribute(owner, "append", append)


def after_tables(batch: int) -> None:
    """Dies when a batch is in all tables, and has no manifest."""
    real = Directory.write

    def write(self: Directory, name: str, data: bytes) -> None:
        if name == f"{BATCHES}/{batch}.json":
            die()
        real(self, name, data)

    set_attribute(Directory, "write", write)


def after_publishing(batch: int) -> None:
    """Dies when a batch is published, before Spark knows."""
    real = Output.publish

    def publish(self: Output, intent: Intent) -> None:
        real(self, intent)
        if intent.manifests[0].batch == batch:
            die()

    set_attribute(Output, "publish", publish)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


MOMENTS: dict[str, Callable[[int], None]] = {
    "landed": after_landing,
    "staged": after_staging,
    "intended": after_intent,
    "in one table": after_first_table,
    "in all tables": after_tables,
    "published": after_publishing,
}


def kill_driver(file: Path, moment: str, batch: int) -> None:
    """Runs a driver that dies at a moment of a batch, and what it started with it."""
    output = file.parent / f"driver-{moment.replace(' ', '-')}-{batch}"
    driver = Program(__name__, file, moment, batch, output=output)
    assert driver.wait() == -signal.SIGKILL, output.read_text()


if __name__ == "__main__":
    file, moment, batch = sys.argv[1:]
    MOMENTS[moment](int(batch))
    main(["pipeline", "ingest", file, "--master", "local[2]"])
