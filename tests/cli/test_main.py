from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import Log, __version__
from forebay.cli import exits
from forebay.cli.main import VERBS
from forebay.kernels import PLAIN_REASON
from tests.cli.helpers import environment, make_log, numbered, run, start

READING_VERBS = ["cat", "peek", "tail", "info", "segments", "consumers", "trim", "fsck"]


def test_the_help_lists_every_verb_and_every_exit_code() -> None:
    result = run("--help")

    assert result.exit_code == 0
    assert all(f"  {verb} " in result.stdout for verb in VERBS)
    assert all(f"{code}  {text}" in result.stdout for code, text in exits.MEANINGS.items())


@pytest.mark.parametrize(
    "verb", [*sorted(set(VERBS) - {"pipeline"}), "pipeline ingest", "pipeline reconcile"]
)
def test_every_verb_has_help_and_knows_json(verb: str) -> None:
    result = run(*verb.split(), "--help")

    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_the_version_is_that_of_the_package() -> None:
    speed = f"plain Python, slow: {PLAIN_REASON}" if PLAIN_REASON else "compiled"
    text = f"forebay {__version__} ({speed}; Python {platform.python_version()})\n"

    assert run("--version").stdout == text


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = run("fetch")

    assert result.exit_code == exits.USAGE
    assert "No such command 'fetch'" in result.stderr


@pytest.mark.parametrize("verb", READING_VERBS)
def test_a_path_that_is_not_there_is_one_line_and_is_not_made(verb: str, tmp_path: Path) -> None:
    result = run(verb, tmp_path / "nothing")

    assert result.exit_code == exits.ERROR
    assert result.stderr == f"forebay: {tmp_path}/nothing: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", READING_VERBS)
def test_an_empty_directory_is_not_a_queue_and_stays_empty(verb: str, tmp_path: Path) -> None:
    result = run(verb, tmp_path)

    assert result.exit_code == exits.ERROR
    assert result.stderr.startswith(f"forebay: {tmp_path} holds no queue")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", READING_VERBS)
def test_a_file_is_not_a_queue(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"text")

    result = run(verb, file)

    assert result.exit_code == exits.ERROR
    assert result.stderr == f"forebay: {file} is a file; a queue is a directory\n"


@pytest.mark.parametrize(
    "arguments", [["put"], ["trim"], ["consumers", "--forget", "billing"]], ids=lambda a: a[0]
)
def test_a_queue_in_use_gives_the_code_to_try_again(arguments: list[str], tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.consumer("billing")

        result = run(arguments[0], tmp_path / "log", *arguments[1:])

    assert result.exit_code == exits.TRY_AGAIN
    assert "is in use by process" in result.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_program_silently(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(200_000), segment_bytes=100_000_000)
    process = start("cat", path)
    assert process.stdout is not None
    assert process.stderr is not None

    first = process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.communicate()

    assert first == b"record 0\n"
    assert said == b""
    assert process.returncode == exits.BROKEN_PIPE


@pytest.mark.slow
def test_a_verb_imports_neither_rich_nor_the_other_verbs(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['forebay', 'put', sys.argv[1]]\n"
        "from forebay.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "loaded = {'rich', 'forebay.cli.demo', 'forebay.cli.fsck'} & set(sys.modules)\n"
        "print(sorted(loaded))"
    )

    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )

    assert result.stdout == "[]\n"
