"""The options of the source: named as in Kafka's source and Spark's file source, checked at once.

The error for a wrong option names the option, its value and what is allowed; the error for an
unknown option lists the known ones. Option names are case-insensitive.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forebay.errors import InvalidOption

TABLES = ("records", "consumers", "segments", "damage")
VIEWS = ("merged", "raw")
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
MAX_PARTITION_BYTES = 128 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h)", re.IGNORECASE)
_BYTES = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)

# Options that Spark itself adds.
_OF_SPARK = {"path", "paths", "checkpointlocation", "queryname"}
_NO_PATH = (
    "path is missing: give load() a queue directory, several, or a glob; in SQL use CREATE "
    "TEMPORARY VIEW name USING forebay OPTIONS (path '...'): to a table in the catalog Spark "
    "passes no options"
)

# "earliest", "latest", "consumer:NAME", an offset, or an offset per path.
Bound = str | int | dict[str, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read."""

    paths: tuple[str, ...]
    table: str = "records"
    columns: tuple[str, ...] | None = None
    mode: str = "FAILFAST"
    start: Bound | None = None
    end: Bound | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    partition_bytes: int = MAX_PARTITION_BYTES
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    pushdown: bool = True
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_seconds: float = 900.0
    consumer: str | None = None
    key_file: str | None = None
    view: str = "merged"
    start_deadline_ms: int | None = None
    end_deadline_ms: int | None = None
    # The texts of snapshots, by the path of the queue.
    snapshots: dict[str, str] = field(default_factory=dict)
    # The end offset of another query.
    resume: dict[str, Any] | None = None
    # The address of the archive of the queue that is opened; not an option of the user.
    archive: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parses Spark's options; raises `InvalidOption`."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - set(_OPTIONS) - _OF_SPARK)
        if unknown == ["location"] and not given.keys() & {"path", "paths"}:
            raise InvalidOption(_NO_PATH)
        if unknown:
            names = ", ".join(name for name, _, _ in _TABLE)
            raise InvalidOption(f"option {unknown[0]!r} is unknown; known options: path, {names}")
        chosen: dict[str, Any] = {}
        for lowered, value in given.items():
            if lowered in _OPTIONS:
                name, field, convert = _OPTIONS[lowered]
                chosen[field] = _converted(name, value, convert)
        parsed = cls(paths=_paths(given), **chosen)
        for one, other, both in (
            ("startingOffsets", "startingTimestamp", (parsed.start, parsed.start_ms)),
            ("endingOffsets", "endingTimestamp", (parsed.end, parsed.end_ms)),
            ("maxOffsetsPerTrigger", "maxBytesPerTrigger", (parsed.max_records, parsed.max_bytes)),
        ):
            if None not in both:
                raise InvalidOption(f"{one} and {other} exclude each other; give only one")
        return parsed


def _converted(name: str, value: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise InvalidOption(f"{name} = {value!r}: must be {error}") from None


def _one_of(*allowed: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        for word in allowed:
            if value.lower() == word.lower():
                return word
        raise ValueError("one of " + ", ".join(allowed))

    return convert


def _boolean(value: str) -> bool:
    return _one_of("true", "false")(value) == "true"


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise ValueError("a whole number above 0")
    return int(value)


def _bytes(value: str) -> int:
    match = _BYTES.fullmatch(value.strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if size == 0:
        raise ValueError("a size in bytes above 0, such as 134217728 or 128m")
    return size


def _time_ms(value: str) -> int:
    if value.isdecimal():
        return int(value)
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        time = None
    # Without a zone it would mean something else on another machine.
    if time is None or time.tzinfo is None or time.timestamp() < 0:
        raise ValueError("milliseconds since 1970, or a time with a zone: 2026-11-01T09:00:00Z")
    return round(time.timestamp() * 1000)


def _seconds(value: str) -> float:
    match = _DURATION.fullmatch(value.strip())
    seconds = int(match[1]) * _SECONDS[match[2].lower()] if match else 0.0
    if not seconds:
        raise ValueError("a time above 0, such as 500ms, 30s, 15m or 1h")
    return seconds


def _columns(value: str) -> tuple[str, ...]:
    # As in Spark's SQL, upper and lower case mean the same.
    names = tuple(name.strip().lower() for name in value.split(","))
    if "" in names or len(set(names)) != len(names):
        raise ValueError("names of columns, each once, separated by commas")
    return names


def _bound(*words: str) -> Callable[[str], Bound]:
    def convert(value: str) -> Bound:
        text = value.strip()
        if text.isdecimal():
            return int(text)
        if text in words or (text.startswith("consumer:") and "consumer:NAME" in words):
            return text
        if text.startswith("{"):
            return _offsets(text)
        raise ValueError(", ".join(words) + ', an offset, or a JSON object {"path": offset}')

    return convert


def _offsets(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = {"": None}
    if not all(type(offset) is int and offset >= 0 for offset in found.values()):
        raise ValueError('a JSON object of whole numbers {"path": offset}')
    return {str(path): offset for path, offset in found.items()}


def _snapshots(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ValueError('a JSON object {"path": snapshot}')
    return found


def _places(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("queues"), dict):
            return found
    except json.JSONDecodeError:
        pass
    raise ValueError("the end offset of another query, as its progress has it")


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = json.loads(given["paths"]) if "paths" in given else []
    if "path" in given:
        paths.append(given["path"])
    if not paths:
        raise InvalidOption(_NO_PATH)
    return tuple(paths)


# Option, field, and the function that parses its text.
_TABLE: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("table", "table", _one_of(*TABLES)),
    ("columns", "columns", _columns),
    ("mode", "mode", _one_of(*MODES)),
    ("startingOffsets", "start", _bound("earliest", "latest", "consumer:NAME")),
    ("endingOffsets", "end", _bound("latest")),
    ("startingTimestamp", "start_ms", _time_ms),
    ("endingTimestamp", "end_ms", _time_ms),
    ("maxPartitionBytes", "partition_bytes", _bytes),
    ("minPartitions", "min_partitions", _count),
    ("failOnDataLoss", "fail_on_data_loss", _boolean),
    ("pushdown", "pushdown", _boolean),
    ("maxOffsetsPerTrigger", "max_records", _count),
    ("maxBytesPerTrigger", "max_bytes", _bytes),
    ("minOffsetsPerTrigger", "min_records", _count),
    ("maxTriggerDelay", "max_delay_seconds", _seconds),
    ("consumerId", "consumer", str),
    ("keyFile", "key_file", os.path.abspath),
    ("view", "view", _one_of(*VIEWS)),
    ("startingDeadline", "start_deadline_ms", _time_ms),
    ("endingDeadline", "end_deadline_ms", _time_ms),
    ("snapshots", "snapshots", _snapshots),
    ("resumeFrom", "resume", _places),
)
_OPTIONS = {name.lower(): (name, field, convert) for name, field, convert in _TABLE}
