"""Tests of what Python makes of JSON records that Spark would alter, without Spark."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import cbor2
import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from forebay.pipelines.ingest import cbor
from forebay.pipelines.ingest.exact_json import EXACT_TYPE, Exact, looking, shape_of, suspects

COLUMNS = StructType(
    [
        StructField("s", StringType()),
        StructField("d", DecimalType(10, 2)),
        StructField("f", DoubleType()),
        StructField("b", ByteType()),
        StructField("t", TimestampType()),
        StructField("n", LongType()),
        StructField("a", ArrayType(StringType())),
        StructField("m", MapType(StringType(), StringType())),
        StructField("o", StructType([StructField("s", StringType())])),
    ]
)
EXACT = Exact(shape_of(COLUMNS))
SUSPECTS = re.compile("|".join(filter(None, suspects(COLUMNS))))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
RECORDS = st.dictionaries(st.sampled_from("sdfbtnamox"), VALUES, max_size=5)


@pytest.mark.slow
@given(record=RECORDS, spaced=st.booleans(), escaped=st.booleans())
def test_what_is_passed_on_means_what_came(
    record: dict[str, Any], spaced: bool, escaped: bool
) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    text = json.dumps(record, separators=separators, ensure_ascii=escaped)

    made, reason, rescued = EXACT.look(text)

    if reason is None:
        assert made is not None
        passed = json.loads(made)
        for name, value in record.items():
            if name == "s" and not isinstance(value, str | bool | None):
                assert json.loads(passed[name]) == value
            elif name not in "amo":
                assert passed[name] == value
        unknown = {name: value for name, value in record.items() if name == "x"}
        assert (json.loads(rescued) if rescued else {}) == unknown


@pytest.mark.slow
@given(record=RECORDS, spaced=st.booleans(), escaped=st.booleans())
@example(record={"s": False}, spaced=False, escaped=False)
def test_only_suspects_are_changed_or_refused(
    record: dict[str, Any], spaced: bool, escaped: bool
) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    text = json.dumps(record, separators=separators, ensure_ascii=escaped)

    made, reason, _ = EXACT.look(text)

    if SUSPECTS.search(text) is None:
        assert reason is None
        assert json.loads(str(made)) == record


@pytest.mark.parametrize(
    "text",
    [
        '{"s":-1.5}',
        '{"s" : 1}',
        '{"s":[]}',
        '{"s":{}}',
        '{"d":1.005}',
        '{"d":"1"}',
        '{"d":123456789}',
        '{"d":-1e2}',
        '{"f":-1e400}',
        f'{{"f":{"9" * 400}}}',
        '{"b":-200}',
        '{"b":128}',
        '{"t":-1}',
        '{"t":"12:30"}',
        '{"a":[1]}',
        '{"m":{"k":1}}',
        '{"o":{"s":-1}}',
        '{"\\u0073":-1}',
        '{"n":"\\ud800"}',
    ],
)
def test_every_value_that_spark_alters_is_a_suspect(text: str) -> None:
    assert SUSPECTS.search(text) is not None


@given(number=st.decimals(allow_nan=False, allow_infinity=False, places=None))
def test_a_decimal_fits_if_no_digit_of_it_is_lost(number: Decimal) -> None:
    text = f'{{"d":{json_number(number)}}}'

    _, reason, _ = EXACT.look(text)

    assert (reason is None) == (abs(number) < 10**8 and number == round(number, 2))


def json_number(number: Decimal) -> str:
    """Writes a decimal as JSON does: no plus before it, a digit before the point."""
    return f"{number:E}".replace("E+", "e").replace("E", "e")


def test_a_lone_surrogate_in_a_value_that_does_not_fit_is_no_error() -> None:
    look = looking(EXACT)

    found = look(pyarrow.array(['{"t":"\\ud800"}', '{"b":200,"s":"\\udc00"}']))

    assert found.field("reason").to_pylist() == [
        "a lone surrogate; t is not timestamp: \\ud800",
        "a lone surrogate; b is not tinyint: 200",
    ]


def test_a_column_keeps_its_rows_in_order_and_its_nulls() -> None:
    look = looking(Exact(shape_of(COLUMNS), cbor.decode))
    values = [cbor2.dumps({"s": 1}), b"", None, cbor2.dumps([2])]

    found = look(pyarrow.array(values, pyarrow.binary()))

    assert found.type == EXACT_TYPE
    assert found.field("text").to_pylist() == ['{"s":1}', None, None, "[2]"]
    assert found.field("json").to_pylist() == ['{"s":"1"}', None, None, "[2]"]
    assert [bool(reason) for reason in found.field("reason").to_pylist()] == [False, True] + [
        False
    ] * 2
    assert len(look(pyarrow.array([], pyarrow.binary()))) == 0
