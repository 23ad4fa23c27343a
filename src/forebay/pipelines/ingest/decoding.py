"""Turns raw values into columns, or into a reason if they cannot be decoded.

Spark does the work, not Python: JSON with `from_json`, CBOR through JSON (see `cbor.py`). The rules
are Spark's for JSON: a string of digits is not a number, a whole number has no fraction and must
fit, a STRING column takes any value as its JSON text. Names are case-sensitive. A field that
is missing or null is null. Undeclared fields go to `_rescued`, as JSON. In the rare cases in which
Spark would alter a value, Python processes the record first (see `exact_json.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.definition import DAY, WITH_SCHEMA, Definition
from forebay.pipelines.ingest.output import ITEM_COLUMNS, LANDED, columns_of, ddls

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


VIEW = "records"
RESCUED = "_rescued"
# Columns of the view `records` before the decoded ones.
_PLACE = ("queue", "offset", "timestamp")
_FOUND_CHARACTERS = 40
_DAY_US = 86_400_000_000
_PARTITION_TYPES = ("string", "date", "integer", "long")
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_bad",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
# CBOR has NaN and infinities; in JSON they are texts.
_CBOR_OPTIONS = {**_OPTIONS, "allowNonNumericNumbers": "true"}


@contextlib.contextmanager
def decoded(landed: DataFrame, definition: Definition) -> Iterator[DataFrame]:
    """Yields the rows of `decoded`: records that can be decoded, filtered by the user's SQL.

    The view for the SQL exists as long as the context: Spark Connect may look it up late.
    """
    spark = landed.sparkSession
    _records(landed, definition).createOrReplaceTempView(VIEW)
    try:
        yield _with_day(spark.sql(definition.sql), definition)
    finally:
        spark.catalog.dropTempView(VIEW)


def rejected(landed: DataFrame, definition: Definition) -> DataFrame:
    """Returns the rows of `rejected`: records that cannot be decoded, with the reason."""
    from pyspark.sql import functions as F

    if definition.decode == "raw":
        return landed.limit(0).withColumn("reason", F.lit("").cast("string"))
    if definition.decode == "text":
        bad = landed.where(~F.is_valid_utf8(F.col("value").cast("string")))
        return bad.withColumn("reason", F.lit("not UTF-8"))
    columns = declared_columns(definition)
    bad = _parsed(landed, definition, columns).where(~F.coalesce(_is_good(), F.lit(False)))
    return bad.select(*landed.columns, _reason(definition, columns).alias("reason"))


def check_columns(spark: SparkSession, definition: Definition) -> StructType:
    """Returns the columns of `decoded`; raises `InvalidOption` if schema or SQL are wrong."""
    from pyspark.errors import PySparkException

    if definition.decode in WITH_SCHEMA:
        _check_declared(definition)
    if any(table.isTemporary for table in spark.catalog.listTables(pattern=VIEW)):
        raise InvalidOption(f"a temporary view {VIEW} exists: drop it, the SQL needs the name")
    try:
        with decoded(_no_records(spark, definition), definition) as rows:
            found = rows.schema
    except PySparkException as error:
        raise InvalidOption(f"sql: {str(error).splitlines()[0]}") from None
    for name, kind in (("queue", "string"), ("offset", "bigint")):
        if name not in found.names or found[name].dataType.simpleString() != kind:
            raise InvalidOption(
                f"sql: its result must include {name} as it is in {VIEW}, so that each row can be "
                "accounted for"
            )
    names = [name.lower() for name in found.names]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidOption(f"sql: its result has the column {twice} more than once")
    if "batch" in names:
        raise InvalidOption("sql: the tables already have a column batch; rename yours")
    if definition.deduplicate is not None:
        _check_keys(definition, found)
    for field in found:
        _check_storable(field.name, field.dataType)
    if definition.partition_by is not None:
        _check_partition(definition.partition_by, found)
    return found


def _with_day(rows: DataFrame, definition: Definition) -> DataFrame:
    """Adds the day of `timestamp` in UTC, if the table has a partition for each."""
    from pyspark.sql import functions as F

    if definition.partition_by != DAY or DAY in rows.columns:
        return rows
    if dict(rows.dtypes).get("timestamp") != "timestamp":
        raise InvalidOption(
            "partition_by = 'day' uses the column timestamp, which the SQL leaves out or changes"
        )
    # In UTC, whatever the time zone of the session is.
    days = F.floor(F.unix_micros("timestamp") / _DAY_US).cast("int")
    return rows.withColumn(DAY, F.date_from_unix_date(days))


def _check_storable(name: str, kind: DataType) -> None:
    """Raises if not every format has a type, or the parts of a nested one."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        parts = [field.dataType for field in kind]
    elif isinstance(kind, T.MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, T.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, T.VariantType | T.NullType | T.AnsiIntervalType):
        raise InvalidOption(
            f"sql: {name} is {kind.simpleString()}, which a table cannot hold; make something else "
            "of it, such as a STRING by to_json or CAST"
        )
    else:
        parts = []
    for part in parts:
        _check_storable(name, part)


