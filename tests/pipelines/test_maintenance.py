"""Tests of `forebay pipeline compact` and `vacuum`, on tables that were committed without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli import exits
from forebay.errors import InvalidOption, Locked
from forebay.pipelines import Vacuumed, vacuum
from forebay.pipelines.ingest.output import LANDED, Output
from tests.cli.helpers import json_lines
from tests.cli.helpers import run as cli
from tests.pipelines.rigs import USED, commit, make_output, offsets_in


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_files_are_joined_and_removed(format: str, tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", format)
    for batch in range(3):
        commit(output, batch)

    joined = cli("pipeline", "compact", output.path, "--json")
    gone = cli("pipeline", "vacuum", output.path, "--hours", "0", "--json")

    assert (joined.exit_code, gone.exit_code) == (exits.OK, exits.OK), joined.output
    used = [row for row in json_lines(joined) if row["table"] in USED]
    assert [(row["before"], row["after"]) for row in used] == [(3, 1)] * 3
    assert {row["files"] for row in json_lines(gone) if row["table"] in USED} == {3}
    assert [offsets_in(output, name) for name in USED] == [list(range(6))] * 3
    commit(output, 3)
    assert offsets_in(output, LANDED) == list(range(8))


def test_plain_tables_stay_as_they_are_and_say_why(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out")
    commit(output, 0)

    result = cli("pipeline", "compact", output.path)

    assert result.exit_code == exits.USAGE
    assert "format = 'parquet' has a directory for each batch" in result.stderr
    assert {one.files for one in vacuum(output.path)} == {0}
    assert offsets_in(output, LANDED) == [0, 1]


def test_nothing_is_removed_beside_an_ingest(tmp_path: Path) -> None:
    output = make_output(tmp_path / "out", "delta")

    with output.locked(), pytest.raises(Locked):
        vacuum(output.path)
    with pytest.raises(InvalidOption, match="hours = -1"):
        vacuum(output.path, hours=-1)

    assert Vacuumed(LANDED, 0) in vacuum(Output.at(output.path).path)
