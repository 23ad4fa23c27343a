"""Second decoders of the deadline formats, written from their page alone.

Know nothing of ours: integers and slices, one entry after the other. An entry is a tuple:
(deadline, id, "tombstone") or (deadline, id, "pending", enqueue, requeue, count, value, buried,
reason).
"""

from __future__ import annotations

Row = tuple[object, ...]


def number_of(data: bytes) -> int:
    assert data
    return sum(byte << 8 * index for index, byte in enumerate(data))


def read_run_1(data: bytes) -> list[Row]:
    """Returns the entries of a version 1 run whose footer fits."""
    rows: list[Row] = []
    largest = []
    position = 0
    last = b""
    while position < len(data) - 40:
        last = data[position : position + 16]
        bits = number_of(last[:8]) << 64 | number_of(last[8:])
        assert bits >> 114 == 0
        deadline, number, kind = bits >> 66, bits >> 2 & 2**64 - 1, bits & 3
        largest.append(number)
        position += 16
        if kind == 3:
            rows.append((deadline, number, "tombstone"))
            continue
        assert kind == 0
        upper, lower = (number_of(data[position + at : position + at + 8]) for at in (0, 8))
        stats = upper << 64 | lower
        size = number_of(data[position + 16 : position + 20])
        value = data[position + 20 : position + 20 + size]
        rows.append(
            (deadline, number, "pending", stats >> 80, stats >> 32 & 2**48 - 1)
            + (stats & 2**32 - 1, value, False, b"")
        )
        position += 20 + size
    footer = data[position:]
    pending = sum(row[2] == "pending" for row in rows)
    assert (number_of(footer[:8]), number_of(footer[8:16])) == (pending, len(rows) - pending)
    assert footer[16:32] == (last or bytes(16))
    assert number_of(footer[32:]) == max([0, *largest])
    return rows


