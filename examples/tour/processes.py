"""The processes of the tour, as their parent sees them: started, watched, killed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import forebay

# Spark's files while it runs; the tour removes them.
TEMPORARY = "spark"

_PIPE_READ_BYTES = 1 << 16
_LOG_TAIL_BYTES = 4_000
_END_SECONDS_MAX = 180
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS_MAX = 300.0


class ProcessFailed(Exception):
    """A process failed to do what it was started for."""


class Actor:
    """A producer or a worker of one queue, and what it has acknowledged.

    `role` is a name in `actors.ROLES`, and `size` an argument specific to it. `count` is how much
    it has acknowledged at the end.
    """

    def __init__(self, role: str, path: str, count: int, per_second: float, size: int) -> None:
        self.role = role
        self.path = path
        self.name = os.path.basename(path)
        self.acknowledged = 0
        # What the running process found in its queue; None until it reports that.
        self.found: int | None = None
        self._count = count
        words = ["examples.tour.actors", role, path, str(count), str(per_second), str(size)]
        # -P: ignore another `examples` in the user's directory.
        self._command = [sys.executable, "-P", "-m", *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def start(self) -> None:
        """Starts the process, which continues after what is already in the queue."""
        self.found = None
        self._unread = b""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment()
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def look(self) -> None:
        """Reads what it has printed meanwhile; raises `ProcessFailed` if it ended too early."""
        assert self._process is not None
        # Check before reading the pipe: once the process has ended, nothing more can arrive.
        code = _code_of(self._process)
        self._read()
        if code is not None and self.acknowledged < self._count:
            raise ProcessFailed(f"the {self.role} of {self.name} exited early, with code {code}")

    @property
    def done(self) -> bool:
        """Returns whether it has written everything and ended."""
        return self._process is not None and _code_of(self._process) == 0

    def kill(self) -> None:
        """Kills it with SIGKILL; `acknowledged` then includes everything that it acknowledged."""
        assert self._process is not None
        assert self._process.stdout is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._read()
        self._process.stdout.close()
        self._process = None

    def end(self) -> None:
        """Kills it if it is still running."""
        if self._process is not None:
            self.kill()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                data = os.read(self._process.stdout.fileno(), _PIPE_READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            if lines:
                self.found = int(lines[0]) if self.found is None else self.found
                self.acknowledged = int(lines[-1])


class Command:
    """A command of `forebay` whose output, with that of its child processes, goes to a file."""

    def __init__(self, arguments: Sequence[str], log: str) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in its own session, so that its Java and its workers are killed with it."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forebay", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_spark_environment(os.path.dirname(self._log)),
                start_new_session=True,
            )

    def look(self) -> None:
        """Raises `ProcessFailed` if it was started and has ended."""
        code = None if self._process is None else _code_of(self._process)
        if code is not None:
            raise ProcessFailed(_failure(self._arguments, code, self._log))

    def kill(self) -> None:
        """Kills it and every process that it started, with SIGKILL."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Asks it to stop, and waits until it has."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGINT)
        self.join()

    def join(self) -> None:
        """Waits until it ends; raises `ProcessFailed` if it failed."""
        assert self._process is not None
        deadline = time.monotonic() + _END_SECONDS_MAX
        while (code := _code_of(self._process)) is None:
            if time.monotonic() > deadline:
                raise ProcessFailed(f"forebay {self._arguments[0]} did not end; see {self._log}")
            time.sleep(_LOOK_SECONDS)
        self._process.wait()
        if code != 0:
            raise ProcessFailed(_failure(self._arguments, code, self._log))

    def end(self) -> None:
        """Kills it if it is still running."""
        if self._process is not None and self._process.returncode is None:
            self.kill()


def _code_of(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the code of a process that has ended; None if it is still running.

    `poll` takes a lock, and keeps it if Ctrl-C interrupts it: a `wait` would then never return, and
    the tour would leave its processes running.
    """
    if process.returncode is not None:
        return process.returncode
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def answer_of(arguments: Sequence[str], log: str, codes: Sequence[int]) -> str:
    """Returns the output of a `forebay` command; raises `ProcessFailed` for any other exit code."""
    with open(log, "wb") as target:
        result = subprocess.run(
            [sys.executable, "-m", "forebay", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=target,
            env=_spark_environment(os.path.dirname(log)),
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    if result.returncode not in codes:
        raise ProcessFailed(_failure(arguments, result.returncode, log))
    return result.stdout.decode()


def _failure(arguments: Sequence[str], code: int, log: str) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        said = file.read().decode(errors="replace").strip().splitlines()
    last = said[-1] if said else "nothing"
    return (
        f"forebay {' '.join(arguments)} ended with code {code}; "
        f"it printed: {last} (the rest is in {log})"
    )


def environment() -> dict[str, str]:
    """Returns an environment in which a process finds Forebay and the tour, in any directory."""
    package = os.path.dirname(os.path.dirname(forebay.__file__))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [package, root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _spark_environment(directory: str) -> dict[str, str]:
    """Returns the environment of a process that starts Spark for a short time.

    A killed Java leaves its temporary files, so they go where the tour can remove them. Quick
    compilation and plain plans halve the time of such small jobs.
    """
    temporary = os.path.join(directory, TEMPORARY)
    os.makedirs(temporary, exist_ok=True)
    java = f'-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Djava.io.tmpdir={temporary}"'
    words = ["--driver-java-options", java, "--conf", "spark.sql.adaptive.enabled=false"]
    arguments = shlex.join([*words, "pyspark-shell"])
    return {**environment(), "PYSPARK_SUBMIT_ARGS": arguments}
