"""What a server and its clients exchange: which classes, which verbs of a queue, which objects.

Both sides make their tables from the public classes, so that a verb is not listed anywhere. A verb
with steps is driven by its steps; every other public method is called as work, on a thread; an
attribute is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any

import forebay
from forebay.queues.log.place import HeldPlace
from forebay.queues.shared.verbs import Steps, Work
from forebay.wire.messages import Codec
from forebay.wire.values import Vocabulary

# Values that are sent as they are.
_VALUES = (
    *("BeatsInfo", "Damage", "DeadlineInfo", "DeadlineItem", "Entry", "Event", "FifoInfo"),
    *("LogInfo", "Record"),
)
# Objects that stay on the server: what it keeps of each, and what it tells the client about it.
OBJECTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Consumer": (HeldPlace, attrgetter("committed")),
    "EventBatch": (lambda batch: batch, attrgetter("events")),
}
# What a loan and an iterator are called on the wire; they have no public class.
LOAN, ITERATOR = "loan", "iterator"
# Verbs whose items are leased, and those that end a lease.
LEASING = frozenset({"dequeue", "dequeue_many"})
SETTLING = frozenset({"bury", "delete", "release", "release_many", "requeue"})
# What a client asks for in place of a verb, and the steps of the queue for it.
_INNER = {"popping": "_popping"}
# Special methods that are verbs.
_SPECIAL = frozenset({"__iter__", "__len__"})
# Not for clients: the server does it, or it makes no sense from outside.
_REFUSED = frozenset({"adopt", "close", "maintain"})

VOCABULARY = Vocabulary({name: partial(getattr, forebay, name) for name in _VALUES})
CODEC = Codec(VOCABULARY.unpack)


def is_verb(name: str) -> bool:
    """Says whether a client may ask for a method or attribute of this name."""
    return (not name.startswith("_") or name in _SPECIAL) and name not in _REFUSED


@cache
def verbs_of(found: type[object]) -> dict[str, Any]:
    """Returns the verbs of a public class: functions and properties, by name."""
    members = {name: inspect.getattr_static(found, name) for name in dir(found) if is_verb(name)}
    return {
        name: member
        for name, member in members.items()
        if inspect.isfunction(member) or isinstance(member, property)
    }


def steps_of(target: Any, verb: str, arguments: list[Any], keywords: dict[str, Any]) -> Steps[Any]:
    """Returns the steps of a verb; raises `AttributeError` if the object has no such verb."""
    if verb in _INNER and hasattr(target, _INNER[verb]):
        inner: Steps[Any] = getattr(target, _INNER[verb])(*arguments, **keywords)
        return inner
    found = verbs_of(target.__class__).get(verb)
    if found is None:
        raise AttributeError(f"{type(target).__name__} has no verb {verb!r} for clients")
    if isinstance(found, property):
        return _read(partial(getattr, target, verb))
    steps: Callable[..., Steps[Any]] | None = getattr(found, "steps", None)
    if steps is not None:
        return steps(target, *arguments, **keywords)
    call = partial(found, target, *arguments, **keywords)
    return _read(call) if verb in _SPECIAL else _work(call)


class Iteration:
    """An iterator that a client goes through, some values at a time."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def next(self, count: int) -> list[Any]:
        """Returns the next values; none at the end."""
        return list(islice(self._values, count))

    def close(self) -> None:
        """Releases what the iterator holds."""
        close = getattr(self._values, "close", None)
        if close is not None:
            close()


def _read(call: Callable[[], Any]) -> Steps[Any]:
    return call()
    yield


def _work(call: Callable[[], Any]) -> Steps[Any]:
    result = yield Work(call)
    # A generator would do its work where it is iterated.
    return list(result) if isinstance(result, Iterator) else result
