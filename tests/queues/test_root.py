"""Several queues of all kinds under one root, with definitions that outlive the process."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from forebay.errors import Closed, Damaged, InvalidOption, Locked, NotAQueue
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.kinds import KINDS, kind_named
from forebay.queues.kinds import ROOT as DEFINITIONS
from forebay.queues.root import Definition, Root
from tests.crash.forgetful import ForgetfulFilesystem
from tests.kinds.toy import toys
from tests.queues.deadline_helpers import must
from tests.queues.helpers import flip
from tests.support.toy import Toy


def test_queues_and_their_options_are_there_after_reopening(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mail", "deadline", lease_seconds=5, sync="os")
        root.define("bills", "deadline", max_attempts=3)
        root.queue("mail", "deadline").enqueue(b"letter")

    with Root(tmp_path / "root") as root:
        names = root.names
        item = must(root.queue("mail", "deadline").dequeue())

        assert names == ["bills", "mail"]
        assert item.value == b"letter"
        assert root.queue("mail", "deadline").options.lease_seconds == 5
        assert root.queue("bills", "deadline").options.max_attempts == 3
        assert root.queue("mail", "deadline") is root.queue("mail", "deadline")


def test_a_kind_that_has_a_record_is_opened_by_name_like_the_others(tmp_path: Path) -> None:
    with toys(), Root(tmp_path / "root") as root:
        # Only the names of our own kinds are typed.
        root.define("mine", "toy", max_bytes=10)  # type: ignore[call-overload]
        queue: Any = root.queue("mine")
        queue.put(b"one")

        assert isinstance(queue, Toy)
        assert (queue.options.max_bytes, queue.take(9)) == (10, [b"one"])
    with pytest.raises(Closed):
        queue.put(b"two")


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_root_holds_queues_of_every_kind(tmp_path: Path, kind: Any) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mine", kind, sync="os")

    with Root(tmp_path / "root") as root:
        queue = root.queue("mine")

        assert type(queue) is kind_named(kind).queue_class
        assert queue.options.sync == "os"
        assert root.definition("mine") == Definition(kind, {"sync": "os"})


def test_a_queue_that_is_defined_keeps_its_kind(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mine", "fifo")

        with pytest.raises(InvalidOption, match="forget it first"):
            root.define("mine", "log")


def test_definitions_of_version_1_are_those_of_deadline_queues(tmp_path: Path) -> None:
    Root(tmp_path / "root").close()
    body = b'{"queues": {"mail": {"lease_seconds": 5, "sync_interval_ms": 250}}, "version": 1}'
    (tmp_path / "root" / DEFINITIONS).write_bytes(b"%08x " % crc32(body) + body)

    with Root(tmp_path / "root") as root:
        options = {"lease_seconds": 5, "sync_interval_seconds": 0.25}
        assert root.definition("mail") == Definition("deadline", options)
        assert isinstance(root.queue("mail", "deadline"), DeadlineQueue)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    kind: Any = "stack"

    with Root(tmp_path / "root") as root, pytest.raises(InvalidOption, match="'log'"):
        root.define("mine", kind)


def test_a_queue_of_another_kind_than_was_asked_for_is_refused(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mine", "fifo")
        with pytest.raises(NotAQueue, match="is of kind 'fifo', not 'log'"):
            root.queue("mine", "log")


def test_a_root_keeps_a_duration_as_seconds(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mine", "deadline", lease_seconds=timedelta(minutes=1))

        assert root.queue("mine", "deadline").options.lease_seconds == 60


def test_a_root_keeps_a_time_to_live_that_was_given_as_a_timedelta(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mine", "fifo", ttl_seconds=timedelta(minutes=1))

        assert root.queue("mine", "fifo").options.ttl_seconds == 60


def test_a_queue_that_is_forgotten_keeps_its_files(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mail", "deadline")
        root.queue("mail", "deadline").enqueue(b"letter")

        root.forget("mail")

        assert root.names == []
        with pytest.raises(NotAQueue):
            root.queue("mail", "deadline")
        with DeadlineQueue(tmp_path / "root" / "mail") as queue:
            assert queue.pending == 1


@pytest.mark.parametrize("name", ["", ".", "a/b", "a.b", "-a", "x" * 101, "reserve\n"])
def test_a_name_that_is_not_plain_is_refused(tmp_path: Path, name: str) -> None:
    with Root(tmp_path / "root") as root, pytest.raises(InvalidOption):
        root.define(name, "deadline")


def test_a_wrong_option_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        with pytest.raises(InvalidOption, match="lease_seconds"):
            root.define("mail", "deadline", lease_seconds=-1)

        assert root.names == []


def test_an_open_queue_cannot_be_defined_anew(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mail", "deadline")
        root.queue("mail", "deadline")

        with pytest.raises(InvalidOption, match="open"):
            root.define("mail", "deadline", sync="os")


def test_a_root_has_one_owner_and_closes_its_queues(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.define("mail", "deadline")
    queue = root.queue("mail", "deadline")
    with pytest.raises(Locked):
        Root(tmp_path / "root")

    root.close()
    root.close()

    for verb in (
        queue.dequeue,
        lambda: root.queue("mail"),
        lambda: root.define("more", "deadline"),
    ):
        with pytest.raises(Closed):
            verb()


def test_damaged_definitions_are_told(tmp_path: Path) -> None:
    with Root(tmp_path / "root") as root:
        root.define("mail", "deadline")
    flip(tmp_path / "root" / DEFINITIONS, 20)

    with pytest.raises(Damaged, match="open each by its own path"):
        Root(tmp_path / "root")


def test_a_directory_with_something_else_in_it_is_no_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "letter.txt").write_text("dear")

    with pytest.raises(NotAQueue, match=r"letter\.txt"):
        Root(tmp_path)


def test_no_power_cut_loses_a_definition_that_was_acknowledged() -> None:
    machine = ForgetfulFilesystem(seed=1)
    with Root("/root", filesystem=machine) as root:
        root.define("mail", "deadline")
        machine.acknowledge("mail")
        root.define("bills", "deadline", sync="os")
        machine.acknowledge("bills")

    for state in machine.crash_states(4):
        with Root("/root", filesystem=state.restore()) as again:
            promised = machine.acknowledgements[: state.acknowledged]

            assert set(promised) <= set(again.names)


def test_a_child_of_a_fork_may_not_define_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.define("mail", "deadline")
    queue = root.queue("mail", "deadline")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            refused = []
            for verb in (
                lambda: root.define("bills", "deadline"),
                lambda: root.queue("mail"),
                queue.dequeue,
            ):
                try:
                    verb()
                except Closed:
                    refused.append(verb)
            os.write(writing, b"%d" % len(refused))
            signal.pause()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        refused_in_child = os.read(reading, 1)
        root.define("letters", "deadline")
        root.close()
        # While the child lives.
        with Root(tmp_path / "root") as again:
            names = again.names
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)

    assert (names, refused_in_child) == (["letters", "mail"], b"3")


@pytest.mark.parametrize("name", ["root-definitions", "reserve", "root-definitions.new"])
def test_the_names_of_the_roots_own_files_are_refused(tmp_path: Path, name: str) -> None:
    with Root(tmp_path / "root") as root, pytest.raises(InvalidOption, match=name):
        root.define(name, "deadline")
