"""What a test may not leave in its process, looked at after every test.

Open descriptors, and with them locks on files; locks that only a child still holds; running
threads; and the settings that all tests share: the working directory, the umask, signal handlers
and the hooks for exceptions that nobody catches. What
reaches those hooks pytest itself turns into a failure, since warnings are errors here; a test that
provokes it says so with the mark `filterwarnings`.

Not looked at: what a test that failed left, for its traceback keeps things alive; what is set up
for more than one test; and the sockets and threads of Spark's bridge to Java, which keeps both for
later calls.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pytest

# Only paid where something is left, and then by a failure: far above what a thread takes to end.
SECONDS = 10.0
# What threads get to end before garbage is looked for: a collection takes longer.
MOMENT_SECONDS = 0.5
_BRIDGE = ("py4j.", "pyspark.")
_HANDLERS = [(number, f"handler of {number!r}") for number in sorted(signal.valid_signals())]


@dataclass(frozen=True, slots=True)
class Process:
    """The state of this process that a test may not change."""

    descriptors: frozenset[str]
    # Those that this process took and only another one still holds.
    locks: frozenset[str]
    threads: frozenset[threading.Thread]
    # Values as they are: they are looked at twice a test, and named only where they differ.
    settings: dict[str, object]


# What Python tells of the start of a process.
_STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
_before = pytest.StashKey[Process | None]()


@pytest.fixture(autouse=True)
def _looked_at(request: pytest.FixtureRequest) -> Iterator[None]:
    """Looks before a test, after the fixtures that several tests share; and after its own ended."""
    before = request.node.stash[_before] = look()
    yield
    _join(before, MOMENT_SECONDS)
    if look() == before:
        request.node.stash[_before] = None
    else:
        # A cycle, such as a caught exception and its frame, may hold what is not in use any more.
        # What warns of itself on its way out is told of this test, and not of the next one.
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets a test that did not come to its end leave what it wants."""
    report = yield
    if not report.passed:
        item.stash[_before] = None
    return report


@pytest.hookimpl(wrapper=True, trylast=True)  # While pytest still captures what is printed.
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that leaves something when all its fixtures have cleaned up."""
    yield
    before = item.stash.get(_before, None)
    left = [] if before is None else wait_until_nothing_is_left(before)
    if left:
        pytest.fail("the test left\n" + "\n".join(left), pytrace=False)


def look() -> Process:
    """Returns the state of this process now."""
    return Process(
        frozenset(_descriptors()),
        _inherited.look(),
        _threads(),
        _settings(),
    )


def wait_until_nothing_is_left(before: Process) -> list[str]:
    """Returns what is there that was not, once threads had their time to end."""
    _join(before, SECONDS)
    return left_since(before)


def left_since(before: Process) -> list[str]:
    """Names what this process has that it did not have before, and the settings that differ."""
    now = look()
    changed = (
        f"  {name}: {_named(value)}, before: {_named(before.settings[name])}"
        for name, value in now.settings.items()
        if value != before.settings[name]
    )
    return [
        *(f"  descriptor {text}" for text in sorted(now.descriptors - before.descriptors)),
        *(f"  lock {text}" for text in sorted(now.locks - before.locks)),
        *(f"  thread {_place(thread)}" for thread in now.threads - before.threads),
        *changed,
    ]


def _join(before: Process, seconds: float) -> None:
    """Waits for the threads that were not there before."""
    until = time.monotonic() + seconds
    for thread in _threads() - before.threads:
        thread.join(max(0.0, until - time.monotonic()))


def _descriptors() -> Iterator[str]:
    folder = "/proc/self/fd"
    bridged = "py4j" in sys.modules
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            # The one that the listing itself used.
            continue
        if not (bridged and target.startswith("socket:")):
            yield f"{name}: {target}"


class _Inherited:
    """The locks that this process took and only a child still holds.

    The kernel's list of all locks takes milliseconds to read, and a test that starts no process
    leaves no such lock: the list is read only after a start.
    """

    def __init__(self) -> None:
        self._started = self._seen = 0
        self._locks: frozenset[str] = frozenset()
        sys.addaudithook(self._notice)

    def look(self) -> frozenset[str]:
        """Returns what there is: nothing, as before, if no process was started since."""
        if self._locks or self._started != self._seen:
            self._seen = self._started
            self._locks = frozenset(_locks()) - frozenset(_own_locks())
        return self._locks

    def _notice(self, event: str, arguments: object) -> None:
        if event in _STARTS:
            self._started += 1


def _locks() -> Iterator[str]:
    """Yields the locks that this process has taken, even if only a child still holds the file."""
    own = str(os.getpid())
    with open("/proc/locks", encoding="ascii") as file:
        lines = [line for line in file if own in line]
    yield from (_shown(line) for line in lines if own in line.split())


def _own_locks() -> Iterator[str]:
    """Yields the locks that belong to open descriptors of this process."""
    folder = "/proc/self/fdinfo"
    for name in os.listdir(folder):
        try:
            with open(f"{folder}/{name}", encoding="ascii") as file:
                lines = [line.partition("\t")[2] for line in file if line.startswith("lock:")]
        except FileNotFoundError:
            continue
        yield from map(_shown, lines)


def _shown(line: str) -> str:
    _, kind, _, access, _, locked, *_ = line.replace("-> ", "").split()
    return f"{kind} {access} of device and inode {locked}"


def _threads() -> frozenset[threading.Thread]:
    return frozenset(filter(_is_ours, threading.enumerate()))


def _is_ours(thread: threading.Thread) -> bool:
    if thread.name.startswith("Dummy-"):
        # A library started it, and it has called Python since: Polars has such a pool.
        return False
    target = getattr(thread, "_target", None)
    modules = type(thread).__module__, getattr(target, "__module__", None) or ""
    return not any(module.startswith(_BRIDGE) for module in modules)


def _place(thread: threading.Thread) -> str:
    """Names a thread and the line that it is at."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return f"{thread.name!r}, which ends"
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"{thread.name!r} at {where} in {frame.f_code.co_name}"


def _settings() -> dict[str, object]:
    with open("/proc/self/status", "rb") as file:
        umask = file.read().partition(b"\nUmask:\t")[2].partition(b"\n")[0]
    return {
        "working directory": os.getcwd(),
        "umask": umask.decode(),
        "threading.excepthook": threading.excepthook,
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        **{name: signal.getsignal(number) for number, name in _HANDLERS},
    }


def _named(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


# In a test process for good, as an audit hook is.
_inherited = _Inherited()
