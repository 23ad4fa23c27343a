"""What determines the tables of an output: the part of an ingest that must not change unnoticed.

A definition is stored with the tables and compared at every start. Its texts are compared exactly,
except for white space in the schema. Durations have the usual forms: `500ms`, `30s`, `5 minutes`,
`1d`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, Required, TypeAlias, TypedDict

from forebay.errors import InvalidOption
from forebay.spark.paths import directory
from forebay.tables.protocol import FORMATS

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_LIMIT = re.compile(r"(\d{1,12}(\.\d+)?)\s*(%?)")
_CATALOG = re.compile(r"[\w-]+(\.\w+)?")
_DURATION = re.compile(r"(\d{1,12})\s*([a-z]+)")


def duration_ms(name: str, text: object) -> int:
    """Parses the value of the option `name`; raises `InvalidOption`."""
    match = _DURATION.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    ms = int(match[1]) * _UNITS_MS.get(match[2], 0) if match else 0
    if ms == 0:
        raise InvalidOption(
            f"{name} = {text!r}: must be a duration above 0, such as '500ms', '30s', "
            "'5 minutes', '2h' or '1d'"
        )
    return ms


@dataclass(frozen=True, slots=True)
class Limit:
    """How many records of a batch may be rejected: a share, or a number."""

    text: str
    share: float | None
    count: int

    @classmethod
    def parse(cls, name: str, value: object) -> Limit:
        """Parses "1%", "0.5%" or a number; raises `InvalidOption`."""
        text = str(value).strip()
        match = _LIMIT.fullmatch(text) if isinstance(value, str | int) else None
        if match is None or isinstance(value, bool) or (match[3] and float(match[1]) > 100):
            raise InvalidOption(
                f"{name} = {value!r}: must be a share of each batch, such as '1%', or a number of "
                "records"
            )
        if match[3]:
            return cls(text, float(match[1]) / 100, 0)
        if match[2]:
            raise InvalidOption(f"{name} = {value!r}: a number of records has no fraction")
        return cls(text, None, int(match[1]))

    def allowed(self, records: int) -> float:
        """Returns how many of so many records may be rejected."""
        return self.count if self.share is None else self.share * records


DECODINGS = ("json", "cbor", "text", "raw")
WITH_SCHEMA = ("json", "cbor")
SELECT_ALL = "SELECT * FROM records"
# The value of `partition_by` that adds a column: the day of `timestamp`, in UTC.
DAY = "day"

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Starting = str | int | datetime
Decoding: TypeAlias = Literal["json", "cbor", "text", "raw"]
Format: TypeAlias = Literal["parquet", "delta", "iceberg"]


class Deduplication(TypedDict):
    """The value of `deduplicate`: columns of `decoded`, and how far apart in time, such as "1h"."""

    key: str | Sequence[str]
    within: str


class DefinitionSettings(TypedDict, total=False):
    """The parameters of `ingest` that define its tables; its docstring explains them."""

    source: Required[Source]
    decode: Decoding
    schema: str | None
    sql: str | None
    deduplicate: Deduplication | None
    format: Format
    partition_by: str | None
    catalog: str | None
    starting: Starting


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Which records are duplicates: those with equal `key` columns, at most `within` apart."""

    key: tuple[str, ...]
    within: str
    within_ms: int

    @classmethod
    def make(cls, given: object) -> Deduplicate:
        """Checks the value that a user gave."""
        if not isinstance(given, Mapping) or set(given) != {"key", "within"}:
            raise InvalidOption(
                f"deduplicate = {given!r}: must have exactly key and within, such as "
                '{key = "id", within = "1h"}'
            )
        key = [given["key"]] if isinstance(given["key"], str) else given["key"]
        if not isinstance(key, list | tuple) or not key or not all(map(_is_name, key)):
            raise InvalidOption(
                f"deduplicate.key = {given['key']!r}: must be a column of decoded, or several"
            )
        within_ms = duration_ms("deduplicate.within", given["within"])
        return cls(tuple(key), given["within"], within_ms)


