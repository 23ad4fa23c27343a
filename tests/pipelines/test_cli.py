"""Tests of `forebay pipeline` as a command: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.cli import exits
from forebay.cli.pipeline import Meter, cause_of
from forebay.pipelines import Counts, Progress
from tests.cli.helpers import json_lines, run
from tests.pipelines.conftest import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FROM_SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception
  File "/x/stream.py", line 3, in partitions
    raise DataLoss(what)
forebay.errors.DataLoss: /spool/q begins at offset 5: 0..5 were trimmed
SQLSTATE: XXKST
"""


def test_reconcile_prints_the_sums_and_says_that_they_are_proven(
    spark: SparkSession, made: Made
) -> None:
    result = run("pipeline", "reconcile", made.out)

    header, first, second = result.stdout.splitlines()
    assert result.exit_code == exits.OK, result.output
    assert header.split("\t")[:4] == ["queue", "offsets", "range", "landed"]
    assert first.split("\t") == [f"{made.path}/a", "0..6", *"66212100", "proven"]
    assert second.split("\t")[-1] == "proven"
    assert "landed = decoded + rejected + deduplicated + filtered" in result.stderr


def test_reconcile_ends_with_4_and_names_what_does_not_add_up(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    out = made.copy(tmp_path / "out")
    (out / "_batches" / "1.json").unlink()

    result = run("pipeline", "reconcile", out, "--json")

    summary = json_lines(result)[-1]["summary"]
    assert result.exit_code == exits.DAMAGE
    assert (summary["proven"], summary["problems"]) == (
        False,
        ["batch 1 has rows in the tables, but no manifest"],
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ingest", "none.toml"], exits.ERROR, "none.toml: No such file"),
        (["reconcile", "none"], exits.ERROR, "none: No such file"),
        (["reconcile", "."], exits.ERROR, "holds no tables"),
        (["ingest", "bad.toml"], exits.USAGE, "'colour' is unknown; known settings: source, out"),
        (["ingest", "good.toml", "--backfill", "x"], exits.USAGE, "backfill = 'x'"),
    ],
)
def test_a_mistake_is_one_line_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    good = "source = 'q'\nout = 'out'\ndecode = 'raw'\n"
    Path("good.toml").write_text(good)
    Path("bad.toml").write_text(f"{good}colour = 'red'\n")

    result = run("pipeline", *arguments)

    assert result.exit_code == code
    assert result.stderr.startswith("forebay: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_progress_is_a_line_a_batch_when_it_is_piped(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counts(landed=1500, decoded=1499, rejected=1)

    with Meter(as_json=False) as meter:
        meter.update(Progress(3, counts, counts, 1.0))

    assert capsys.readouterr().err == "batch 3: 1,500 landed, 1,499 decoded, 1 rejected\n"


def test_of_what_spark_says_the_line_that_matters_is_told() -> None:
    assert cause_of(FROM_SPARK) == "/spool/q begins at offset 5: 0..5 were trimmed"
    assert cause_of("[X] something else\nand more") == "[X] something else"
