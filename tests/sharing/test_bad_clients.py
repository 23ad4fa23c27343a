"""Clients that do not keep to the protocol, or ask for what cannot be: nobody else sees of it.

One server serves all cases. After each of them it is the same process, has written little into its
log, and serves a client that was there before and a new one; nothing is lost, and nothing is there
twice.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import forebay
from forebay import Closed, Empty, InvalidOption, NotAQueue, ProtocolError
from forebay.client import queues as client
from forebay.client.finding import IDLE_VARIABLE
from forebay.wire.frames import FRAME_BYTES_MAX
from forebay.wire.messages import Status
from tests.support.clients import peers
from tests.support.raw_clients import RawClient, message, request, sized
from tests.support.servers import (
    address_space,
    end_server,
    lift_address_space,
    limit_address_space,
    server_pid,
)
from tests.support.values import numbered
from tests.support.waiting import wait_until

LOG_LINES_MAX = 4
MEMORY_BYTES_MAX = 96 << 20


class Served:
    """A shared fifo, a client that stays connected to it, and its server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fifo = forebay.Fifo(path, shared=True)
        self.log = path / "server.log"
        self.pid = server_pid(self.log)
        # Memory that the first calls take belongs to no case.
        self.check_clients([])
        assert self.pid is not None
        self.idle_bytes = address_space(self.pid)

    def check_clients(self, left: list[bytes]) -> None:
        """Checks that both clients are served, and that nothing else is there than what is left."""
        assert server_pid(self.log) == self.pid
        with RawClient(self.path) as new:
            queue = new.open()
            self.fifo.push(b"of the old one")
            assert [self.fifo.pop(timeout=10) for _ in range(len(left) + 1)] == [
                *left,
                b"of the old one",
            ]
            new.ask("push", b"of the new one", target=queue)
            assert new.pop(queue) == b"of the new one"
            assert self.fifo.pop() is None
            assert self.fifo.size == 0

    def log_text(self) -> str:
        return self.log.read_text(errors="surrogateescape")

    def memory_bytes(self) -> int:
        """How much memory the server has now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def cpu_seconds(self) -> float:
        """How long the server has computed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("shared") / "q"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IDLE_VARIABLE, "60")
        served = Served(path)
    yield served
    served.fifo.close()
    client.disconnect()
    end_server(served.log)


