"""Options are checked at once, and a wrong one says what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.errors import InvalidOption, NotAQueue
from forebay.spark import paths
from forebay.spark.options import SourceOptions


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"path": "/queue", **options})


def test_defaults_are_those_of_the_page() -> None:
    assert parse() == SourceOptions(paths=("/queue",))


def test_names_do_not_tell_upper_case_from_lower() -> None:
    options = parse(STARTINGOFFSETS="12", maxpartitionbytes="64m", Mode="permissive")

    assert (options.start, options.partition_bytes, options.mode) == (12, 64 << 20, "PERMISSIVE")


def test_several_paths_come_as_json() -> None:
    assert SourceOptions.parse({"paths": '["/a", "/b"]'}).paths == ("/a", "/b")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("table", "rows", "table = 'rows': must be one of records, consumers, segments, damage"),
        ("mode", "IGNORE", "mode = 'IGNORE': must be one of FAILFAST, DROPMALFORMED, PERMISSIVE"),
        ("startingOffsets", "first", "startingOffsets = 'first': must be earliest, latest"),
        ("startingOffsets", "-1", "startingOffsets = '-1': must be earliest, latest"),
        ("startingOffsets", '{"/q": "x"}', "must be a JSON object of whole numbers"),
        ("startingOffsets", "{broken", "must be a JSON object of whole numbers"),
        ("endingOffsets", "earliest", "endingOffsets = 'earliest': must be latest"),
        ("startingTimestamp", "yesterday", "must be milliseconds since 1970"),
        ("startingTimestamp", "2026-11-01T09:00", "or a time with a zone: 2026-11-01T09:00:00Z"),
        ("minPartitions", "0", "must be a whole number above 0"),
        ("maxTriggerDelay", "15", "must be a time above 0, such as 500ms, 30s, 15m or 1h"),
        ("location", "/warehouse/t", "in SQL use CREATE TEMPORARY VIEW"),
        ("maxPartitionBytes", "0", "must be a size in bytes above 0"),
        ("maxPartitionBytes", "10 miles", "must be a size in bytes above 0"),
        ("maxOffsetsPerTrigger", "0", "must be a whole number above 0"),
        ("failOnDataLoss", "maybe", "failOnDataLoss = 'maybe': must be one of true, false"),
        ("columns", "offset,,value", "must be names of columns"),
        ("columns", "offset,offset", "must be names of columns, each once"),
        (
            "startOffset",
            "5",
            "option 'startoffset' is unknown; known options: path, table, columns",
        ),
    ],
)
def test_a_wrong_option_names_itself_and_what_is_allowed(
    name: str, value: str, message: str
) -> None:
    path = {} if name == "location" else {"path": "/queue"}
    with pytest.raises(InvalidOption) as raised:
        SourceOptions.parse({**path, name: value})

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"startingOffsets": "5"}, {"startingTimestamp": "5"}),
        ({"endingOffsets": "5"}, {"endingTimestamp": "5"}),
        ({"maxOffsetsPerTrigger": "5"}, {"maxBytesPerTrigger": "5"}),
    ],
)
def test_options_that_exclude_one_another_are_refused(
    one: dict[str, str], other: dict[str, str]
) -> None:
    with pytest.raises(InvalidOption, match=f"{next(iter(one))} and {next(iter(other))}"):
        parse(**one, **other)


def test_a_missing_path_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="path is missing"):
        SourceOptions.parse({})


def test_times_are_milliseconds_or_iso_and_columns_have_no_case() -> None:
    options = parse(
        startingTimestamp="2027-01-15T09:00:08.001+01:00",
        endingTimestamp="1800000030001",
        columns="Offset,VALUE",
        maxTriggerDelay="2m",
    )

    assert (options.start_ms, options.end_ms) == (1_800_000_008_001, 1_800_000_030_001)
    assert (options.columns, options.max_delay_seconds) == (("offset", "value"), 120)


def test_braces_are_alternatives_as_in_sparks_own_sources() -> None:
    assert sorted(set(paths.alternatives("/spool/{a,b{1,2}}/log"))) == [
        "/spool/a/log",
        "/spool/b1/log",
        "/spool/b2/log",
    ]
    assert list(paths.alternatives("/spool/{a}")) == ["/spool/{a}"]


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("/spool/log", "/spool/**/log", True),
        ("/spool/a/b/log", "/spool/**/log", True),
        ("/spool/a/b", "/spool/**", True),
        ("/spool", "/spool/**", True),
        ("/spool/a/b", "/spool/*", False),
        ("/spool/a", "/spool/[ab]", True),
        ("/spool/[ab]", "/spool/[ab]", True),
        ("/other/log", "/spool/**/log", False),
    ],
)
def test_a_pattern_means_the_same_for_a_directory_that_is_gone(
    path: str, pattern: str, expected: bool
) -> None:
    assert paths.matches(path, pattern) is expected


def test_a_relative_path_is_taken_from_the_working_directory() -> None:
    assert paths.absolute("spool/events") == os.path.join(os.getcwd(), "spool/events")
    assert paths.absolute("file:///spool/a%20b") == "/spool/a b"
    assert paths.absolute("hdfs://host/spool/") == "hdfs://host/spool"


def test_patterns_give_the_directories_that_match_and_names_must_be_there(tmp_path: Path) -> None:
    for name in ("host-1/log", "host-2/log", "host-2/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "host-3").write_text("a file")

    found = paths.expand([f"{tmp_path}/*/log", f"{tmp_path}/host-2/log"])

    assert found == [f"{tmp_path}/host-1/log", f"{tmp_path}/host-2/log"]
    with pytest.raises(NotAQueue, match="host-3' is not a directory"):
        paths.expand([f"{tmp_path}/host-3"])
    with pytest.raises(NotAQueue, match="host-9' does not exist"):
        paths.expand([f"{tmp_path}/host-9"])
