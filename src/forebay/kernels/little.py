"""Little-endian numbers, bytes and checksums in buffers: what the kernels of all formats share.

A number has 1 to 8 bytes, so that 48 bits of a time take six. Here is the plain way; the compiled
kernels have these functions inline, from `little.pxd`.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

from forebay.kernels import checksum

if cython.compiled:
    from cython.cimports.forebay.kernels.direct import crc_function

    direct = cython.cast(crc_function, cython.cast(cython.size_t, checksum.direct_address()))
    crc32 = checksum.crc32
else:

    def get32(data: memoryview, position: int) -> int:
        """Reads the u32 at a position."""
        return int.from_bytes(data[position : position + 4], "little")

    def put32(out: memoryview, position: int, value: int) -> None:
        """Writes a u32."""
        out[position : position + 4] = value.to_bytes(4, "little")

    def get_number(data: memoryview, position: int, size: int) -> int:
        """Reads the number of `size` bytes at a position."""
        return int.from_bytes(data[position : position + size], "little")

    def put_number(out: memoryview, position: int, number: int, size: int) -> None:
        """Writes the lowest `size` bytes of a number."""
        for at in range(size):
            out[position + at] = (number >> (8 * at)) & 255

    def take_bytes(data: memoryview, position: int, size: int) -> bytes:
        """Copies bytes out of a buffer."""
        return bytes(data[position : position + size])

    def put_bytes(out: memoryview, position: int, value: bytes, size: int) -> None:
        """Copies `size` bytes, which is all of a value, into a buffer."""
        out[position : position + size] = value

    def copy_bytes(out: memoryview, to: int, data: memoryview, position: int, size: int) -> None:
        """Copies bytes from one buffer into another."""
        out[to : to + size] = data[position : position + size]

    def sum_bytes(data: memoryview, position: int, size: int, seed: int) -> int:
        """Gives the CRC-32 of some bytes, going on from `seed`."""
        return checksum.crc32(data[position : position + size], seed)
