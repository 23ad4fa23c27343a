"""A fifth kind of queue, added by its record alone: the verbs know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.cli import exits
from tests.cli.helpers import json_lines, run
from tests.kinds.toy import toys
from tests.support.toy import Toy


@pytest.fixture(autouse=True)
def _toys() -> Iterator[None]:
    with toys():
        yield


def make_toy(path: Path, *lines: bytes) -> Path:
    with Toy(path) as toy:
        toy.put_many(list(lines))
    return path


def test_it_is_opened_as_what_it_is(tmp_path: Path) -> None:
    path = make_toy(tmp_path / "q", b"one")

    with forebay.open(path) as queue:
        assert isinstance(queue, Toy)
    with forebay.read(path) as reader:
        assert list(reader.scan()) == [b"one"]
    with forebay.Root(tmp_path / "root") as root:
        root.define("mine", "toy")


def test_it_is_put_into_looked_at_and_taken_from(tmp_path: Path) -> None:
    path = make_toy(tmp_path / "q", b"one")

    put = run("put", path, stdin=b"two\nthree\n")
    printed = run("cat", path)
    (facts,) = json_lines(run("info", path, "--json"))
    taken = run("take", path, "-n", 2, "--json")
    left = run("cat", path)

    assert (put.exit_code, put.stderr) == (exits.OK, "2 lines\n")
    assert printed.stdout == "one\ntwo\nthree\n"
    assert (facts["kind"], facts["records"]) == ("toy", 3)
    assert [row["value"] for row in json_lines(taken)] == ["one", "two"]
    assert left.stdout == "three\n"
    assert f"{path}\ttoy\tclosed" in run("ls", tmp_path).stdout


def test_its_damage_is_told_in_its_words(tmp_path: Path) -> None:
    path = make_toy(tmp_path / "q", b"one", b"two?", b"three")

    stopped = run("cat", path)
    salvaged = run("cat", path, "--salvage")
    checked = run("fsck", path)
    accepted = run("fsck", path, "--accept")

    assert (stopped.exit_code, stopped.stdout) == (exits.DAMAGE, "one\n")
    assert salvaged.stdout == "one\nthree\n"
    assert checked.exit_code == exits.DAMAGE
    assert "a question; lines lost: 1 from offset 1" in checked.stdout
    assert "2 good lines in 1 file (15 B): 1 damaged place, 1 line lost" in checked.stdout
    assert accepted.exit_code == exits.OK
    assert forebay.check(path).damage == ()


@pytest.mark.parametrize("verb", ["peek", "tail", "trim", "merge", "recover", "segments"])
def test_what_it_does_not_offer_is_refused(tmp_path: Path, verb: str) -> None:
    path = make_toy(tmp_path / "q", b"one")

    result = run(verb, path, *(("--to", tmp_path / "new") if verb == "recover" else ()))

    assert result.exit_code == exits.USAGE
    assert f"{path} is a toy" in result.stderr