def crc_of(data: bytes) -> int:
    """CRC-32 bit by bit, so that not even the library is shared."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_wal(data: bytes) -> list[Row]:
    """Gives the records of a log without damage; a third kind is (deadline, id, "dequeued", …)."""
    assert data[:8] == b"FBDW\1\0\0\0"
    assert number_of(data[24:28]) == crc_of(data[:24])
    salt = data[16:24]
    rows: list[Row] = []
    position, batch = 28, 0
    while position + 8 <= len(data) and any(data[position : position + 4]):
        size = number_of(data[position : position + 4])
        records = data[position + 8 : position + 8 + size]
        spread = batch * 0x9E3779B1 % 2**32
        check = crc_of(salt + data[position : position + 4] + records) ^ spread
        assert number_of(data[position + 4 : position + 8]) == check
        while records:
            row, taken = wal_record(records)
            rows += [row] if row else []
            records = records[taken:]
        position += 8 + size
        batch += 1
    assert not any(data[position:])
    return rows


def wal_record(data: bytes) -> tuple[Row | None, int]:
    """Returns the first record and what it takes."""
    kind = data[0]
    if kind >= 128:
        return None, 5 + number_of(data[1:5])
    key = (number_of(data[1:7]), number_of(data[7:15]))
    if kind == 1:
        end = 25 + number_of(data[21:25])
        return (*key, "pending", number_of(data[15:21]), 0, 0, data[25:end], False, b""), end
    if kind == 3:
        return (*key, "tombstone"), 15
    if kind == 4:
        return (*key, "dequeued", number_of(data[15:19]), number_of(data[19:25])), 25
    assert kind == 2
    assert data[31] in (0, 2)
    middle = 38 + number_of(data[32:34])
    end = middle + number_of(data[34:38])
    times = (number_of(data[15:21]), number_of(data[21:27]), number_of(data[27:31]))
    return (*key, "pending", *times, data[middle:end], data[31] == 2, data[38:middle]), end


def read_run_2(data: bytes) -> list[Row]:
    """Returns the entries of an uncompressed version 2 run; checks every check, index and count."""
    assert data[:6] == b"FBDR\2\0"
    assert number_of(data[16:20]) == crc_of(data[:16])
    salt = data[8:16]
    footer = data[-112:]
    assert footer[104:108] == b"FBDE"
    assert number_of(footer[108:]) == crc_of(footer[:108])
    assert footer[96:104] == salt
    index_position, id_position = number_of(footer[72:80]), number_of(footer[80:88])
    index = data[index_position : id_position or len(data) - 112]
    assert number_of(footer[88:92]) == crc_of(salt + index)
    assert len(index) == 26 * number_of(footer[68:72])
    rows: list[Row] = []
    position = 20
    for number in range(len(index) // 26):
        row = index[26 * number : 26 * number + 26]
        assert number_of(row[14:22]) == position
        block, position = run_block(data, position, number, salt)
        assert (number_of(row[:6]), number_of(row[6:14])) == block[0][:2]
        assert number_of(row[22:26]) == len(block)
        rows += block
    assert position == index_position
    check_footer(footer, rows)
    if id_position:
        check_id_index(data[id_position:-112], footer, salt, index, rows)
    return rows


def check_footer(footer: bytes, rows: list[Row]) -> None:
    buried = sum(row[2] == "pending" and row[7] is True for row in rows)
    pending = sum(row[2] == "pending" for row in rows) - buried
    counts = [number_of(footer[at : at + 8]) for at in (0, 8, 16)]
    assert counts == [pending, len(rows) - pending - buried, buried]
    keys = [(row[0], row[1]) for row in rows] or [(0, 0)]
    assert (number_of(footer[24:30]), number_of(footer[30:38])) == keys[0]
    assert (number_of(footer[38:44]), number_of(footer[44:52])) == keys[-1]
    ids = sorted(int(str(key[1])) for key in keys)
    assert (number_of(footer[52:60]), number_of(footer[60:68])) == (ids[0], ids[-1])


def check_id_index(data: bytes, footer: bytes, salt: bytes, index: bytes, rows: list[Row]) -> None:
    assert number_of(footer[92:96]) == crc_of(salt + data)
    base, id_width, block_width = number_of(data[:8]), data[8], data[9]
    middle = 10 + (len(rows) * id_width + 7) // 8
    ids = bits_of(data[10:middle], len(rows), id_width)
    blocks = bits_of(data[middle:], len(rows), block_width)
    counts = [number_of(index[at + 22 : at + 26]) for at in range(0, len(index), 26)]
    homes = [number for number, count in enumerate(counts) for _ in range(count)]
    expected = sorted((int(str(row[1])), home) for row, home in zip(rows, homes, strict=True))
    assert [(base + id, block) for id, block in zip(ids, blocks, strict=True)] == expected


def run_block(data: bytes, position: int, number: int, salt: bytes) -> tuple[list[Row], int]:
    """Returns the entries of a block and where it ends."""
    head = data[position : position + 24]
    assert head[:4] == b"FBDB"
    _, found, count, size, body_size, check = (
        number_of(head[at : at + 4]) for at in range(0, 24, 4)
    )
    assert (found, size) == (number, body_size)
    body = data[position + 24 : position + 24 + size]
    assert check == crc_of(salt + head[:20] + body)
    columns = []
    at = 72
    for column in range(8):
        base, width = number_of(body[8 * column : 8 * column + 8]), body[64 + column]
        end = at + (count * width + 7) // 8
        codes = bits_of(body[at:end], count, width)
        if column == 3:
            columns.append([base + code - 1 if code else 0 for code in codes])
        else:
            columns.append([base + code for code in codes])
        at = end
    reasons = []
    for length in columns[6]:
        reasons.append(body[at : at + length])
        at += length
    rows: list[Row] = []
    for entry in range(count):
        deadline, id, enqueue, requeue, dequeued, attributes, _, length = (
            numbers[entry] for numbers in columns
        )
        value = body[at : at + length]
        at += length
        if attributes == 1:
            rows.append((deadline, id, "tombstone"))
        else:
            stats = (enqueue, requeue, dequeued)
            rows.append((deadline, id, "pending", *stats, value, attributes == 2, reasons[entry]))
    assert at == len(body)
    return rows, position + 24 + size


def bits_of(data: bytes, count: int, width: int) -> list[int]:
    """Returns `count` numbers of `width` bits, the lowest bits first."""
    assert len(data) == (count * width + 7) // 8
    bits = sum(byte << 8 * index for index, byte in enumerate(data))
    assert bits >> count * width == 0
    return [bits >> index * width & (1 << width) - 1 for index in range(count)]
