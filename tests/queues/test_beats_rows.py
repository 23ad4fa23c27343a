"""Each row of what the original reader obeys, on the files that a queue wrote.

`Strict` takes what the original reader takes and no more: it stands for it. The numbers of the rows
are those of docs/formats/beats.md, "Events".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay import Event, InvalidEvent
from tests.formats.beats_independent import read_segment
from tests.queues.beats_helpers import WRITABLE, open_queue, segment_names

KEYS = ["timestamp", "flags", "meta", "fields"]


class Strict:
    """Reads one event as the original reader does; an assertion fails where that would not."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def event(self) -> dict[str, Any]:
        value = self._value()
        # Row 9: nothing may follow the event.
        assert self._position == len(self._data)
        # Rows 1 and 2: the four keys, in lower case and no other; we write all of them, in order.
        assert list(value) == KEYS
        # Row 3: never null.
        assert isinstance(value["meta"], dict)
        assert isinstance(value["fields"], dict)
        # Row 10: more would be cut.
        assert 0 <= value["flags"] <= 255
        return dict(value)

    def _value(self) -> Any:
        first = self._take(1)[0]
        major, minor = first >> 5, first & 31
        if major == 7:
            return self._simple(minor)
        # Row 7: no tags. Rows 5 and 6: every length comes first, and is as short as it can be.
        assert major != 6
        number = self._number(minor)
        if major in (0, 1):
            return number if major == 0 else -1 - number
        if major == 2:
            return self._take(number)
        if major == 3:
            return self._take(number).decode("utf-8", "surrogateescape")
        if major == 4:
            return [self._value() for _ in range(number)]
        return dict(self._pair() for _ in range(number))

    def _pair(self) -> tuple[str, Any]:
        # Row 6: keys are text. Row 4: and not empty.
        assert self._data[self._position] >> 5 == 3
        key = self._value()
        assert key != ""
        return key, self._value()

    def _number(self, minor: int) -> int:
        if minor < 24:
            return minor
        assert minor <= 27
        size = 1 << (minor - 24)
        number = int.from_bytes(self._take(size), "big")
        assert number >= (24 if size == 1 else 1 << (4 * size))
        return number

    def _simple(self, minor: int) -> Any:
        # Row 7: no half floats. Row 8: nothing undefined.
        assert minor in (20, 21, 22, 26, 27)
        if minor >= 26:
            return self._take(4 << (minor - 26))
        return {20: False, 21: True, 22: None}[minor]

    def _take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        assert len(data) == size
        self._position += size
        return data


def written(path: Path, version: str, event: Any) -> dict[str, Any]:
    """Lets a queue write an event, and reads its file as the original reader does."""
    with open_queue(path, version, segment_bytes=10_000) as queue:
        queue.put(event)
    (name,) = segment_names(path)
    (payload,) = read_segment(version, (path / name).read_bytes())
    return Strict(payload).event()


ROWS: dict[str, Any] = {
    "1: all four keys": Event(1, 1, {"a": 1}, {"b": 2}),
    "1: none of them given": {},
    "1: fields alone": {"fields": {"message": "x"}},
    "3: empty maps": Event(1, 0, {}, {}),
    "5: maps and lists": Event(
        1, 0, {}, {"l": list(range(300)), "m": {str(n): n for n in range(99)}}
    ),
    "6: long text": Event(1, 0, {}, {"t": "x" * 700}),
    "7: floats": Event(1, 0, {}, {"f": [0.0, 1.5, -0.0, 1e300, float("nan"), float("inf")]}),
    "7: times": Event(1, 0, {}, {"t": datetime(2021, 1, 2, tzinfo=UTC), "d": timedelta(seconds=2)}),
    "7: bytes": Event(1, 0, {}, {"b": b"\0\xff", "m": memoryview(b"x"), "a": bytearray(b"y")}),
    "8: null": Event(1, 0, {}, {"n": None, "deep": [[{"n": None}]]}),
    "10: flags": Event(1, 255),
    "integers": Event(-(2**63), 0, {}, {"i": [0, 23, 24, 255, 256, 65536, 2**32, 2**64 - 1, -200]}),
    "text that is not UTF-8": Event(1, 0, {}, {"a\udcff": "b\udcfe"}),
}
REFUSED: dict[str, Any] = {
    "2: another key": {"@timestamp": 1},
    "2: capitals": {"Timestamp": 1},
    "3: meta is null": Event(1, 0, None, {}),  # type: ignore[arg-type]
    "3: fields is null": Event(1, 0, {}, None),  # type: ignore[arg-type]
    "4: an empty key": Event(1, 0, {}, {"a": [{"": 1}]}),
    "6: an integer as key": Event(1, 0, {}, {"a": {1: 2}}),
    "7: what only a tag could say": Event(1, 0, {}, {"a": 2**64}),
    "10: flags above 255": Event(1, 256),
    "no such type": Event(1, 0, {}, {"a": {1, 2}}),
    "a cycle": Event(1, 0, {}, {}),
}
REFUSED["a cycle"].fields["self"] = REFUSED["a cycle"].fields


@pytest.mark.parametrize("version", WRITABLE)
@pytest.mark.parametrize("row", ROWS)
def test_what_the_queue_wrote_the_original_reader_takes(
    tmp_path: Path, row: str, version: str
) -> None:
    event = ROWS[row]

    value = written(tmp_path / "q", version, event)

    fields = event.fields if isinstance(event, Event) else event.get("fields", {})
    assert list(value["fields"]) == list(fields)


@pytest.mark.parametrize("row", REFUSED)
def test_what_it_would_not_take_is_refused_before_anything_is_on_the_disk(
    tmp_path: Path, row: str
) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        with pytest.raises(InvalidEvent):
            queue.put_many([Event(1), REFUSED[row]])

        assert segment_names(tmp_path / "q") == []
