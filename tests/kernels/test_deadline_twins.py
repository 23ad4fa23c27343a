"""The compiled kernels and the plain ones write the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sources import ROOT

PROGRAM = """
import hashlib, random
from forebay.formats.deadline.items import Item, Key, Stats, Tombstone
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.wal import Batches, Header
from tests.kernels import scan_fuzz

chance = random.Random(7)
entries = sorted(
    (
        Item(Key(chance.getrandbits(48), chance.getrandbits(64)), chance.randbytes(at % 50),
             Stats(*(chance.getrandbits(bits) for bits in (48, at % 49, at % 33))),
             at % 5 == 0, chance.randbytes(at % 4))
        if at % 7 else Tombstone(Key(chance.getrandbits(20), at))
        for at in range(2000)
    ),
    key=lambda entry: entry.key,
)
digest = hashlib.sha256()
for compression in ("none", "lz4"):
    encoder = RunEncoder(b"saltsalt", compression=compression, block_bytes=999, id_index=True)
    digest.update(encoder.encode(entries) + encoder.finish())
batches = Batches(Header(1, b"saltsalt"))
values = [chance.randbytes(at) for at in range(99)]
buffer = bytearray(batches.fresh_size(values))
batches.encode_fresh(values, [chance.getrandbits(48) for _ in values], buffer, 5, 6, 7)
digest.update(buffer + batches.encode(entries, 8))
keys = [entry.key for entry in entries]
columns = [key.deadline_ms for key in keys], [key.id for key in keys]
digest.update(batches.encode_tombstones(*columns, 9))
digest.update(batches.encode_dequeued(*columns, [at for at, _ in enumerate(keys)], 3, 10))
merged = [scan_fuzz.merge_blocks(random.Random(seed)) for seed in range(200)]
digest.update(repr(merged).encode())
print(digest.hexdigest())
"""


def digest(pure: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment["FOREBAY_PURE"] = pure
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return result.stdout


@pytest.mark.slow
def test_compiled_and_plain_kernels_write_the_same_bytes() -> None:
    assert digest("0") == digest("1") != ""
