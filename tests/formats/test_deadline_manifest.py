"""The manifest of a deadline queue: round trip, every cut, every flipped bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged, UnsupportedVersion
from forebay.formats.deadline.items import ID_MAX, FileKind, Key
from forebay.formats.deadline.manifest import FILE_BITS, Manifest, SetRow, decode_manifest
from forebay.kernels.buffers import crc32
from tests.support.values import flipped

# What is larger can be no number of a file, a time or a count.
words = st.integers(0, 2**63)
kinds = st.frozensets(st.sampled_from(list(FILE_BITS)), min_size=1)
rows = st.builds(SetRow, words, kinds, st.builds(Key, words, words))
manifests = st.builds(
    Manifest,
    st.binary(min_size=16, max_size=16),
    words,
    words,
    words,
    st.lists(rows, max_size=4).map(tuple),
)
EXAMPLE = Manifest(
    b"0123456789abcdef",
    65_537,
    1_700_000_000_000,
    3,
    (SetRow(1, frozenset({FileKind.PENDING_RUN, FileKind.DEQUEUED_RUN}), Key(5, 6)),),
)


@given(manifests)
def test_what_is_encoded_is_decoded(manifest: Manifest) -> None:
    assert decode_manifest(manifest.encode(), "m") == manifest


def test_a_manifest_that_is_cut_anywhere_is_damaged() -> None:
    data = EXAMPLE.encode()

    for size in range(len(data)):
        with pytest.raises(Damaged):
            decode_manifest(data[:size], "m")


def test_every_flipped_bit_is_seen() -> None:
    data = EXAMPLE.encode()

    for bit in range(8 * len(data)):
        with pytest.raises(Damaged):
            decode_manifest(flipped(data, bit), "m")


def test_a_later_version_is_refused_by_name() -> None:
    body = bytearray(EXAMPLE.encode()[:-4])
    body[4] = 3

    with pytest.raises(UnsupportedVersion, match="version 3"):
        decode_manifest(bytes(body) + crc32(bytes(body)).to_bytes(4, "little"), "m")


def test_a_next_id_that_leaves_no_ids_to_give_out_is_damage() -> None:
    claim = replace(EXAMPLE, next_id=ID_MAX)

    with pytest.raises(Damaged, match="out of range"):
        decode_manifest(claim.encode(), "m")
