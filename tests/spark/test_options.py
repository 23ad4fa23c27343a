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
    with pytest.raises(InvalidOption) as raised:
        parse(**{name: value})

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


def test_a_relative_path_is_taken_from_the_working_directory() -> None:
    assert paths.absolute("spool/events") == os.path.join(os.getcwd(), "spool/events")
    assert paths.absolute("file:///spool/a%20b") == "/spool/a b"
    with pytest.raises(InvalidOption, match="must be a directory that every executor can see"):
        paths.absolute("hdfs://host/spool")


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
