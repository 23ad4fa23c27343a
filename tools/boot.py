"""Prepares `.venv` and starts a command in it: `boot.py [--tests] COMMAND [ARGUMENT ...]`.

Needs only Python's standard library. `./run` needs the packages of one lock file; `--tests` adds
those of a second one. Keys in `.venv` record what was installed: one for each lock file (with the
interpreter and this directory), one for the package (its build files, the compiled sources, the
compiler), one for Java (where it is looked for). If all are current, the command starts at once
and nothing is fetched. What is stale is brought up to date, and nothing else: a new lock file
installs what differs, a changed source compiles the package again. Java is installed only if there
is none that Spark runs on. An installation that was interrupted starts from an empty `.venv`.

The packages come through pip, with the user's own configuration. Python compiles a module to
bytecode when it is first imported, so that the many that never are cost nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]
LOCK = ROOT / "requirements.lock"
TESTS_LOCK = ROOT / "requirements-tests.lock"
JAVA_LOCK = ROOT / "requirements-java.lock"
PACKAGE = ROOT / "src" / "forebay"
DEPENDENCIES_KEY = VENV / "dependencies.key"
TESTS_KEY = VENV / "tests.key"
PACKAGE_KEY = VENV / "package.key"
JAVA_KEY = VENV / "java.key"
OLDEST_PYTHON = (3, 11)
# To download, and then on disk.
MEGABYTES = {LOCK: (700, 1100), TESTS_LOCK: (350, 900), JAVA_LOCK: (34, 100)}
# What pip itself needs, and the package; no lock file names them.
KEPT = {"pip", "forebay"}
TICK_SECONDS = 0.2
BAR_CELLS = 24
LINES_OF_FAILURE = 20


def main() -> NoReturn:
    """Installs what is missing or stale, then replaces itself with the command."""
    command = sys.argv[1:]
    tests = command[:1] == ["--tests"]
    command = command[1:] if tests else command
    if not command:
        stop("usage: tools/boot.py [--tests] COMMAND [ARGUMENT ...]")
    if sys.version_info < OLDEST_PYTHON:
        stop(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: set PYTHON to one")
    if not is_ready(tests):
        # Two first starts at the same time must not install over one another.
        descriptor = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        install(tests)
        os.close(descriptor)
    start(command)


def is_ready(tests: bool) -> bool:
    """Returns whether there is nothing to install."""
    return (
        holds(DEPENDENCIES_KEY, dependencies_key())
        and (not tests or holds(TESTS_KEY, tests_key()))
        and holds(PACKAGE_KEY, package_key())
        and holds(JAVA_KEY, java_key())
    )


def holds(file: Path, key: str) -> bool:
    """Returns whether the file has this key, and the interpreter beside it still exists."""
    return PYTHON.exists() and file.exists() and file.read_text() == key


def dependencies_key() -> str:
    """Returns a key of everything that the installed packages depend on."""
    return digest([LOCK], [environment_key()])


def tests_key() -> str:
    """Returns a key of everything that the packages for tests depend on."""
    return digest([TESTS_LOCK], [dependencies_key()])


def environment_key() -> str:
    """Returns a key of what a virtual environment is bound to."""
    # The directory is included, because the scripts of a virtual environment contain its name.
    return digest([], [sys.version, sys.base_prefix, str(ROOT)])


def package_key() -> str:
    """Returns a key of everything that the built package depends on."""
    files = [ROOT / "pyproject.toml", ROOT / "setup.py"]
    files += [*compiled_sources(), *sorted(PACKAGE.rglob("*.pxd"))]
    pinned = packages_of(LOCK)
    builders = [pinned["cython"], pinned["setuptools"]]
    return digest(files, [environment_key(), *builders, *compiler()])


def compiled_sources() -> list[Path]:
    """Lists the sources that are compiled: those with a stub beside them."""
    return [stub.with_suffix(".py") for stub in sorted(PACKAGE.rglob("*.pyi"))]


def java_key() -> str:
    """Returns a key of everything that the choice of a Java depends on, without starting one."""
    program = os.path.realpath(shutil.which("java") or "")
    changed = os.stat(program).st_mtime_ns if os.path.isfile(program) else 0
    home = os.environ.get("JAVA_HOME", "")
    return digest([JAVA_LOCK], [environment_key(), home, program, str(changed)])


def compiler() -> list[str]:
    """Names the C compiler and the header that it needs; a newer one means a new build."""
    command = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    header = Path(sysconfig.get_path("include"), "Python.h")
    return [command, shutil.which(command.split()[0]) or "", str(header.exists())]


def digest(files: list[Path], facts: list[str]) -> str:
    """Returns one hash over facts and the names and contents of files."""
    whole = hashlib.sha256(repr(facts).encode())
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        whole.update(f"{file.name} {content}\n".encode())
    return whole.hexdigest()


def install(tests: bool) -> None:
    """Installs the dependencies, the package and Java, each only if its key is stale."""
    stale = not holds(DEPENDENCIES_KEY, dependencies_key())
    if stale or (tests and not holds(TESTS_KEY, tests_key())):
        # Those for tests stay, once they are there.
        tests = tests or TESTS_KEY.exists()
        install_dependencies([LOCK, TESTS_LOCK] if tests else [LOCK])
        DEPENDENCIES_KEY.write_text(dependencies_key())
        if tests:
            TESTS_KEY.write_text(tests_key())
    if not holds(PACKAGE_KEY, package_key()):
        install_package()
        PACKAGE_KEY.write_text(package_key())
    if not holds(JAVA_KEY, java_key()):
        install_java()
        JAVA_KEY.write_text(java_key())


def install_dependencies(locks: list[Path]) -> None:
    """Brings the virtual environment to what the lock files say; creates it if need be."""
    pinned = packages_of(*locks)
    if DEPENDENCIES_KEY.exists() and is_usable():
        say(f"updating the packages in {VENV.name}")
    else:
        download, disk = (sum(MEGABYTES[lock][which] for lock in locks) for which in (0, 1))
        say(
            f"installing {len(pinned)} packages, including Spark, into {VENV.name} "
            f"(about {download} MB to download, {disk} MB on disk)"
        )
        create_environment()
    # Written again at the end. What an interruption leaves must not be taken for installed.
    DEPENDENCIES_KEY.unlink(missing_ok=True)
    TESTS_KEY.unlink(missing_ok=True)
    # Spark comes as source. What builds it comes first, so that it is from the lock file too.
    pip({"setuptools": pinned["setuptools"]})
    pip(pinned, "--no-build-isolation")
    surplus = sorted(installed() - pinned.keys() - packages_of(JAVA_LOCK).keys() - KEPT)
    if surplus:
        call([*PIP, "uninstall", "-qq", "--yes", *surplus], "could not remove old packages")


def packages_of(*locks: Path) -> dict[str, str]:
    """Returns the packages of lock files: the name, and the lines with version and hashes."""
    found: dict[str, str] = {}
    for lock in locks:
        for text in re.split(r"^(?=[\w.-]+==)", lock.read_text(), flags=re.MULTILINE)[1:]:
            name = text.partition("==")[0]
            # Different versions of Python may need different versions.
            found[name] = found.get(name, "") + text
    return found


def is_usable() -> bool:
    """Returns whether `.venv` is of this interpreter and was created at this place."""
    try:
        facts = (VENV / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return False
    version = f"version = {'.'.join(map(str, sys.version_info[:3]))}"
    return PYTHON.exists() and version in facts and any(it.endswith(f" {VENV}") for it in facts)


def create_environment() -> None:
    """Creates an empty virtual environment."""
    try:
        import ensurepip  # noqa: F401  (Debian has it in a package of its own)
        import venv  # noqa: F401
    except ImportError:
        stop("Python cannot create virtual environments here: apt-get install python3-venv")
    call([sys.executable, "-m", "venv", "--clear", str(VENV)], "could not create .venv")


def installed() -> set[str]:
    """Returns the names of the packages in the virtual environment."""
    found = VENV.glob("lib/python3*/site-packages/*.dist-info")
    return {re.sub(r"[-_.]+", "-", path.name.rsplit("-", 2)[0]).lower() for path in found}


def install_package() -> None:
    """Installs the package itself, in place, and compiles it if possible."""
    steps = len(compiled_sources())
    bar = Bar("building the package", steps)
    command = [*PIP, "install", "-qq", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    with bar:
        follow(command, "could not build the package", lambda _: bar.show(compiled_files(), ""))
    # Either all of them are compiled or none is.
    if not compiled_files():
        say(
            "warning: nothing was compiled; plain Python is used instead, correct but slow; "
            "for a compiler: apt-get install gcc python3-dev"
        )


def compiled_files() -> int:
    """Counts the modules that are compiled, without the one that they share."""
    return sum(1 for path in PACKAGE.rglob("*.so") if not path.name.startswith("_"))


def install_java() -> None:
    """Installs a Java beside the packages, if the machine has none that Spark runs on."""
    if finds_java():
        return
    download, disk = MEGABYTES[JAVA_LOCK]
    say(
        f"no Java 17, 21 or 25 here: installing the one of {JAVA_LOCK.name} into {VENV.name} "
        f"(about {download} MB to download, {disk} MB on disk)"
    )
    problem = "no usable Java, and none could be installed: apt-get install openjdk-17-jre-headless"
    pip(packages_of(JAVA_LOCK), problem=problem)
    if not finds_java():
        stop("the installed Java does not run: apt-get install openjdk-17-jre-headless")


def finds_java() -> bool:
    """Returns whether the package finds a Java that Spark runs on."""
    program = "from forebay.spark.java import find_java; find_java()"
    result = subprocess.run([str(PYTHON), "-c", program], stderr=subprocess.DEVNULL, check=False)
    return result.returncode == 0


def pip(
    packages: dict[str, str], *options: str, problem: str = "could not install the packages"
) -> None:
    """Installs packages from their lines of a lock file, and shows how far that is."""
    # The locks are complete, so nothing has to be resolved.
    command = [*PIP, "install", "--no-deps", "--require-hashes", "--progress-bar=off", *options]
    # A wheel that is built here is unpacked at once: to compress it would be most of the work.
    command += ["--config-settings=--build-option=--compression=stored"]
    command += [] if sys.dont_write_bytecode else ["--no-compile"]
    # Each package is fetched first and unpacked later.
    bar = Bar("installing the packages", 2 * len(packages))
    before = len(installed())
    fetched: list[str] = []

    def show(line: str) -> None:
        found = re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)|Ignoring ", line)
        if found:
            fetched.append(found[1] or "")
        if line.startswith("Installing collected packages"):
            fetched[:] = ["unpacking"] * len(packages)
        bar.show(len(fetched) + len(installed()) - before, fetched[-1] if fetched else "")

    with tempfile.NamedTemporaryFile("w", prefix="forebay-", suffix=".lock") as file, bar:
        file.write("".join(packages.values()))
        file.flush()
        remedy = "a first start needs a package index that pip can reach"
        follow([*command, "-r", file.name], f"{problem}; {remedy}", show)


class Bar:
    """How far a step is: a line on stderr that is drawn again and again, only on a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._drawn = False

    def __enter__(self) -> Bar:
        if not sys.stderr.isatty():
            say(self._what)
        return self

    def show(self, done: int, name: str) -> None:
        """Draws the line: a part of the whole, and what is done at the moment."""
        if not sys.stderr.isatty():
            return
        done = min(done, self._total)
        cells = "#" * (BAR_CELLS * done // self._total)
        line = f"forebay: {self._what} [{cells:<{BAR_CELLS}}] {done} of {self._total} {name}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]}\x1b[K", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            print(file=sys.stderr)


def follow(command: list[str], problem: str, show: Callable[[str], None]) -> None:
    """Runs a command and calls `show` with each line that it prints, or "" every so often.

    If the command fails, its last lines are printed, and the program stops with the problem.
    """
    lines: list[str] = []
    with subprocess.Popen(
        command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        rest = b""
        while True:
            if not select.select([process.stdout], [], [], TICK_SECONDS)[0]:
                show("")
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                lines.append(line.decode(errors="replace"))
                show(lines[-1])
            if not data:
                break
    if process.returncode != 0:
        print("", *lines[-LINES_OF_FAILURE:], sep="\n", file=sys.stderr)
        stop(problem)


def call(command: list[str], problem: str) -> None:
    """Runs a command to its end; stops with the problem if it fails."""
    if subprocess.run(command, env=environment(), cwd=ROOT, check=False).returncode != 0:
        stop(problem)


def environment() -> dict[str, str]:
    """Returns the environment of the commands that install."""
    # FOREBAY_PURE is for running. The build serves both cases.
    return {name: value for name, value in os.environ.items() if name != "FOREBAY_PURE"}


def start(command: list[str]) -> NoReturn:
    """Replaces this process with the command, with the virtual environment first on the PATH."""
    programs = str(VENV / "bin")
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    os.environ.pop("PYTHONHOME", None)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        stop(f"could not start {command[0]}: {error.strerror}")


def say(text: str) -> None:
    """Prints a message on stderr; stdout belongs to the command."""
    print(f"forebay: {text}", file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    """Prints a message and exits."""
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    main()
