"""Hostile files of clients: whatever is in one, an owner goes on, and stores only what verifies."""

from __future__ import annotations

import contextlib
import os
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ForebayError
from forebay.kernels.buffers import crc32
from forebay.queues.shared.posted import Intake
from forebay.storage import posted
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.posted import Batch, PostedFile
from tests.counting import Count
from tests.sharing.posting import CAMPAIGNS, ROOM, Client, owner
from tests.support.campaigns import seeds
from tests.support.inside import writer_of

CASES = 10_000
_RECORD = struct.Struct("<IIQQ")
_SIZES = (0, 1, 23, 24, 25, ROOM // 8, ROOM // 8 + 1, ROOM, 2**31 - 1, 2**31, 2**32 - 24, 2**32 - 1)
_NUMBERS = (0, 1, 2, 3, 20, 2**16, 2**32, 2**63, 2**64 - 1)


class Hostile:
    """A client's file, made bad in one more way for each case."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fifo = owner(path, "fifo", sync="os")
        client = Client(path)
        for number in range(20):
            assert client.post(b"%d" % number * self.rng.randrange(1, 20))
        self.name, self.seed = client.file.name, client.file.seed
        client.end()
        self.file = path / "posted" / self.name
        self.good = self.file.read_bytes()
        self.directory = self._door(DiskFilesystem().open_directory(str(path / "posted")))
        self.descriptor = os.open(self.file, os.O_RDWR)
        self.counts = Counter[str]()
        self.intake = Intake(
            self.directory,
            DiskFilesystem().boot_id(),
            writer_of(self.fifo),
            extra_max=9,
            store=self._store,
            make_room=lambda size, count: False,
        )

    def close(self) -> None:
        os.close(self.descriptor)
        self.directory.close()
        self.fifo.close()

    def try_one(self) -> None:
        """Makes the file bad, and has it opened, taken from where a crash left it, and taken."""
        os.pwrite(self.descriptor, self.good, 0)
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self.rng.choice(self._HARMS)(self)
        outcome = "nothing"
        with contextlib.ExitStack() as stack:
            try:
                file = PostedFile(self.directory, self.name, DiskFilesystem().boot_id())
                stack.callback(file.close)
                file.resume(self.rng.choice((0, 5, 2**40)))
                before = self.counts["records"]
                self.intake.take_all(file)
                outcome = "some" if self.counts["records"] > before else "nothing"
            except (ForebayError, OSError):
                outcome = "refused"
        self.counts[outcome] += 1
        self.counts["cases"] += 1

    def _store(self, batch: Batch) -> None:
        values = batch.values()
        assert len(values) == batch.count <= 1024
        assert all(len(value) <= ROOM // 8 for value in values)
        self.counts["records"] += batch.count

    def _door(self, directory: Any) -> Any:
        opened = directory.open
        directory.open = lambda name, **how: self._disturbed(opened(name, **how))
        return directory

    def _disturbed(self, file: Any) -> Any:
        """Now and then the client changes or shrinks its file between two reads."""
        if self.rng.random() < 0.8:
            return file
        read = file.pread

        def pread(size: int, position: int) -> bytes:
            if self.rng.random() < 0.5:
                self.rng.choice(self._HARMS)(self)
            data: bytes = read(size, position)
            return data

        file.pread = pread
        return file

    def _scribble(self) -> None:
        data = self.rng.randbytes(self.rng.choice((1, 4, 8, 64, 2000)))
        os.pwrite(self.descriptor, data, self.rng.randrange(len(self.good)))

    def _scribble_in_head(self) -> None:
        start = self.rng.choice((0, 4096, posted.HEADER_AT))
        os.pwrite(self.descriptor, self.rng.randbytes(4), start + self.rng.randrange(60))

    def _shrink(self) -> None:
        os.ftruncate(self.descriptor, self.rng.randrange(len(self.good) + 2))

    def _forge(self) -> None:
        """Puts a record with a good check and lying fields."""
        size = self.rng.choice(_SIZES)
        value = self.rng.randbytes(min(size, self.rng.choice((0, 7, 300, 3000))))
        number, extra = self.rng.choice(_NUMBERS), self.rng.choice((0, 0, 1, 9, 10, 2**64 - 1))
        body = struct.pack("<IQQ", size, number, extra) + value
        check = crc32(body, self.seed) ^ self.rng.choice((0, 0, 0, 1))
        at = self.rng.choice((0, 0, 8 * self.rng.randrange(ROOM // 8), ROOM - 24, ROOM - 8))
        os.pwrite(self.descriptor, struct.pack("<I", check) + body, posted.DATA_AT + at)

    def _forge_head(self) -> None:
        """Writes a header, or a note, with a good check and lying fields."""
        if self.rng.random() < 0.5:
            room = self.rng.choice((0, 8, ROOM - 8, ROOM, 2 * ROOM, 2**26, 2**26 + 8, 2**63))
            boot = DiskFilesystem().boot_id() if self.rng.random() < 0.8 else bytes(16)
            head = struct.pack(
                ">4sH16s8sQ", b"FBPC", self.rng.choice((1, 1, 2)), boot, bytes(8), room
            )
            os.pwrite(self.descriptor, head + struct.pack(">I", crc32(head)), posted.HEADER_AT)
            return
        fields = [self.rng.choice((0, 1, 8, ROOM, 2**40, 2**64 - 1)) for _ in range(3)]
        count = self.rng.choice((0, 1, 5, 20, 2**32 - 1))
        slot = struct.pack(">4sQQQQI", b"FBPN", self.rng.choice((1, 2, 2**62)), *fields, count)
        at = self.rng.choice((0, 4096))
        os.pwrite(self.descriptor, slot + struct.pack(">I", crc32(slot)), at)

    _HARMS = (_scribble, _scribble_in_head, _shrink, _forge, _forge, _forge_head)


def fuzz(path: Path, seed: int, cases: int) -> Counter[str]:
    hostile = Hostile(path, seed)
    try:
        for _ in range(cases):
            hostile.try_one()
    finally:
        hostile.close()
    return hostile.counts


@pytest.mark.slow
def test_a_hostile_file_ends_no_owner(tmp_path: Path, record_property: Count) -> None:
    counts = fuzz(tmp_path / "q", 1, CASES)

    assert counts["some"] > CASES // 100
    assert counts["refused"] > CASES // 100
    record_property("hostile client files", counts["cases"])


@pytest.mark.full
@pytest.mark.slow
def test_no_hostile_file_ends_an_owner_for_as_long_as_it_may_take(
    tmp_path: Path, record_property: Count
) -> None:
    counts = Counter[str]()
    for seed in seeds("sharing", "hostile-files", tests=CAMPAIGNS):
        counts += fuzz(tmp_path / str(seed), seed, CASES)

    assert counts["some"] > 0
    record_property("hostile client files", counts["cases"])
