"""The public face: names, signatures and types, and that asyncio has the same as threads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any, get_overloads, get_type_hints

import pytest

import forebay
import forebay.aio
import forebay.pipelines
import forebay.spark
from forebay import errors
from forebay.queues.beats.options import BeatsKeywords
from forebay.queues.deadline.options import DeadlineKeywords
from forebay.queues.fifo.options import FifoKeywords
from forebay.queues.log.options import LogKeywords

# The classes of a loop, and the blocking ones behind them.
FACES: dict[type, type] = {
    forebay.aio.Log: forebay.Log,
    forebay.aio.Consumer: forebay.Consumer,
    forebay.aio.Fifo: forebay.Fifo,
    forebay.aio.DeadlineQueue: forebay.DeadlineQueue,
    forebay.aio.BeatsQueue: forebay.BeatsQueue,
    forebay.aio.EventBatch: forebay.EventBatch,
}
# What has no form of its own on a loop.
NOT_AWAITED = {
    # An `asyncio.Queue` has them as plain calls, which nothing durable can be: `put(block=False)`.
    "put_nowait",
    "get_nowait",
}
# What may wait for something other than the disk: for room, or for something to take.
WAITING = {
    "append",
    "append_many",
    "dequeue",
    "dequeue_many",
    "enqueue",
    "enqueue_many",
    "pop",
    "pop_many",
    "push",
    "push_many",
    "put",
    "put_many",
    "read",
    "take",
}
each_face = pytest.mark.parametrize("face", FACES, ids=lambda face: str(face.__name__))


def public(cls: type) -> dict[str, Any]:
    """Returns the public attributes of a class that are not only its program's."""
    return {
        name: value
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and inspect.getdoc(value)
    }


@each_face
def test_the_verbs_of_a_loop_are_the_blocking_ones(face: type) -> None:
    blocking = public(FACES[face])
    missing = {name for name in blocking if not hasattr(face, name)}
    differing = {
        name
        for name, value in blocking.items()
        if hasattr(face, name) and kind_of(value) != kind_of(getattr(face, name))
    }

    assert missing <= NOT_AWAITED
    assert differing == set()


def kind_of(attribute: Any) -> object:
    """Returns what must be the same of an attribute: its parameters, and that it is a property."""
    if not callable(attribute):
        return type(attribute)
    return [
        (each.name, each.kind, each.default, each.annotation)
        for each in list(inspect.signature(attribute).parameters.values())[1:]
    ]


@pytest.mark.parametrize("cls", FACES.values(), ids=lambda cls: str(cls.__name__))
def test_every_verb_that_may_wait_has_a_timeout(cls: type) -> None:
    waiting = [value for name, value in public(cls).items() if name in WAITING]

    assert all("timeout" in inspect.signature(verb).parameters for verb in waiting)
    assert all(hasattr(verb, "steps") for verb in waiting)


@pytest.mark.parametrize(
    ("cls", "keywords"),
    [
        (forebay.Log, LogKeywords),
        (forebay.Fifo, FifoKeywords),
        (forebay.DeadlineQueue, DeadlineKeywords),
        (forebay.BeatsQueue, BeatsKeywords),
    ],
)
def test_open_takes_every_option_of_every_class(cls: type, keywords: type) -> None:
    options = {
        name: each.annotation
        for name, each in inspect.signature(cls).parameters.items()
        if name not in ("path", "filesystem", "clock")
    }
    found = {name: each.__forward_arg__ for name, each in keywords.__annotations__.items()}

    assert found == options
    assert set(options) <= set(inspect.signature(forebay.open).parameters)


@pytest.mark.parametrize("name", ["Log", "Fifo", "DeadlineQueue", "BeatsQueue"])
def test_each_option_has_a_line_of_its_own_on_both_faces(name: str) -> None:
    cls, face = getattr(forebay, name), getattr(forebay.aio, name)
    options = {*inspect.signature(cls).parameters} - {"path", "filesystem", "clock"}

    lines = re.findall(r"^    - (`.*?`)[:,] ", cls.__doc__, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", ", ".join(lines))) == options
    assert face.__init__.__doc__ == cls.__doc__


@each_face
def test_every_verb_says_what_it_does_and_its_types_can_be_looked_up(face: type) -> None:
    for cls in (face, FACES[face]):
        for name, value in public(cls).items():
            if inspect.isroutine(value):
                assert value.__doc__, name
                assert "return" in get_type_hints(value), name
        for name in {"__len__", "__iter__", "__aiter__"} & set(vars(cls)):
            assert getattr(cls, name).__doc__, name


@pytest.mark.parametrize("module", [forebay, forebay.aio, forebay.pipelines, forebay.spark])
def test_the_types_of_every_public_callable_can_be_looked_up(module: Any) -> None:
    found = []
    for name, function in functions(module):
        owner = getattr(module, name.partition(".")[0])
        # The constructor of a dataclass does not know the modules of the classes it inherits from.
        whole = owner if is_dataclass(owner) and name.endswith(".__init__") else function
        found += [get_type_hints(each) for each in [whole, *get_overloads(function)]]

    assert found


@pytest.mark.parametrize("face", [face for face in FACES if hasattr(face, "take")])
def test_a_take_on_a_loop_is_an_asynchronous_context(face: Any) -> None:
    assert "`async with " in face.take.__doc__
    assert "`with " not in face.take.__doc__
    assert "AsyncContextManager" in str(inspect.signature(face.take).return_annotation)


def test_every_error_is_exported() -> None:
    there = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and value.__module__ == errors.__name__
    }

    assert there - set(forebay.__all__) == set()


@pytest.mark.parametrize("module", [forebay, forebay.aio, forebay.pipelines])
def test_dir_has_every_name(module: Any) -> None:
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in module.__all__)


def functions(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields all public functions and methods of ours in a module, by name."""
    for name, function in _callables(module):
        # A class without a constructor of its own has that of Python.
        if getattr(function, "__module__", "").startswith("forebay."):
            yield name, function


def _callables(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield f"{name}.__init__", value.__init__
            for inner, method in public(value).items():
                if isinstance(method, property):
                    assert method.fget is not None
                    yield f"{name}.{inner}", method.fget
                elif inspect.isroutine(method):
                    yield f"{name}.{inner}", method
        elif inspect.isroutine(value):
            yield name, value


@pytest.mark.parametrize("module", [forebay, forebay.aio, forebay.pipelines])
def test_no_public_signature_has_a_value_of_any_type(module: Any) -> None:
    loose = [
        (name, str(annotation))
        for name, function in functions(module)
        for annotation in annotations_of(function)
        if annotation is inspect.Parameter.empty or re.search(r"\bAny\b", str(annotation))
    ]

    assert loose == []


def annotations_of(function: Callable[..., Any]) -> list[Any]:
    signature = inspect.signature(function)
    parameters = [
        each for each in signature.parameters.values() if each.name not in ("self", "cls")
    ]
    return [signature.return_annotation, *(each.annotation for each in parameters)]
