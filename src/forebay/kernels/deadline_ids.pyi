from array import array

def pack_ids(
    ids: array[int], counts: list[int], base: int, id_width: int, block_width: int
) -> bytearray: ...