def _check_partition(name: str, found: StructType) -> None:
    if name not in found.names:
        raise InvalidOption(
            f"partition_by: {name!r} is not a column of decoded, which has: "
            f"{', '.join(found.names)}"
        )
    kind = found[name].dataType.typeName()
    if kind not in _PARTITION_TYPES:
        raise InvalidOption(
            f"partition_by: {name} is {kind}; must be one of {', '.join(_PARTITION_TYPES)}"
        )


def declared_columns(definition: Definition) -> StructType:
    """Parses the DDL of the schema."""
    from pyspark.errors import PySparkException

    assert definition.schema is not None
    try:
        return columns_of(definition.schema)
    except PySparkException as error:
        raise InvalidOption(f"schema: {str(error).strip().splitlines()[0]}") from None


def _no_records(spark: SparkSession, definition: Definition) -> DataFrame:
    return spark.createDataFrame([], ddls(snapshots=definition.snapshots)[LANDED])


def _place(definition: Definition) -> tuple[str, ...]:
    """Returns the columns of `records` other than the decoded ones."""
    return (*_PLACE, *ITEM_COLUMNS) if definition.snapshots else _PLACE


def _check_declared(definition: Definition) -> None:
    for field in declared_columns(definition):
        if field.name.lower() in (*_place(definition), RESCUED):
            raise InvalidOption(
                f"schema: the name {field.name} is reserved. Leave it out: the field is then in "
                f"{RESCUED}, and the SQL can get it from there with "
                f"get_json_object({RESCUED}, '$.{field.name}')"
            )
        if not field.nullable:
            raise InvalidOption(
                f"schema: {field.name} NOT NULL cannot be guaranteed for data from other programs; "
                f"put WHERE {field.name} IS NOT NULL into the SQL"
            )


def _check_keys(definition: Definition, found: StructType) -> None:
    assert definition.deduplicate is not None
    for name in definition.deduplicate.key:
        if name not in found.names:
            raise InvalidOption(
                f"deduplicate.key: {name!r} is not a column of decoded, which has: "
                f"{', '.join(found.names)}"
            )
    if "timestamp" not in found.names or found["timestamp"].dataType.typeName() != "timestamp":
        raise InvalidOption(
            "deduplicate: `within` uses the column timestamp, which the SQL leaves out"
        )


def _records(landed: DataFrame, definition: Definition) -> DataFrame:
    """Returns the view that the user's SQL reads."""
    from pyspark.sql import functions as F

    if definition.decode == "raw":
        return landed.select(*_place(definition), "value")
    if definition.decode == "text":
        text = F.col("value").cast("string").alias("text")
        return landed.select(*_place(definition), text).where(F.is_valid_utf8("text"))
    columns = declared_columns(definition)
    good = _parsed(landed, definition, columns).where(_is_good())
    names = [F.col("_parsed").getField("r").getField(name).alias(name) for name in columns.names]
    return good.select(*_place(definition), *names, _unknown_fields(columns).alias(RESCUED))


def _parsed(landed: DataFrame, definition: Definition, columns: StructType) -> DataFrame:
    """Adds `_text`, `_exact` and `_parsed`: the columns in `r`, or `_bad` if they do not fit."""
    from pyspark.sql import functions as F

    with_text = _with_text(landed, definition, columns)
    # Spark would push a filter below a plain column and parse every record twice. It pushes nothing
    # below an explode.
    return with_text.select(
        *with_text.columns, F.explode(F.array(_from_json(columns, definition))).alias("_parsed")
    )


