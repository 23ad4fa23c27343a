"""The checksum is zlib's CRC-32, whichever library does the work."""

from __future__ import annotations

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels import compiled, fflg
from forebay.kernels.buffers import LIBRARY, crc32, direct_address


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_the_standard_library(data: bytes, start: int) -> None:
    assert crc32(data, start) == zlib.crc32(data, start)
    assert crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(kind: type) -> None:
    assert crc32(kind(b"123456789")) == 0xCBF43926


def test_the_c_function_is_called_only_by_compiled_kernels() -> None:
    address = direct_address()

    assert address == 0 or (compiled and LIBRARY == "zlib-ng")


@given(st.binary(max_size=600), st.integers(0, 2**32 - 1))
def test_the_kernels_sum_as_the_library_does(value: bytes, seed: int) -> None:
    buffer = bytearray(12 + len(value))

    fflg.encode([value], 0, 1, buffer, 0, seed, 1)

    assert int.from_bytes(buffer[4:8], "big") == zlib.crc32(b"\0\0\0\1" + value, seed)


def test_without_the_lock_of_the_interpreter_no_kernel_counts_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)

    assert direct_address() == 0
