"""Who may do what: users other than the server's own, by queue and class of verb.

A verb writes, takes, or administers; some only look, which everybody may who may do anything with
the queue. A verb that is in no class is for administrators: what is added later is closed until
somebody decides. The user of the server may do everything.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.errors import InvalidOption

WRITE, TAKE, ADMIN, LOOK = "write", "take", "admin", "look"
CLASSES = (WRITE, TAKE, ADMIN)
VERBS = {
    LOOK: frozenset(
        {
            *("__len__", "begin", "buried", "capacity", "capacity_bytes", "capacity_for", "due"),
            *("durable", "empty", "end", "file_bytes", "full", "info", "pending", "qsize", "size"),
            *("version", "working"),
        }
    ),
    WRITE: frozenset(
        {
            *(
                "append",
                "append_encoded",
                "append_many",
                "enqueue",
                "enqueue_many",
                "flush",
                "post",
            ),
            *("push", "push_encoded", "push_many", "put", "put_encoded", "put_many", "put_nowait"),
            "sync",
        }
    ),
    TAKE: frozenset(
        {
            *("__iter__", "browse", "bury", "consumer", "dead", "dequeue", "dequeue_many", "get"),
            *("get_nowait", "had_left", "peek", "pop", "pop_many", "popping", "read", "reclaim"),
            *("release", "release_many", "requeue", "take", "take_many", "touch"),
        }
    ),
}
_CLASS_OF = {verb: name for name, verbs in VERBS.items() for verb in verbs}


def class_of(verb: str) -> str:
    """Returns the class of a verb."""
    return _CLASS_OF.get(verb, ADMIN)


@dataclass(frozen=True, slots=True)
class Access:
    """Which users have which classes of verbs, by queue."""

    users: Mapping[str, Mapping[str, frozenset[int]]]

    @property
    def others(self) -> frozenset[int]:
        """All users who may do anything."""
        return frozenset(
            user for queue in self.users.values() for users in queue.values() for user in users
        )

    def check(self, user: int, queue: str, verb: str) -> None:
        """Raises `PermissionError` if a user may not use a verb of a queue."""
        if user == os.getuid():
            return
        wanted = class_of(verb)
        users = self.users.get(queue, {})
        if not any(user in users.get(each, ()) for each in _enough(wanted)):
            raise PermissionError(
                errno.EACCES, f"user {user} may not {verb!r}: it needs {wanted!r}", queue
            )


def read_users(queue: str, given: Any) -> dict[str, frozenset[int]]:
    """Reads the table `allow` of a queue: names or numbers of users, by class."""
    if not isinstance(given, Mapping):
        raise InvalidOption(f"[queues.{queue}] allow = {given!r}: must be a table")
    for name in given:
        if name not in CLASSES:
            raise InvalidOption(f"[queues.{queue}.allow] {name}: there are {', '.join(CLASSES)}")
    return {name: frozenset(_uids(queue, users)) for name, users in given.items()}


def _enough(wanted: str) -> tuple[str, ...]:
    return CLASSES if wanted == LOOK else (wanted,)


def _uids(queue: str, users: Any) -> Iterable[int]:
    if not isinstance(users, list):
        raise InvalidOption(f"[queues.{queue}.allow]: {users!r} must be a list of users")
    for user in users:
        if isinstance(user, int) and not isinstance(user, bool):
            yield user
            continue
        try:
            yield pwd.getpwnam(str(user)).pw_uid
        except KeyError:
            raise InvalidOption(f"[queues.{queue}.allow]: there is no user {user!r}") from None
