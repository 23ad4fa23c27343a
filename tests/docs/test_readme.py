"""The README and the page of the queues: the examples run, and what pages name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import forebay
from tests.docs.pages import ROOT, blocks, only_block
from tests.support.forwarding import receiver
from tests.support.receiver import Receiver

__all__ = ["receiver"]
PAGES = [
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
]
QUEUES = "docs/queues.md"
LINK = re.compile(r"\]\(([^)#:]+)\)")


def run_example(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "example.py").write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", "example.py", *arguments],
        cwd=directory,
        # Of several processes, each must write its lines whole.
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_example_of_the_readme_prints_the_record(tmp_path: Path) -> None:
    result = run_example(tmp_path, only_block("README.md", "python"))

    assert (result.stderr, result.returncode) == ("", 0)
    assert result.stdout.startswith("0 ")
    assert result.stdout.endswith(""" b'{"door": "open"}'\n""")


@pytest.mark.slow
def test_the_example_of_logs_reads_what_it_wrote(tmp_path: Path) -> None:
    result = run_example(tmp_path, blocks(QUEUES, "python")[0])

    lines = result.stdout.splitlines()
    assert (result.stderr, result.returncode) == ("", 0)
    assert [line.split()[0] for line in lines[:3]] == ["0", "1", "2"]
    assert lines[1].endswith("""b'{"door": "closed"}'""")
    assert lines[3:] == ["left to read: 0"]


def test_the_example_of_a_shipper_reaches_the_receiver(
    tmp_path: Path, receiver: Receiver, servers: None
) -> None:
    program = blocks("docs/forwarding.md", "python")[-1].replace(
        "http://127.0.0.1:8080", receiver.url("")[:-1]
    )

    result = run_example(tmp_path, program)

    assert result.returncode == 0, result.stderr
    assert [value["message"] for value in receiver.values("in")] == ["the door is open"]


def test_the_example_of_events_prints_what_it_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(blocks(QUEUES, "python")[3], QUEUES, "exec"), {"forebay": forebay})

    assert capsys.readouterr().out.split()[1:] == ["hello"]
    with forebay.read(tmp_path / "spool" / "diskqueue", kind="beats") as reader:
        assert list(reader.events(unread=True)) == []


def test_the_example_of_fifos_prints_what_it_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(blocks(QUEUES, "python")[1], QUEUES, "exec"), {"forebay": forebay})

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["b'resize 1.png' 3", "b'resize 1.png'"]
    assert lines[2].endswith("b'resize 2.png'")
    with forebay.read(tmp_path / "spool" / "jobs", kind="fifo") as reader:
        assert list(reader.values()) == [b"mail bob"]


def test_the_example_of_deadlines_gives_out_what_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(blocks(QUEUES, "python")[2], QUEUES, "exec"), {"forebay": forebay})

    item, counts = capsys.readouterr().out.splitlines()
    assert item.startswith("1 ")
    assert item.endswith(" b'mail alice' 2")
    assert counts == "1 0 0 0"


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_the_example_of_sharing_hands_each_page_to_one_worker(tmp_path: Path) -> None:
    result = run_example(tmp_path, blocks(QUEUES, "python")[4])

    lines = result.stdout.splitlines()
    assert (result.stderr, result.returncode) == ("", 0)
    assert sorted(int(line.split()[-1]) for line in lines) == list(range(30))
    assert {line.rsplit(maxsplit=2)[0] for line in lines} <= {f"worker {n}" for n in (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_the_example_of_the_page_on_sharing_runs_in_three_processes(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        result = run_example(tmp_path, blocks("docs/sharing.md", "python")[0], name)
        assert (result.stderr, result.returncode) == ("", 0)
    with forebay.Fifo(tmp_path / "spool" / "jobs", shared=True) as jobs:
        found = jobs.pop_many(100)

    assert found == [
        b"%s %d" % (name, number) for name in (b"a", b"b", b"c") for number in range(3)
    ]


def test_the_example_of_asyncio_prints_what_it_appended_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(blocks(QUEUES, "python")[5], QUEUES, "exec"), {})

    assert len(capsys.readouterr().out.splitlines()) == 64
    with forebay.Log(tmp_path / "spool" / "doors") as log:
        assert (log.end, log.info().positions) == (64, {"billing": 64})


def test_the_examples_have_at_most_ten_lines() -> None:
    counts = [sum(1 for line in block.splitlines() if line) for block in blocks(QUEUES, "python")]

    # That of three workers is a whole program.
    assert len(counts) == 6
    assert max(counts[:4] + counts[5:]) <= 10
    assert counts[4] <= 20


@pytest.mark.slow
def test_the_example_of_spark_counts_the_records_of_each_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    for host, count in (("a", 3), ("b", 5)):
        with forebay.Log(tmp_path / "spool" / host / "events") as log:
            log.append_many([host.encode()] * count)
    program = only_block("README.md", "py").replace('"/spool/', f'"{tmp_path}/spool/')

    exec(compile(program, "README.md", "exec"), {})

    assert spark.table("events").count() == 8
    spark.catalog.dropTempView("events")


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_in_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))

    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]

    assert missing == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_file_of_the_sources_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:src/forebay/|storage/|kernels/|queues/|formats/|tests/)[\w/]+\.py)`", text
    )

    missing = [name for name in named if "NAME" not in name and not found(name)]

    assert missing == []


def found(name: str) -> list[Path]:
    return [path for path in (ROOT / name, ROOT / "src/forebay" / name) if path.exists()]
