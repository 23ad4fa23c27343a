"""Who may use a log: locks, forks, closed handles."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import forebay
from forebay import Closed, Consumer, Locked, Log
from forebay.queues.shared.options import SyncPolicy
from tests.queues.helpers import numbered, open_files, run_python, values_of

Use = Callable[[Log, Consumer], object]
USES: dict[str, Use] = {
    "append": lambda log, _: log.append(b"x"),
    "append_many": lambda log, _: log.append_many([b"x"]),
    "sync": lambda log, _: log.sync(),
    "trim": lambda log, _: log.trim(),
    "info": lambda log, _: log.info(),
    "consumer": lambda log, _: log.consumer("other"),
    "forget_consumer": lambda log, _: log.forget_consumer("c"),
    "read": lambda _, consumer: consumer.read(),
    "read with timeout": lambda _, consumer: consumer.read(timeout=1),
    "commit": lambda _, consumer: consumer.commit(),
    "seek": lambda _, consumer: consumer.seek(0),
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


def in_child(work: Callable[[], object]) -> str:
    """Forks, works in the child, and gives what it returned or raised there, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                text = repr(work())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.slow
def test_a_second_process_gets_locked_with_the_owners_pid(tmp_path: Path) -> None:
    program = """
import sys, forebay
try:
    forebay.Log(sys.argv[1])
except forebay.Locked as error:
    print(error.pid, error)
"""
    with Log(tmp_path / "q") as log:
        result = run_python(program, tmp_path / "q")

        assert log.append(b"a") == 0

    expected = (
        f"{tmp_path}/q is in use by process {os.getpid()}; close it there first, or open it with "
        "shared=True in every process"
    )
    assert result.stdout == f"{os.getpid()} {expected}\n"


def test_a_second_handle_in_the_same_process_gets_locked_too(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        for call in (Log, forebay.open):
            with pytest.raises(Locked) as caught:
                call(tmp_path / "q")
            assert caught.value.pid == os.getpid()

        assert log.append(b"a") == 0


def test_the_lock_goes_with_the_handle(tmp_path: Path) -> None:
    for number in range(3):
        with Log(tmp_path / "q") as log:
            assert log.append(b"a") == number


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_the_lock_goes_with_the_process_and_its_records_stay(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    program = """
import os, sys
from forebay import Log
log = Log(sys.argv[1], sync=sys.argv[2])
for number in range(20):
    log.append(b"%08d" % number + b"." * 92)
os._exit(9)
"""
    result = run_python(program, tmp_path / "q", sync)

    assert result.returncode == 9
    with Log(tmp_path / "q") as log:
        assert values_of(log.consumer("c").read()) == numbered(20)


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"a")
        with (
            forebay.read(tmp_path / "q", kind="log") as first,
            forebay.read(tmp_path / "q", kind="log") as second,
        ):
            assert list(first.values()) == list(second.values()) == [b"a"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@each_use
def test_use_after_a_fork_raises_closed_in_the_child_and_the_parent_goes_on(
    tmp_path: Path, sync: SyncPolicy, use: Use
) -> None:
    with Log(tmp_path / "q", sync=sync) as log:
        for value in numbered(5):
            log.append(value)
        consumer = log.consumer("c")

        said = in_child(lambda: use(log, consumer))

        assert said.startswith(f"Closed: {tmp_path}/q was opened before a fork")
        assert log.append(numbered(1, first=5)[0]) == 5
        assert values_of(consumer.read()) == numbered(6)


def test_closing_in_the_child_leaves_the_parents_log_open_and_locked(tmp_path: Path) -> None:
    with Log(tmp_path / "q", sync="os") as log:
        log.append(b"a")

        said = in_child(log.close)

        assert said == "None"
        assert log.append(b"b") == 1
        with pytest.raises(Locked):
            Log(tmp_path / "q")
    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert list(reader.values()) == [b"a", b"b"]


def test_the_child_may_open_the_log_when_the_parent_has_closed_it(tmp_path: Path) -> None:
    log = Log(tmp_path / "q")
    log.append(b"a")
    log.close()

    def work() -> int:
        with Log(tmp_path / "q") as mine:
            return mine.append(b"b")

    assert in_child(work) == "1"


def test_adopting_after_a_close_raises_closed(tmp_path: Path) -> None:
    log = Log(tmp_path / "q", background=False)
    log.close()

    with pytest.raises(Closed):
        log.adopt()


def test_an_empty_batch_after_a_close_raises_closed(tmp_path: Path) -> None:
    log = Log(tmp_path / "q")
    log.close()

    with pytest.raises(Closed):
        log.append_many([])


@each_use
def test_use_after_close_raises_closed(tmp_path: Path, use: Use) -> None:
    log = Log(tmp_path / "q", sync="os")
    log.append_many(numbered(5))
    consumer = log.consumer("c")
    consumer.read(2)
    log.close()

    with pytest.raises(Closed, match=f"{tmp_path}/q is closed"):
        use(log, consumer)

    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert list(reader.values()) == numbered(5)


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "q")
    log.append(b"a")
    log.close()
    log.close()

    assert repr(log) == f"<Log {tmp_path}/q closed>"


def test_closing_ends_the_background_thread_and_gives_all_files_back(tmp_path: Path) -> None:
    for sync in ("always", "interval", "os"):
        with Log(tmp_path / sync, sync=sync) as log:
            log.append(b"a")
            consumer = log.consumer("c")
            consumer.read()
            consumer.commit()
            opened = bool(open_files(tmp_path)), len(maintenance_threads())

        assert opened == (True, 1)
        assert (open_files(tmp_path), maintenance_threads()) == ([], [])


def maintenance_threads() -> list[str]:
    """Lists the threads that work for queues."""
    return [each.name for each in threading.enumerate() if each.name == "forebay maintenance"]