@pytest.fixture
def served(one_server: Served, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Lends the server, and looks at it afterwards.

    It has little address space, except for the slow cases, whose clients ask for much that they are
    to get.
    """
    assert one_server.pid is not None
    if request.node.get_closest_marker("slow") is None:
        limit_address_space(one_server.pid, one_server.idle_bytes)
    else:
        lift_address_space(one_server.pid)
    lines = one_server.log_text().count("\n")
    size = len(one_server.log_text())
    yield one_server
    one_server.check_clients([])
    assert one_server.log_text().count("\n") - lines <= LOG_LINES_MAX
    assert len(one_server.log_text()) - size <= LOG_LINES_MAX * 1_000


def extension(code: int, inside: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, inside)


def with_argument(data: bytes) -> bytes:
    """Returns a request whose one argument is these bytes, whatever they are."""
    return sized(b"\x95\x01\x00\xa4open\x91" + data + b"\x80")


def nested(depth: int) -> bytes:
    data = b"\xc0"
    for _ in range(depth):
        inside = b"\x91" + data
        data = b"\xc9" + len(inside).to_bytes(4, "big") + b"\x03" + inside
    return data


# What no client that follows the protocol sends: the server says so, and hangs up.
NO_REQUEST = {
    "nothing": sized(b""),
    "garbage": sized(b"\xc1" * 100),
    "text of another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a size of 4 GiB": sized(b"", 2**32 - 1),
    "a size over the limit": sized(b"", FRAME_BYTES_MAX + 1),
    "a number": sized(b"\x07"),
    "a map": sized(msgspec.msgpack.encode({"id": 1, "target": 0, "verb": "hello"})),
    "no fields": message(),
    "two fields": message(1, 0),
    "an id that is text": message("1", 0, "close", [], {}),
    "an id that is a boolean": message(True, 0, "close", [], {}),
    "an id that is a float": message(1.5, 0, "close", [], {}),
    "an id that is nothing": message(None, 0, "close", [], {}),
    "a target that is text": message(1, "0", "close", [], {}),
    "a target that is a list": message(1, [0], "close", [], {}),
    "a verb that is bytes": message(1, 0, b"close", [], {}),
    "a verb that is a number": message(1, 0, 5, [], {}),
    "a verb that is nothing": message(1, 0, None, [], {}),
    "a verb that is no UTF-8": sized(b"\x95\x01\x00\xa2\xff\xff\x90\x80"),
    "arguments that are a map": message(1, 0, "close", {}, {}),
    "arguments that are text": message(1, 0, "close", "abc", {}),
    "arguments that are nothing": message(1, 0, "close", None, {}),
    "keywords that are a list": message(1, 0, "close", [], []),
    "keywords by numbers": message(1, 0, "close", [], {1: 1}),
    "more after the request": sized(msgspec.msgpack.encode([1, 0, "close", [], {}]) + b"\x00"),
    "an unknown extension": message(1, 0, "open", [extension(99, b"\xc0")], {}),
    "a negative extension": message(1, 0, "open", [extension(-100, b"\xc0")], {}),
    "an extension of nothing": message(1, 0, "open", [extension(1, b"")], {}),
    "an object of no class": with_argument(b"\xc7\x01\x01\xc0"),
    "an object of an unknown class": message(
        *(1, 0, "open", [extension(1, msgspec.msgpack.encode(["Fifo", ["/tmp"]]))], {})
    ),
    "an object of a class that is a map": message(
        *(1, 0, "open", [extension(1, msgspec.msgpack.encode([{}, []]))], {})
    ),
    "an object without its fields": message(
        *(1, 0, "open", [extension(1, msgspec.msgpack.encode(["Entry", []]))], {})
    ),
    "an error without arguments": message(
        *(1, 0, "open", [extension(2, msgspec.msgpack.encode(["OSError"]))], {})
    ),
    "a time that is none": message(1, 0, "open", [extension(4, b"\xa1x")], {}),
    "a duration of ages": message(
        *(1, 0, "open", [extension(5, msgspec.msgpack.encode([2**62, 0, 0]))], {})
    ),
    "an extension cut off": with_argument(b"\xc7\x20\x03\x91"),
    "10,000 lists": with_argument(b"\x91" * 10_000 + b"\xc0"),
    "3,000 tuples": with_argument(nested(3_000)),
    "a key that is a map": with_argument(b"\x81\x80\x01"),
    "a key that is a list of maps": with_argument(b"\x81\x91\x80\x01"),
    "an array said to be huge": with_argument(b"\xdd\xff\xff\xff\xff"),
    "a map said to be huge": with_argument(b"\xdf\xff\xff\xff\xff"),
    "bytes said to be huge": with_argument(b"\xc6\xff\xff\xff\xff"),
    "text said to be huge": with_argument(b"\xdb\xff\xff\xff\xff"),
    "an extension said to be huge": with_argument(b"\xc9\xff\xff\xff\xff\x03"),
    "an open of number 0": request("open", 1, number=0),
    "a verb of many lines of number 0": request("one\n" * 1_000, 1, number=0),
    "a cancel of nothing": request("cancel", number=0),
    "a cancel of two": request("cancel", 1, 2, number=0),
    "a cancel of a text": request("cancel", "1", number=0),
    "a settled of a list": request("settled", [1], number=0),
}


@pytest.mark.parametrize("data", NO_REQUEST.values(), ids=NO_REQUEST)
def test_the_server_hangs_up_on_what_is_no_request(served: Served, data: bytes) -> None:
    with RawClient(served.path) as bad:
        bad.send(data)
        said = bad.ended_with()

    assert said is not None
    assert said.status == Status.FAILED
    assert isinstance(said.result, ProtocolError)


def opening(*arguments: Any, **named: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "open", arguments, named


# What is asked of the server itself, and refused; the client goes on.
NOT_OF_THE_SERVER: dict[str, tuple[Any, type[BaseException]]] = {
    "an unknown verb": (("frobnicate", (), {}), AttributeError),
    "a verb of a queue": (("push", (b"x",), {}), AttributeError),
    "a private method": (("_open", (), {}), AttributeError),
    "its class": (("__class__", (), {}), AttributeError),
    "hello without versions": (("hello", (), {}), TypeError),
    "hello in words": (("hello", ("a", "b", "c"), {}), TypeError),
    "hello of old versions": (("hello", (-3, 0, "0"), {}), ProtocolError),
    "hello of new versions": (("hello", (1000, 2000, "9"), {}), ProtocolError),
    "open without a path": (opening(), TypeError),
    "open of too much": (opening("/", "fifo", {}, 4, create=True), TypeError),
    "open with a wrong keyword": (opening("/", "fifo", {}, crate=True), TypeError),
    "open of /": (opening("/", "fifo", {}, create=True), NotAQueue),
    "open of the directory above": (opening("..", "fifo", {}, create=True), NotAQueue),
    "open of an empty path": (opening("", "fifo", {}, create=True), NotAQueue),
    "open of a path with NUL": (opening("/a\0b", "fifo", {}, create=True), ValueError),
    "open of a path of 1 MB": (opening("/" * 1_000_000 + "a", "fifo", {}, create=True), Exception),
    "open of a number": (opening(5, "fifo", {}, create=True), TypeError),
    "open of nothing": (opening(None, "fifo", {}, create=True), TypeError),
    "open of bytes": (opening(b"/", "fifo", {}, create=True), Exception),
    "close of a list": (("close", ([1],), {}), TypeError),
    "close of nothing": (("close", (), {}), TypeError),
}


@pytest.mark.parametrize("name", NOT_OF_THE_SERVER)
def test_the_server_refuses_and_the_client_goes_on(served: Served, name: str) -> None:
    (verb, arguments, named), expected = NOT_OF_THE_SERVER[name]
    with RawClient(served.path) as bad:
        queue = bad.open()
        with pytest.raises(expected):
            bad.ask(verb, *arguments, **named)
        assert bad.ask("size", target=queue) == 0


# What is opened in the directory of the server in a way that cannot be.
WRONG_OPENINGS: dict[str, tuple[Any, Any]] = {
    "an unknown kind": ("heap", {}),
    "another kind": ("log", {}),
    "a kind that is a list": ([], {}),
    "a kind that is nothing": (None, {}),
    "options that are a list": ("fifo", [1]),
    "options that are text": ("fifo", "sync"),
    "options that are nothing": ("fifo", None),
    "an unknown option": ("fifo", {"colour": 1}),
    "an option of a wrong type": ("fifo", {"max_bytes": "x"}),
    "an option that nests": ("fifo", {"sync": [[[]]]}),
    "the option to be shared": ("fifo", {"shared": True}),
    "an option of the owner": ("fifo", {"clock": 5}),
    "the path once more": ("fifo", {"path": "/"}),
    "options by numbers": ("fifo", {1: 1}),
}


@pytest.mark.parametrize("name", WRONG_OPENINGS)
@pytest.mark.parametrize("place", ["q", "q/other"])
def test_a_wrong_opening_is_refused(served: Served, name: str, place: str) -> None:
    kind, options = WRONG_OPENINGS[name]
    path = served.path.parent / place
    path.mkdir(exist_ok=True)
    if name == "another kind":
        # A directory of no queue would become one.
        path = served.path
    with RawClient(served.path) as bad:
        refusal = bad.refusal("open", str(path), kind, options, create=True)
        number = bad.open()

    assert not isinstance(refusal, OSError)
    assert number > 0
    assert list((served.path / "other").glob("*")) == [] or place == "q"


# What is asked of a queue, and refused; the client goes on with it.
NOT_OF_THE_QUEUE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "an unknown verb": ("frobnicate", (), {}),
    "no verb": ("", (), {}),
    "a verb of a megabyte": ("x" * 1_000_000, (), {}),
    "a private attribute": ("_writer", (), {}),
    "a private method": ("_take_back", ([],), {}),
    "its steps of popping": ("_popping", (1, 0), {}),
    "its class": ("__class__", (), {}),
    "its constructor": ("__init__", ("/tmp",), {}),
    "its dictionary": ("__dict__", (), {}),
    "its reduction": ("__reduce__", (), {}),
    "a context": ("__enter__", (), {}),
    "close": ("close", (), {}),
    "adopt": ("adopt", (b"x",), {}),
    "maintain": ("maintain", (), {}),
    "a push of nothing": ("push", (), {}),
    "a push of None": ("push", (None,), {}),
    "a push of text": ("push", ("x",), {}),
    "a push of a map": ("push", ({"a": 1},), {}),
    "a push of a tuple": ("push", ((1, 2),), {}),
    "a push of two": ("push", (b"x", 1, 2, 3), {}),
    "a push with a wrong keyword": ("push", (b"x",), {"colour": 1}),
    "a push of an error": ("push", (ValueError("x"),), {}),
    "many of a number": ("push_many", (5,), {}),
    "many of numbers": ("push_many", ([1, 2],), {}),
    "popping without a count": ("popping", (), {}),
    "popping of none": ("popping", (0, 0), {}),
    "popping of a negative count": ("popping", (-1, 0), {}),
    "popping of a text": ("popping", ("x", 0), {}),
    "popping of a list": ("popping", ([], 0), {}),
    "popping until NaN": ("popping", (1, math.nan), {}),
    "popping until ages ago": ("popping", (1, -1e300), {}),
    "popping until a text": ("popping", (1, "x"), {}),
    "popping until a list": ("popping", (1, [1]), {}),
    "popping until a huge number": ("popping", (1, b"\xff"), {}),
    "popping in vain": ("popping", (1, 0.01), {}),
    "a take until a tuple": ("take", ((),), {}),
    "an option of the runner": ("pop", (), {"_run": 5}),
}


@pytest.mark.parametrize("name", NOT_OF_THE_QUEUE)
def test_a_queue_refuses_and_the_client_goes_on(served: Served, name: str) -> None:
    verb, arguments, named = NOT_OF_THE_QUEUE[name]
    with RawClient(served.path) as bad:
        queue = bad.open()
        assert isinstance(bad.refusal(verb, *arguments, target=queue, **named), Exception)
        bad.ask("push", b"x", target=queue)
        assert bad.pop(queue) == b"x"


def test_half_a_frame_and_then_nothing_holds_nobody_up(served: Served) -> None:
    with RawClient(served.path) as bad:
        bad.send(sized(b"\x95\x01", 1_000))
        served.check_clients([])
        queue = RawClient(served.path)
        with queue:
            queue.send(sized(b"", 10_000_000))
            served.check_clients([])


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
def test_a_client_that_hangs_up_within_a_frame_is_forgotten(served: Served, cut: int) -> None:
    before = descriptors(served)
    for _ in range(20):
        with RawClient(served.path, greets=False) as bad:
            bad.send(request("hello", 1, 1, "0")[:cut])

    assert wait_until(lambda: descriptors(served) <= before)


def descriptors(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.pid}/fd"))


@pytest.mark.slow
def test_a_client_that_sends_a_byte_at_a_time_is_served_in_the_end(served: Served) -> None:
    with RawClient(served.path) as slow:
        for byte in request("open", str(served.path), "fifo", {}, create=True):
            slow.send(bytes([byte]))
            time.sleep(0.002)
            served.fifo.push(b"meanwhile")
            assert served.fifo.pop() == b"meanwhile"
        assert slow.result(1).number > 0


@pytest.mark.parametrize("verb", ["open", "close", "push", "frobnicate"])
def test_nothing_is_done_before_hello(served: Served, verb: str) -> None:
    with RawClient(served.path, greets=False) as bad, pytest.raises(ProtocolError, match="hello"):
        bad.ask(verb, str(served.path), "fifo", {})


def test_a_client_of_another_version_is_told_which_are_spoken(served: Served) -> None:
    with RawClient(served.path, greets=False) as new:
        with pytest.raises(ProtocolError, match="versions 7 to 9 of the protocol, this server 1"):
            new.ask("hello", 7, 9, "9.0")
        with pytest.raises(ProtocolError, match="the first request must be hello"):
            new.open()


def test_a_second_hello_changes_nothing(served: Served) -> None:
    with RawClient(served.path) as twice:
        queue = twice.open()
        twice.ask("hello", 1, 5, "0")
        twice.ask("push", b"x", target=queue)
        assert twice.pop(queue) == b"x"


@pytest.mark.parametrize("number", [0, -1, 7, 2**31, 2**63, 2**64 - 1])
def test_an_unknown_number_is_closed(served: Served, number: int) -> None:
    with RawClient(served.path) as bad:
        queue = bad.open()
        expected = AttributeError if number == 0 else Closed
        with pytest.raises(expected):
            bad.ask("push", b"x", target=number)
        bad.ask("close", number)
        assert bad.ask("size", target=queue) == 0


def test_a_client_cannot_use_what_another_one_holds(served: Served) -> None:
    served.fifo.push(b"x")
    with RawClient(served.path) as mine, RawClient(served.path) as other:
        queue = mine.open()
        lent = mine.ask("take", 1, target=queue)
        with pytest.raises(Closed):
            other.ask("finish", target=lent.number)
        other.ask("close", lent.number)
        assert lent.value.value == b"x"
        mine.ask("finish", target=lent.number)


def test_a_number_that_is_in_use_ends_the_client(served: Served) -> None:
    with RawClient(served.path) as bad:
        queue = bad.open()
        bad.send(request("popping", 1, 60, number=5, target=queue) * 2)
        said = bad.ended_with()

    assert said is not None
    assert "in use" in str(said.result)


@pytest.mark.parametrize("number", [-(2**63), -1, 1, 2**63, 2**64 - 1])
def test_any_number_but_0_may_name_a_request(served: Served, number: int) -> None:
    with RawClient(served.path) as odd:
        queue = odd.open()
        for _ in range(2):
            odd.send(request("push", b"x", number=number, target=queue))
            odd.result(number)
            assert odd.pop(queue) == b"x"


def test_cancels_of_what_is_not_under_way_do_nothing(served: Served) -> None:
    with RawClient(served.path) as bad:
        queue = bad.open()
        pushing = bad.begin("push", b"x", target=queue)
        bad.result(pushing)
        for number in (0, -1, 77, 2**63, pushing, pushing):
            bad.tell("cancel", number)
            bad.tell("settled", number)
            bad.tell("close", number)
        assert bad.pop(queue) == b"x"


def test_a_wait_that_is_cancelled_twice_is_answered_once(served: Served) -> None:
    with RawClient(served.path) as bad:
        queue = bad.open()
        waiting = bad.begin("popping", 1, 60, target=queue)
        bad.tell("cancel", waiting)
        bad.tell("cancel", waiting)
        assert bad.answer(waiting).status == Status.CANCELLED
        assert bad.ask("size", target=queue) == 0


def test_a_pop_that_is_cancelled_after_its_answer_goes_back_once(served: Served) -> None:
    served.fifo.push(b"x")
    with RawClient(served.path) as bad:
        queue = bad.open()
        popping = bad.begin("popping", 1, 60, target=queue)
        lent = bad.result(popping)
        for _ in range(3):
            bad.tell("cancel", popping)
        with pytest.raises(Closed):
            bad.ask("finish", target=lent.number)
        served.check_clients([b"x"])


def test_a_pop_that_is_settled_cannot_be_cancelled(served: Served) -> None:
    served.fifo.push(b"x")
    with RawClient(served.path) as bad:
        queue = bad.open()
        lent = bad.ask("popping", 1, 60, target=queue)
        finishing = bad.begin("finish", target=lent.number)
        bad.result(finishing)
        for verb in ("settled", "settled", "cancel"):
            bad.tell(verb, finishing)
        assert bad.ask("size", target=queue) == 0


@pytest.mark.parametrize("verb", ["popping", "take", "take_many"])
def test_what_was_lent_to_a_client_that_hung_up_comes_back(served: Served, verb: str) -> None:
    arguments = {"popping": (1, 5), "take": (5,), "take_many": (5, 5)}[verb]
    served.fifo.push(b"x")
    with RawClient(served.path) as bad:
        queue = bad.open()
        bad.ask(verb, *arguments, target=queue)
    assert wait_until(lambda: served.fifo.size == 1)
    served.check_clients([b"x"])


def test_a_client_that_hangs_up_before_the_answer_takes_nothing(served: Served) -> None:
    for _ in range(10):
        with RawClient(served.path) as bad:
            queue = bad.open()
            bad.begin("popping", 1, 60, target=queue)
    values = numbered(10)
    served.fifo.push_many(values)
    for _ in range(10):
        with RawClient(served.path) as bad:
            bad.begin("popping", 1, 60, target=bad.open())
    assert wait_until(lambda: served.fifo.size == 10)
    served.check_clients(values)


def test_an_entry_is_gone_after_finish_though_nobody_hears_of_it(served: Served) -> None:
    served.fifo.push(b"x")
    with RawClient(served.path) as bad:
        queue = bad.open()
        lent = bad.ask("popping", 1, 60, target=queue)
        bad.result(bad.begin("finish", target=lent.number))
    served.check_clients([])


# What a client may do with a loan, and with what: it ends, or it stays; the entry is never lost.
WRONG_ENDS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "an unknown verb": ("frobnicate", (), {}),
    "a private verb": ("_loan", (), {}),
    "the undoing": ("undo", (), {}),
    "too many arguments": ("finish", (1, 2, 3), {}),
    "a wrong keyword": ("finish", (), {"colour": 1}),
    "a reason that is text": ("give_back", ("no",), {}),
    "a reason of two": ("give_back", (ValueError("no"), 1), {}),
    "no reason": ("give_back", (), {}),
    "an error of the server": ("give_back", (ProtocolError("no"),), {}),
}


@pytest.mark.parametrize("name", WRONG_ENDS)
@pytest.mark.parametrize("lending", ["popping", "take_many"])
def test_a_loan_that_is_ended_in_a_wrong_way_comes_back(
    served: Served, name: str, lending: str
) -> None:
    verb, arguments, named = WRONG_ENDS[name]
    served.fifo.push(b"x")
    with RawClient(served.path) as bad:
        queue = bad.open()
        lent = bad.ask(lending, 1, 10, target=queue)
        with contextlib.suppress(AttributeError, TypeError, Closed, InvalidOption):
            bad.ask(verb, *arguments, target=lent.number, **named)
        bad.ask("close", lent.number)
        served.check_clients([b"x"])


@pytest.mark.slow
def test_large_entries_are_lent_in_parts(served: Served) -> None:
    values = [bytes([each]) * (9 << 20) for each in range(8)]
    for value in values:
        served.fifo.push(value)
    with RawClient(served.path) as greedy:
        queue = greedy.open()
        lent = greedy.ask("popping", 8, 10, target=queue)
        assert lent.value[1] == values[:2]
        assert greedy.ask("size", target=queue) == 6
    assert [served.fifo.pop(timeout=10) for _ in values] == values


TIMEOUTS = [-1, 0.5, 3e6, 1e300, math.inf, 2**63, timedelta.max]


@pytest.mark.parametrize("timeout", TIMEOUTS, ids=str)
def test_a_wait_of_any_length_can_be_cancelled(served: Served, timeout: Any) -> None:
    with RawClient(served.path) as patient:
        queue = patient.open()
        waiting = patient.begin("popping", 1, timeout, target=queue)
        assert served.fifo.size == 0
        patient.tell("cancel", waiting)
        answer = patient.answer(waiting)

    assert answer.status == Status.CANCELLED or isinstance(answer.result, Empty)


@pytest.mark.slow
def test_one_client_may_have_thousands_of_requests_under_way(served: Served) -> None:
    with RawClient(served.path) as busy:
        queue = busy.open()
        waiting = [busy.begin("pop", 60, target=queue) for _ in range(2_000)]
        pushing = [busy.begin("push", b"x", target=queue) for _ in range(2_000)]
        for number in pushing:
            busy.result(number)
        assert [busy.result(number) for number in waiting] == [b"x"] * 2_000


@pytest.mark.slow
def test_too_many_requests_are_refused_one_by_one(served: Served) -> None:
    with RawClient(served.path) as busy:
        queue = busy.open()
        waiting = [busy.begin("pop", 60, target=queue) for _ in range(16_385)]
        with pytest.raises(InvalidOption, match="16384 requests at a time"):
            busy.result(waiting[-1])
        busy.tell("cancel", waiting[0])
        assert busy.answer(waiting[0]).status == Status.CANCELLED
        busy.ask("push", b"x", target=queue)
        assert busy.result(waiting[1]) == b"x"


@pytest.mark.slow
def test_a_client_that_opens_for_ever_is_refused(served: Served) -> None:
    with RawClient(served.path) as bad:
        opening = [bad.begin("open", str(served.path), "fifo", {}, create=True) for _ in range(900)]
        for _ in range(5):
            for number in opening:
                with contextlib.suppress(InvalidOption):
                    bad.result(number)
            opening = [
                bad.begin("open", str(served.path), "fifo", {}, create=True) for _ in range(900)
            ]
        with pytest.raises(InvalidOption, match="4096"):
            bad.results(opening)
        served.check_clients([])


@pytest.mark.slow
def test_a_client_that_holds_iterators_for_ever_is_refused(served: Served) -> None:
    with RawClient(served.path) as bad:
        queue = bad.open()
        with pytest.raises(InvalidOption, match="128 iterators"):
            bad.results([bad.begin("__iter__", target=queue) for _ in range(129)])
        served.check_clients([])


@pytest.mark.slow
def test_a_client_that_never_reads_costs_little(served: Served) -> None:
    value = b"x" * (1 << 20)
    served.fifo.push(value)
    before = served.memory_bytes()
    with RawClient(served.path) as deaf:
        queue = deaf.open()
        numbers = range(1, 501)
        deaf.send(b"".join(request("peek", number=each, target=queue) for each in numbers))
        for _ in range(100):
            served.fifo.push(b"y")
        grown = served.memory_bytes() - before
        cpu = served.cpu_seconds()
        time.sleep(0.5)
        cpu = served.cpu_seconds() - cpu
        for number in numbers:
            assert deaf.result(number).value == value
    served.check_clients([value, *[b"y"] * 100])

    assert grown < MEMORY_BYTES_MAX
    # It waits for the client, asleep.
    assert cpu < 0.3


@pytest.mark.slow
def test_a_flood_of_small_requests_holds_nobody_up(served: Served) -> None:
    before = served.memory_bytes()
    flood = request("settled", 77, number=0) * 200_000
    with RawClient(served.path) as bad, RawClient(served.path) as good:
        queue = good.open()
        bad.send(flood)
        bad.send(flood)
        began = time.monotonic()
        good.ask("push", b"x", target=queue)
        assert good.pop(queue) == b"x"
        took = time.monotonic() - began
        grown = served.memory_bytes() - before

    assert grown < 8 << 20
    # All that it sent takes seconds.
    assert took < 5


@pytest.mark.slow
def test_three_hundred_clients_at_once_are_all_served(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        storm = [stack.enter_context(RawClient(served.path, greets=False)) for _ in range(300)]
        for each in storm:
            each.send(request("hello", 1, 1, "0"))
        versions = {each.result(1)["protocol"] for each in storm}

    assert versions == {1}


def start_with_few_descriptors(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    forebay.Fifo(path, shared=True).close()


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_a_server_without_descriptors_goes_on_with_the_clients_it_has(tmp_path: Path) -> None:
    with peers(1) as [peer]:
        peer.do(partial(start_with_few_descriptors, tmp_path / "q"))
    served = Served(tmp_path / "q")
    with contextlib.ExitStack() as stack:
        storm = [stack.enter_context(RawClient(served.path, greets=False)) for _ in range(100)]
        for number in range(50):
            served.fifo.push(b"%d" % number)
            assert served.fifo.pop() == b"%d" % number
        lines = served.log_text().count("\n")
        cpu = served.cpu_seconds()
        time.sleep(0.5)
        cpu = served.cpu_seconds() - cpu
        # Those for whom there was no descriptor are served when there is one.
        for each in storm[:60]:
            each.hang_up()
        last = storm[-1]
        last.send(request("hello", 1, 1, "0"))
        assert last.result(1)["protocol"] == 1
        lines = served.log_text().count("\n") - lines
    served.check_clients([])
    served.fifo.close()

    assert cpu < 0.3
    assert lines < 10
    assert served.log_text().count("\n") < 20
