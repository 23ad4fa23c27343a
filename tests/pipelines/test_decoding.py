"""Tests of decoding by Spark: what fits, what is rejected and why, what is rescued."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import cbor2
import pytest

from forebay.errors import InvalidOption
from forebay.pipelines.ingest import decoding
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import LANDED_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = (
    "id BIGINT, amount DOUBLE, name STRING, at TIMESTAMP, inner STRUCT<x: INT>, price DECIMAL(10,2)"
    ", small TINYINT, narrow FLOAT, day DATE, tags ARRAY<STRING>, deep STRUCT<s: STRING>"
)

GOOD: dict[bytes, dict[str, Any]] = {
    b'{"id":1,"amount":2,"name":"a"}': {"id": 1, "amount": 2.0, "name": "a"},
    b"{}": {},
    b' {"id":null}\n': {},
    b'{"name":12}': {"name": "12"},
    b'{"name":{"a":[1]}}': {"name": '{"a":[1]}'},
    b'{"inner":{"x":1,"y":2}}': {"inner": {"x": 1}},
    b'{"ID":7}': {"_rescued": '{"ID":7}'},
    b'{"id":1,"b":"1","a":{"c":[null]}}': {"id": 1, "_rescued": '{"a":{"c":[null]},"b":"1"}'},
    '{"name":"ä","é":1}'.encode(): {"name": "ä", "_rescued": '{"é":1}'},
    # What is no text stays as it was written, to the last digit.
    b'{"name":12345678901234567890.120}': {"name": "12345678901234567890.120"},
    b'{"name":1.10}': {"name": "1.10"},
    b'{"name" :  1e400 }': {"name": "1e400"},
    b'{"name":-0}': {"name": "-0"},
    b'{"name":{"price": 0.10000000000000000555, "x":"\\u00e9"}}': {
        "name": '{"price": 0.10000000000000000555, "x":"\\u00e9"}'
    },
    b'{"n\\u0061me":1.10}': {"name": "1.10"},
    b'{"tags":[1.10,"a",null,true]}': {"tags": ["1.10", "a", None, "true"]},
    b'{"deep":{"s":1.10}}': {"deep": {"s": "1.10"}},
    b'{"other":1.10,"big":12345678901234567890123456789012345678901}': {
        "_rescued": '{"big":12345678901234567890123456789012345678901,"other":1.10}'
    },
    b'{"price":12345678.9}': {"price": Decimal("12345678.90")},
    b'{"price":1.100}': {"price": Decimal("1.10")},
    b'{"price":1e2}': {"price": Decimal("100.00")},
    b'{"amount":1e308,"narrow":3.4e38}': {"amount": 1e308, "narrow": 3.3999999521443642e38},
    b'{"small":-128}': {"small": -128},
    b'{"day":"2024-01-02"}': {"day": date(2024, 1, 2)},
    b'{"name":"\\ud83d\\ude00"}': {"name": "\U0001f600"},
    b'{"name":"\\\\ud800"}': {"name": "\\ud800"},
    b'{"id":1,"id":2,"q":1}': {"id": 2, "_rescued": '{"id":1,"id":2,"q":1}'},
}
BAD = {
    b"": "empty",
    b"  ": "empty",
    b"null": "not a JSON object",
    b"[1]": "not a JSON object",
    b'[{"id":1}]': "not a JSON object",
    b"12": "not a JSON object",
    b"x": "not JSON",
    b'{"id":1': "not JSON",
    b'{"id":1} x': "not JSON",
    b'{"id":1}{"id":2}': "not JSON",
    b"{'id':1}": "not JSON",
    b'{"amount":NaN}': "not JSON",
    b'{"amount":"NaN"}': "amount is not double: NaN",
    b'{"name":"\xff"}': "not UTF-8",
    b'{"id":"1"}': "id is not bigint: 1",
    b'{"id":1.5}': "id is not bigint: 1.5",
    b'{"id":99999999999999999999}': "id is not bigint: 99999999999999999999",
    b'{"id":{},"amount":"x","name":"a"}': "id is not bigint: {}; amount is not double: x",
    b'{"at":"yesterday"}': "at is not timestamp: yesterday",
    b'{"inner":{"x":"1"}}': 'inner is not struct<x:int>: {"x":"1"}',
    b'{"amount":1e400}': "amount is not double: 1e400",
    b'{"narrow":1e39}': "narrow is not float: 1e39",
    b'{"price":1.005}': "price is not decimal(10,2): 1.005",
    b'{"price":0.001}': "price is not decimal(10,2): 0.001",
    b'{"price":"1.5"}': "price is not decimal(10,2): 1.5",
    b'{"price":"1,000"}': "price is not decimal(10,2): 1,000",
    b'{"at":1700000000000}': "at is not timestamp: 1700000000000",
    b'{"at":1700000000}': "at is not timestamp: 1700000000",
    # Spark takes the date of today.
    b'{"at":"12:30"}': "at is not timestamp: 12:30",
    # Spark takes a number of days.
    b'{"day":"20240102"}': "day is not date: 20240102",
    b'{"small":200}': "small is not tinyint: 200",
    b'{"name":"\\ud800"}': "a lone surrogate",
    b'{"other":["\\udc00\\ud800"]}': "a lone surrogate",
    b'{"deep":{"s":1.10}} x': "not JSON",
}


def landed(spark: SparkSession, values: list[bytes]) -> DataFrame:
    rows = [("/q", "log", n, None, bytearray(value), "s", 0, "") for n, value in enumerate(values)]
    return spark.createDataFrame(rows, LANDED_DDL)


def definition(**given: Any) -> Definition:
    return Definition.make(**{"source": "/q", **given})


def by_offset(rows: DataFrame) -> dict[int, dict[str, Any]]:
    """Gives the columns of each row that are not null, without those that say where it is from."""
    found = {}
    for row in rows.collect():
        plain = row.asDict(recursive=True)
        offset = plain.pop("offset")
        del plain["queue"], plain["timestamp"]
        found[offset] = {name: value for name, value in plain.items() if value is not None}
    return found


def test_json_that_fits_becomes_columns_and_the_rest_is_rescued(spark: SparkSession) -> None:
    with decoding.decoded(landed(spark, [*GOOD, *BAD]), definition(schema=DDL)) as rows:
        found = by_offset(rows)

    assert dict(enumerate(GOOD.values())) == found


def test_json_that_does_not_fit_is_rejected_with_the_reason(spark: SparkSession) -> None:
    rows = decoding.rejected(landed(spark, [*GOOD, *BAD]), definition(schema=DDL))

    found = {row["offset"] - len(GOOD): row["reason"] for row in rows.collect()}

    assert found == dict(enumerate(BAD.values()))
    assert rows.columns == [*landed(spark, []).columns, "reason"]


def test_cbor_is_decoded_by_the_rules_of_json(spark: SparkSession) -> None:
    # CBOR has its own forms of what JSON can write in several.
    whole = {value: row for value, row in GOOD.items() if not re.search(rb"[.]|e400|-0", value)}
    good = [*([json.loads(value) for value in whole][:-1]), {"amount": math.inf, "more": math.nan}]
    good.append({"price": Decimal("1.50"), "name": 1.5, "x": 2.50})
    values = [*map(cbor2.dumps, good), b"\xff", cbor2.dumps([1]), cbor2.dumps({"id": "x"})]
    how = definition(decode="cbor", schema=DDL)

    with decoding.decoded(landed(spark, values), how) as rows:
        found = by_offset(rows)
    rejects = decoding.rejected(landed(spark, values), how)

    infinite = {"amount": math.inf, "_rescued": '{"more":"NaN"}'}
    exact = {"price": Decimal("1.50"), "name": "1.5", "_rescued": '{"x":2.5}'}
    assert found == dict(enumerate([*list(whole.values())[:-1], infinite, exact]))
    reasons = [row["reason"] for row in rejects.orderBy("offset").collect()]
    assert reasons[0].startswith("not CBOR")
    assert reasons[1:] == ["not a JSON object", "id is not bigint: x"]


def test_text_must_be_utf_8_and_raw_may_be_anything(spark: SparkSession) -> None:
    values = landed(spark, ["é".encode(), b"\xff", b""])
    text, raw = definition(decode="text"), definition(decode="raw")

    with decoding.decoded(values, text) as rows:
        assert by_offset(rows) == {0: {"text": "é"}, 2: {"text": ""}}
    with decoding.decoded(values, raw) as rows:
        assert len(by_offset(rows)) == 3
    assert [row["reason"] for row in decoding.rejected(values, text).collect()] == ["not UTF-8"]
    assert decoding.rejected(values, raw).count() == 0


def test_the_sql_sees_the_records_and_leaves_no_view_behind(spark: SparkSession) -> None:
    sql = "SELECT queue, offset, timestamp, id * 2 AS twice FROM records WHERE id > 1"
    values = landed(spark, [b'{"id":1}', b'{"id":2}', b"x"])

    with decoding.decoded(values, definition(schema="id INT", sql=sql)) as rows:
        found = by_offset(rows)

    assert found == {1: {"twice": 4}}
    assert not spark.catalog.tableExists("records")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schema": "id BIGINTT"}, "schema: "),
        ({"schema": "offset INT"}, "the name offset is reserved"),
        ({"schema": "_rescued INT"}, "the name _rescued is reserved"),
        ({"schema": "id INT NOT NULL"}, "NOT NULL cannot be guaranteed"),
        ({"sql": "SELEKT"}, "sql: "),
        ({"sql": "SELECT nothing FROM records"}, "sql: "),
        ({"sql": "SELECT id FROM records"}, "must include queue as it is"),
        ({"sql": "SELECT queue, id AS offset FROM records"}, "must include offset as it is"),
        ({"sql": "SELECT *, id FROM records"}, "the column id more than once"),
        ({"sql": "SELECT *, 1 AS batch FROM records"}, "already have a column batch"),
        ({"deduplicate": {"key": "ids", "within": "1h"}}, "'ids' is not a column of decoded"),
        (
            {
                "sql": "SELECT queue, offset, id FROM records",
                "deduplicate": {"key": "id", "within": "1h"},
            },
            "the column timestamp, which the SQL leaves out",
        ),
    ],
)
def test_a_wrong_schema_or_sql_is_refused_before_anything_is_read(
    spark: SparkSession, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        decoding.check_columns(spark, definition(**{"schema": "id INT", **given}))

    assert message in str(caught.value)


def test_a_view_of_the_user_with_the_same_name_is_not_overwritten(spark: SparkSession) -> None:
    spark.range(1).createOrReplaceTempView("records")
    try:
        with pytest.raises(InvalidOption, match="a temporary view records exists"):
            decoding.check_columns(spark, definition(schema="id INT"))
    finally:
        spark.catalog.dropTempView("records")
