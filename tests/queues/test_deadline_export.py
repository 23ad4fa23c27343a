"""The run that the original program reads: there whole, or not at all."""

from __future__ import annotations

from forebay.damage import Damage
from forebay.formats.deadline.items import Entry, Item, Key, scan_run
from forebay.queues.deadline.original import export_run
from forebay.storage.atomic import TEMPORARY, read_small
from forebay.storage.filesystem import Filesystem
from tests.crash.forgetful import ForgetfulFilesystem

Found = Entry | Damage
ITEMS: list[Found] = [
    Item(Key(1_000 + number, number), b"%d" % number * 300) for number in range(1, 6)
]


def runs_in(filesystem: Filesystem) -> list[list[Found]]:
    directory = filesystem.open_directory("/d")
    names = [name for name in directory.names() if not name.endswith(TEMPORARY)]
    return [[*scan_run(read_small(directory, name) or b"", name)] for name in names]


def test_a_run_is_named_when_it_is_durable_and_durable_on_return() -> None:
    filesystem = ForgetfulFilesystem()
    filesystem.open_directory("/d", create=True).close()
    start = filesystem.operations
    export_run([item for item in ITEMS if isinstance(item, Item)], "/d", filesystem=filesystem)
    filesystem.acknowledge("exported")

    found: dict[int, list[list[list[Found]]]] = {0: [], 1: []}
    for state in filesystem.crash_states(since=start, torn=True):
        found[state.acknowledged].append(runs_in(state.restore()))

    assert all(runs in ([], [ITEMS]) for runs in found[0])
    assert found[1]
    assert all(runs == [ITEMS] for runs in found[1])