@dataclass(frozen=True, slots=True)
class Definition:
    """Queues, decoding and tables of one output."""

    source: tuple[str, ...]
    decode: str
    schema: str | None
    sql: str
    deduplicate: Deduplicate | None
    format: str
    partition_by: str | None
    catalog: str | None
    starting: str
    # Whether the queues are deadline queues: each run lands a snapshot of them.
    snapshots: bool = False

    @classmethod
    def make(
        cls,
        *,
        source: object,
        decode: object = "json",
        schema: object = None,
        sql: object = None,
        deduplicate: object = None,
        format: object = "parquet",
        partition_by: object = None,
        catalog: object = None,
        starting: object = "earliest",
        snapshots: object = False,
    ) -> Definition:
        """Checks the values that a user gave, except what only Spark can check later."""
        if not isinstance(decode, str) or decode not in DECODINGS:
            raise InvalidOption(f"decode = {decode!r}: must be one of {', '.join(DECODINGS)}")
        return cls(
            source=_paths(source),
            decode=decode,
            schema=_schema(decode, schema),
            sql=_sql(sql),
            deduplicate=None if deduplicate is None else Deduplicate.make(deduplicate),
            format=_format(format),
            partition_by=None if partition_by is None else _name("partition_by", partition_by),
            catalog=_catalog(format, catalog),
            starting=_starting(starting),
            snapshots=snapshots is True,
        )

    def document(self) -> dict[str, Any]:
        """Returns the definition in its stored form."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["source"] = list(self.source)
        if self.deduplicate is not None:
            same = self.deduplicate
            plain["deduplicate"] = {"key": list(same.key), "within": same.within}
        return plain

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Definition:
        """Reads the result of `document`."""
        return cls.make(**document)

    @property
    def digest(self) -> str:
        """Returns a short text that differs between definitions, whatever they read."""
        text = json.dumps({**self.document(), "source": None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: Definition) -> list[str]:
        """Lists the fields that differ in another definition."""
        names = (field.name for field in fields(self))
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def _paths(source: object) -> tuple[str, ...]:
    given = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(given, list | tuple) or not given:
        raise InvalidOption(f"source = {source!r}: must be a queue directory, a glob, or several")
    for path in given:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidOption(f"source: {path!r} is not a path")
    return tuple(sorted({directory(os.fspath(path)) for path in given}))


def _schema(decode: str, schema: object) -> str | None:
    if decode in WITH_SCHEMA:
        if isinstance(schema, str) and schema.strip():
            return " ".join(schema.split())
        raise InvalidOption(
            f"schema = {schema!r}: decode = {decode!r} needs the columns as DDL, such as "
            "'id BIGINT, amount DOUBLE'"
        )
    if schema is not None:
        column = "text STRING" if decode == "text" else "value BINARY"
        raise InvalidOption(f"schema = {schema!r}: decode = {decode!r} has just {column}")
    return None


def _sql(sql: object) -> str:
    if sql is None:
        return SELECT_ALL
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidOption(f"sql = {sql!r}: must be a query over the view records")
    return sql.strip().rstrip(";").rstrip()


def _format(format: object) -> str:
    if not isinstance(format, str) or format not in FORMATS:
        raise InvalidOption(f"format = {format!r}: must be one of {', '.join(FORMATS)}")
    return format


def _name(option: str, value: object) -> str:
    if not _is_name(value):
        raise InvalidOption(f"{option} = {value!r}: must be 'day' or a column of decoded")
    return str(value)


def _catalog(format: object, catalog: object) -> str | None:
    if catalog is None:
        return None
    if format != "iceberg":
        raise InvalidOption(f"catalog = {catalog!r}: only format = 'iceberg' has one")
    if not isinstance(catalog, str) or not _CATALOG.fullmatch(catalog):
        raise InvalidOption(
            f"catalog = {catalog!r}: must be NAME or NAME.NAMESPACE, with NAME in the "
            "configuration of pyiceberg"
        )
    return catalog


def _starting(starting: object) -> str:
    if isinstance(starting, int) and not isinstance(starting, bool) and starting >= 0:
        return str(starting)
    if isinstance(starting, str) and starting in ("earliest", "latest"):
        return starting
    if isinstance(starting, str) and starting.isascii() and starting.isdecimal():
        return str(int(starting))
    try:
        time = starting if isinstance(starting, datetime) else datetime.fromisoformat(str(starting))
    except ValueError:
        raise InvalidOption(
            f"starting = {starting!r}: must be 'earliest', 'latest', an offset, or a time such as "
            "2026-11-01T09:00:00Z"
        ) from None
    return time.astimezone(UTC).isoformat()


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
