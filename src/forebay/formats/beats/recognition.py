"""Determines the version (row) of a Beats segment, by evidence that verifies.

No check covers the words at the start of a segment, and two layouts have the number 2. So a row
counts only if a frame verifies where that row places frames; random bytes pass once in 2⁶⁴ tries.
If no frame verifies, there is no event to read, and the words decide. Rejects an unknown version,
Protobuf events and a wrong key, each with its own error. Page: docs/formats/beats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from forebay.damage import Damage
from forebay.errors import Damaged, UnsupportedVersion, WrongKey
from forebay.formats.beats.bytes import (
    DESCRIPTOR,
    EVENT_BYTES_MAX,
    MAGIC,
    LogicalBytes,
    RawBytes,
    open_bytes,
)
from forebay.formats.beats.crypto import IV_BYTES, Key
from forebay.formats.beats.frames import FRAME_BYTES, Frames
from forebay.formats.beats.versions import (
    HEADER_BYTES_MAX,
    LAYOUTS,
    OPTION_PROTOBUF,
    OPTIONS_KNOWN,
    Dialect,
    Header,
    Layout,
    claimed_layouts,
    decode_header_as,
    words_of,
)
from forebay.kernels.beats import check_cbor

# The reason of the damage if a file is all zeros.
ZEROS = "nothing but zeros"
_FIRST_BYTES = 4096
# How much of a segment is searched for a frame, one size after the other: the first event may be
# damaged and tens of megabytes long.
_SEARCH_BYTES = (1 << 20, 16 << 20, 2 * EVENT_BYTES_MAX)
# The start of every CBOR event of Beats and Forebay, and the number of bytes to look for it in. It
# is visible under each compression but not with a wrong key, so it distinguishes a damaged segment
# from one that is opened with a wrong key.
_EVENT_START = b"\xa4\x69timestamp"
_SIGN_BYTES = 48
# A raw LZ4 block of literals starts with their number, in one byte per 255.
_LENGTH_BYTES_MAX = EVENT_BYTES_MAX // 255 + 1


def recognise(
    raw: RawBytes, path: str, *, key: Key | None = None, dialect: Dialect | None = None
) -> Header:
    """Returns the header of a segment. `dialect` is which version 2 it is, if known.

    Raises Damaged (torn) if the file ends within its header, Damaged if it is zeros or empty,
    UnsupportedVersion, or WrongKey.
    """
    data = raw.pread(HEADER_BYTES_MAX, 0)
    if len(data) < 4:
        reason = "the file ends within its header" if data else "the file is empty"
        raise Damaged(Damage(path, 0, len(data), reason, torn=True))
    claimed = _headers(claimed_layouts(data, dialect), data)
    # Tried only if none of the rows that the words allow is the right one.
    others = (
        header
        for row in LAYOUTS.values()
        if dialect in (None, row.dialect)
        for header in _headers([row], data)
    )
    # Without room for a frame, a repaired vector cannot be tested.
    framed = raw.size() > HEADER_BYTES_MAX + FRAME_BYTES
    # The strongest evidence comes first. A frame of the seed's version 3 also verifies as one of
    # its version 2, but its content is then not an event.
    tries: tuple[tuple[_Evidence, Iterable[Header]], ...] = (
        (_Evidence(path, key, _first_event, _looks_like_event), claimed),
        (_Evidence(path, key, _first_event, _looks_like_event), others),
        (_Evidence(path, key, _first_event, bool), claimed),
        (_Evidence(path, key, _find_event, bool), claimed),
        (_Evidence(path, key, _first_event, bool), _mended_vectors(claimed if framed else [])),
        # If the whole start is lost, later frames can still be recognised as frames.
        (_Evidence(path, None, _find_event, _looks_like_event), _header_in_clear(data, dialect)),
    )
    for evidence, headers in tries:
        header = evidence.first(raw, headers)
        if header is not None:
            return header
    return _without_evidence(raw, path, key, claimed, data)


@dataclass(frozen=True)
class _Evidence:
    """What must be found under a header for it to count."""

    path: str
    key: Key | None
    find: Callable[[LogicalBytes, Header], bytes | None]
    accept: Callable[[bytes], bool]

    def first(self, raw: RawBytes, headers: Iterable[Header]) -> Header | None:
        """Returns the first header that has the evidence."""
        for header in headers:
            if header.layout.encrypted and self.key is None:
                continue
            if header.layout.compression == "stream" and not _has_stream(
                raw, header, self.key, self.path
            ):
                continue
            event = self.find(open_bytes(raw, header, self.key, self.path), header)
            if event is not None and header.options & OPTION_PROTOBUF:
                _refuse_protobuf(header, event, self.path)
            if event is not None and self.accept(event):
                return header
        return None


def _headers(rows: Iterable[Layout], data: bytes) -> list[Header]:
    headers = (decode_header_as(row, data) for row in rows)
    return [header for header in headers if header is not None]


def _header_in_clear(data: bytes, dialect: Dialect | None) -> list[Header]:
    """Returns the header for reading frames whose own header is gone.

    The unencrypted rows differ in the position of the first frame, which is lost too.
    """
    header = decode_header_as(LAYOUTS["v2"], data)
    return (
        []
        if header is None or dialect == "seed"
        else [replace(header, count=0, options=0, repaired=True)]
    )


def _mended_vectors(headers: list[Header]) -> Iterator[Header]:
    """Yields encrypted headers with one bit of the vector flipped.

    Without this, a single bad bit in those 16 bytes would cost every event of the segment.
    """
    for header in headers:
        vector = int.from_bytes(header.iv, "big")
        for bit in range(8 * len(header.iv)):
            mended = (vector ^ 1 << bit).to_bytes(IV_BYTES, "big")
            yield replace(header, iv=mended, repaired=True)


def _looks_like_event(event: bytes) -> bool:
    return event.startswith(b"{") or check_cbor(event) >= 0


def _first_event(content: LogicalBytes, header: Header) -> bytes | None:
    frames = Frames(header)
    start = header.layout.header_bytes
    data = content.pread(_FIRST_BYTES, start)
    size = frames.frame_size(data, 0)
    # A wrong row yields sizes of gigabytes: check only the trailing size first.
    if size is None or content.pread(4, start + size - 4) != data[:4]:
        return None
    values, _ = frames.scan(content.pread(size, start), 0, 0, 1, None)
    return values[0] if values else None


def _find_event(content: LogicalBytes, header: Header) -> bytes | None:
    frames = Frames(header)
    searched = 0
    for size in _SEARCH_BYTES:
        data = content.pread(size, header.layout.header_bytes)
        if len(data) <= searched:
            break
        found = frames.find(data, 0, 0, 2**62)
        if found is not None:
            return frames.scan(data, found[0], 0, 1, None)[0][0]
        searched = len(data)
    return None


def _refuse_protobuf(header: Header, event: bytes, path: str) -> None:
    """Rejects Protobuf events; if the event is not Protobuf, the bit alone may be damage."""
    if header.layout.dialect == "released" and not _looks_like_event(event):
        raise _protobuf(path, header.options)


def _protobuf(path: str, options: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{path}: Protobuf events (options {options:#x}), as elastic-agent-shipper wrote them; "
        "this program reads CBOR and JSON events"
    )


def _without_evidence(
    raw: RawBytes, path: str, key: Key | None, claimed: list[Header], data: bytes
) -> Header:
    """Decides by the words alone: no event can be read, or none with this key."""
    version, options = (*words_of(data, 3), 0, 0)[0:3:2]
    if raw.size() > LAYOUTS["v0"].header_bytes and not any(data):
        # A file system leaves this of a file that it lost; a version 0 segment has frames here.
        raise Damaged(Damage(path, 0, raw.size(), ZEROS))
    if not claimed_layouts(data, None):
        raise UnsupportedVersion(f"{path}: Beats version {version}; this program reads 0 to 3")
    if not claimed:
        reason = "the file ends within its header"
        raise Damaged(Damage(path, 0, len(data), reason, torn=True))
    for header in claimed:
        if header.layout.encrypted and key is not None and _has_sign(raw, header, key, path):
            return header
    first = claimed[0]
    if first.layout.encrypted:
        # Fewer bytes would prove nothing about the key.
        if key is None or raw.size() - first.layout.body_position >= _SIGN_BYTES // 2:
            raise _wrong_key(path, first, key)
    elif first.layout.dialect == "released" and OPTION_PROTOBUF <= options <= OPTIONS_KNOWN:
        raise _protobuf(path, options)
    return first


def _has_sign(raw: RawBytes, header: Header, key: Key, path: str) -> bool:
    """Returns whether a key decrypts the first bytes to known ones, although no frame verifies."""
    if header.layout.compression == "stream":
        return _has_stream(raw, header, key, path)
    start = _start_of_body(raw, header, key, path)
    if header.layout.compression == "block" and start[5:21] == b"\xff" * 16:
        # After the frame size there are only bytes of a length: that of a long run of literals.
        start = _start_of_body(raw, header, key, path, _LENGTH_BYTES_MAX + _SIGN_BYTES)
        start = start[5:].lstrip(b"\xff")[: 2 * len(_EVENT_START)]
    return _EVENT_START in start


def _has_stream(raw: RawBytes, header: Header, key: Key | None, path: str) -> bool:
    """Returns whether an LZ4 stream starts here: with its magic, or with what follows a magic."""
    start = _start_of_body(raw, header, key, path)
    return start.startswith(MAGIC) or start[len(MAGIC) :].startswith(DESCRIPTOR[len(MAGIC) :])


def _start_of_body(
    raw: RawBytes, header: Header, key: Key | None, path: str, size: int = _SIGN_BYTES
) -> bytes:
    """Returns the first bytes after header and vector, decrypted but not decompressed."""
    layout = replace(header.layout, compression="none")
    content = open_bytes(raw, replace(header, layout=layout), key, path)
    return content.pread(size, layout.header_bytes)


def _wrong_key(path: str, header: Header, key: Key | None) -> WrongKey:
    name = header.layout.name
    if key is None:
        return WrongKey(f"{path}: the segment is encrypted ({name}); give the key for it")
    return WrongKey(
        f"{path}: no frame verifies with this key ({name}); it is not the key of this segment"
    )
