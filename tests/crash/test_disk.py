"""Whatever is done, the disk that got everything holds what the page cache holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory, ForgetfulFile


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_disk_that_got_everything_is_the_page_cache(seed: int) -> None:
    fs = ForgetfulFilesystem(seed)
    run_at_random(fs, Random(seed))

    states = {state.description: state for state in fs.crash_states(2, since=fs.operations)}
    after = fs.kill()

    whole = states.get("everything", states["nothing"])
    assert whole.files() == whole.restore().files() == fs.files() == after.files()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_when_everything_is_synced(seed: int) -> None:
    fs = ForgetfulFilesystem(seed)
    run_at_random(fs, Random(seed))

    sync_everything(fs.open_directory("/queue"))

    (state,) = fs.crash_states(8, since=fs.operations)
    assert state.files() == fs.files()


def run_at_random(fs: ForgetfulFilesystem, random: Random) -> None:
    """Does all kinds of things to a few files in two directories."""
    queue = fs.open_directory("/queue", create=True)
    places = [queue, queue.directory("inner", create=True)]
    for name in "abc":
        queue.create(name).pwrite(random.randbytes(900), 0)
    for _ in range(random.randrange(40)):
        place = random.choice(places)
        name = random.choice([name for name in place.names() if name != "inner"] or ["new"])
        file = place.open(name, write=True) if name in place.names() else place.create(name)
        position = random.randrange(2000)
        actions: list[Callable[[], object]] = [
            partial(file.pwrite, random.randbytes(random.randrange(1, 1500)), position),
            partial(file.truncate, position),
            partial(file.allocate, 0, position),
            file.sync,
            place.sync,
            partial(place.unlink, name),
            partial(place.rename, name, random.choice("abcd"), random.choice(places)),
            partial(store, file, random.randbytes(5)),
        ]
        random.choice(actions)()


def store(file: ForgetfulFile, data: bytes) -> None:
    if file.size() > len(data):
        file.map(file.size())[-len(data) :] = data


def sync_everything(directory: ForgetfulDirectory) -> None:
    for name in directory.names():
        if name == "inner":
            sync_everything(directory.directory(name))
        else:
            directory.open(name).sync()
    directory.sync()
