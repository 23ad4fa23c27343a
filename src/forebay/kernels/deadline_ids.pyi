from array import array

def pack_ids(
    ids: array[int], counts: array[int], base: int, id_width: int, block_width: int
) -> bytearray: ...