def _with_text(landed: DataFrame, definition: Definition, columns: StructType) -> DataFrame:
    """Adds `_text`, the original JSON, and `_exact`, the result of Python where it was needed."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    from forebay.pipelines.ingest import cbor, exact_json

    convert = cbor.decode if definition.decode == "cbor" else None
    look = exact_json.looking(exact_json.Exact(exact_json.shape_of(columns), convert))
    # The stubs do not know that the annotations determine the kind of function. It is declared
    # non-deterministic, because a filter would otherwise call it twice per record.
    made = arrow_udf(look, exact_json.EXACT_DDL).asNondeterministic()  # type: ignore[call-overload]
    if convert is not None:
        with_text = landed.withColumn("_exact", made("value"))
        with_text = with_text.withColumn("_text", F.col("_exact.text"))
        return with_text.withColumn("_unknown", _has_unknown_fields(columns))
    text = F.col("_text")
    with_text = landed.withColumn("_text", F.col("value").cast("string"))
    with_text = with_text.withColumn("_unknown", _has_unknown_fields(columns))
    escaped, plain = exact_json.suspects(columns)
    wanted = F.contains(text, F.lit(exact_json.ESCAPE_MARK)) & text.rlike(escaped)
    wanted |= F.col("_unknown") & text.rlike(exact_json.RENDERED_NUMBER)
    if plain is not None:
        wanted |= text.rlike(plain)
    # Records that need no processing are passed to Python as null, which costs little.
    return with_text.withColumn("_exact", made(F.when(wanted & F.is_valid_utf8(text), text)))


def _from_json(columns: StructType, definition: Definition, text: Column | None = None) -> Column:
    """Parses the JSON as the only field of an object.

    On its own, `from_json` reads the first value of a text and ignores what follows it.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    if text is None:
        text = F.coalesce(F.col("_exact.json"), F.col("_text"))
    wrapped = StructType([StructField("r", columns), StructField("_bad", StringType())])
    whole = F.concat(F.lit('{"r":'), text, F.lit("}"))
    return F.from_json(whole, wrapped, _CBOR_OPTIONS if definition.decode == "cbor" else _OPTIONS)


def _is_good() -> Column:
    from pyspark.sql import functions as F

    parsed = F.col("_parsed")
    fits = parsed.getField("_bad").isNull() & parsed.getField("r").isNotNull()
    return F.is_valid_utf8("_text") & F.col("_exact.reason").isNull() & fits


def _unknown_fields(columns: StructType) -> Column:
    """Returns the undeclared fields of `_text` as a JSON object; null if there are none.

    The names are checked first, which costs little: only records with such fields are parsed into a
    variant. A record that a variant cannot hold, because a name occurs twice, is returned whole. A
    record whose numbers a variant would render differently was processed by Python.
    """
    from pyspark.sql import functions as F

    names = list(columns.names)
    fields = F.try_parse_json("_text").cast("map<string,variant>")
    rescued = F.to_json(F.map_filter(fields, lambda name, _: ~name.isin(names)))
    whole = F.coalesce(F.col("_exact.rescued"), rescued, F.col("_text"))
    return F.when(F.col("_unknown"), whole)


def _has_unknown_fields(columns: StructType) -> Column:
    from pyspark.sql import functions as F

    found = F.json_object_keys("_text")
    unknown = F.size(F.array_except(found, F.array(*map(F.lit, columns.names)))) > 0
    return found.isNull() | unknown


def _reason(definition: Definition, columns: StructType) -> Column:
    """Returns why a record was rejected; such records are parsed again, field by field."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    whole = F.from_json(
        F.concat(F.lit('{"r":'), F.col("_text"), F.lit("}")),
        StructType([StructField("r", StringType()), StructField("_bad", StringType())]),
        _OPTIONS,
    )
    wrong = []
    for field in columns:
        only = StructType([field])
        misfit = _from_json(only, definition, F.col("_text")).getField("_bad").isNotNull()
        value = F.get_json_object("_text", f"$['{field.name}']")
        found = F.coalesce(F.substring(value, 1, _FOUND_CHARACTERS), F.lit(""))
        kind = field.dataType.simpleString()
        text = F.concat(F.lit(f"{field.name} is not {kind}: "), found)
        wrong.append(F.when(misfit, text))
    wrong = [F.col("_exact.reason"), *wrong]
    fields = F.array_join(F.array_distinct(F.array_compact(F.array(*wrong))), "; ")
    text = F.col("_text")
    reason = (
        F.when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        .when(F.trim(text) == "", F.lit("empty"))
        .when(whole.getField("_bad").isNotNull(), F.lit("not JSON"))
        .when(~F.startswith(F.ltrim(text), F.lit("{")), F.lit("not a JSON object"))
        .when(F.length(fields) > 0, fields)
        .otherwise(F.lit("does not fit the schema"))
    )
    # A value that is not CBOR has no text.
    return F.when(text.isNull(), F.col("_exact.reason")).otherwise(reason)
