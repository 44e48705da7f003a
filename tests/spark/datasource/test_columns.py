"""The columns of a query on the data source, and the records that its tasks read, without a JVM."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.spark.base.ddl import columns
from tidemill.spark.datasource.columns import COLUMNS, columns_of, ddl_of, reading_of
from tidemill.spark.errors import OptionError
from tidemill.spark.source.parse.ddl_schema import schema_of
from tidemill.spark.source.planning.options import SourceOptions, parse_source_options
from tidemill.spark.source.planning.parsing import RowPlan

SCHEMA = StructType([StructField("id", IntegerType())])


def options(**more: str) -> SourceOptions:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return parse_source_options(
        {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", **given}
    )


def test_without_a_format_the_columns_are_those_of_the_source() -> None:
    assert columns_of(options()) == COLUMNS
    assert columns_of(options(includeHeaders="true")).endswith("value: binary>>")


def test_with_a_format_the_columns_are_those_of_the_schema() -> None:
    assert columns_of(options(value_format="JSON", value_schema="id INT")) == "id INT"
    with pytest.raises(OptionError, match=r"needs a schema"):
        columns_of(options(value_format="json"))


def test_refused_records_have_the_columns_of_the_source_and_the_reason() -> None:
    given = options(value_format="json", value_schema="id INT", rows="refused")
    assert columns_of(given) == f"{COLUMNS}, reason string"


def test_all_options_of_a_plan_reach_the_tasks() -> None:
    given = options(
        value_format="json",
        event_time="at",
        timestamp_format="epoch_ms",
        mode="dropmalformed",
    )
    reading = pickle.loads(pickle.dumps(reading_of(given, SCHEMA)))
    assert reading.rows == RowPlan(
        "`id` int", event_time="at", timestamp_format="epoch_ms", drop_malformed=True
    )
    assert not reading.needs_headers


def test_headers_are_read_only_for_a_column_of_them() -> None:
    headers = StructType([*SCHEMA.fields, StructField("_headers", StringType())])
    assert reading_of(options(value_format="json"), headers).needs_headers
    with pytest.raises(OptionError, match="includeHeaders adds no column"):
        reading_of(options(value_format="json", includeHeaders="true"), SCHEMA)


def test_a_schema_is_the_same_after_a_way_through_ddl() -> None:
    nested = StructType([StructField("x`y", DecimalType(10, 2)), StructField("a b", StringType())])
    schema = StructType(
        [
            StructField("the id", IntegerType()),
            StructField("n", ArrayType(nested)),
            StructField("m", MapType(StringType(), TimestampType())),
        ]
    )
    assert [(each.name, each.type) for each in columns(ddl_of(schema))] == [
        ("the id", "INT"),
        ("n", "ARRAY<STRUCT<`x``y`: DECIMAL(10, 2), `a b`: STRING>>"),
        ("m", "MAP<STRING, TIMESTAMP>"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        StructField("a", IntegerType(), nullable=False),
        StructField("a", ArrayType(IntegerType(), containsNull=False)),
        StructField("a", MapType(StringType(), IntegerType(), valueContainsNull=False)),
        StructField("a", StructType([StructField("b", IntegerType(), nullable=False)])),
    ],
    ids=str,
)
def test_what_cant_be_null_is_refused(field: StructField) -> None:
    with pytest.raises(OptionError, match="can't be null"):
        reading_of(options(value_format="json"), StructType([field]))


def parsed(kind: str) -> StructType:
    """Return a schema with a column of a type of PySpark."""
    from pyspark.sql import types

    return StructType([StructField("c", eval(kind, vars(types).copy()))])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("CalendarIntervalType()", "column c has the type interval"),
        ("DayTimeIntervalType()", "column c has the type interval day to second"),
        ("VariantType()", "column c has the type variant"),
        ("VarcharType(5)", r"column c has the type varchar\(5\)"),
        ("NullType()", "column c has the type void"),
        ("StructType([])", "column c has the type struct<>"),
        ("MapType(IntegerType(), StringType())", "is a map whose keys are not STRING"),
        ("ArrayType(StructType().add('d', NullType()))", "column c.d has the type void"),
    ],
)
def test_a_type_that_values_are_not_parsed_to_is_refused_before_a_task_runs(
    kind: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        reading_of(options(value_format="json"), parsed(kind))


@pytest.mark.parametrize(
    "kind",
    [
        *("BooleanType()", "ByteType()", "ShortType()", "IntegerType()", "LongType()"),
        *("FloatType()", "DoubleType()", "DecimalType(38, 3)", "StringType()", "BinaryType()"),
        *("DateType()", "TimestampType()", "TimestampNTZType()"),
        "StructType().add('d', ArrayType(MapType(StringType(), DateType())))",
    ],
)
def test_each_type_of_the_parser_is_accepted(kind: str) -> None:
    """The list in ``columns`` must be that of the parser."""
    reading = reading_of(options(value_format="json"), parsed(kind))
    assert reading.rows is not None
    assert len(schema_of(reading.rows.schema).columns) == 1


def test_types_are_not_nested_without_a_limit() -> None:
    kind = "IntegerType()"
    for _ in range(50):
        kind = f"ArrayType({kind})"
    with pytest.raises(OptionError, match="nested more than 50 deep"):
        reading_of(options(value_format="json"), parsed(kind))
