"""The schema of a parser: made from DDL, pickled, and refused where it is invalid."""

from __future__ import annotations

import pickle

import pytest

from tidemill.spark.errors import OptionError, SchemaError
from tidemill.spark.source.parse import make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of


def test_types_are_those_that_spark_expects() -> None:
    schema = schema_of(
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL, "
        "i DECIMAL(7), j DECIMAL(38, 18), k STRING, l BINARY, m DATE, n TIMESTAMP, "
        "o TIMESTAMP_NTZ, p STRUCT<a: INT, b: STRING>, q ARRAY<INT>, r MAP<STRING, INT>"
    )
    assert [str(each) for each in schema.arrow.types] == [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "float",
        "double",
        "decimal128(10, 0)",
        "decimal128(7, 0)",
        "decimal128(38, 18)",
        "string",
        "binary",
        "date32[day]",
        "timestamp[us, tz=UTC]",
        "timestamp[us]",
        "struct<a: int32, b: string>",
        "list<element: int32>",
        "map<string, int32>",
    ]


def test_a_schema_can_be_pickled() -> None:
    schema = schema_of("a MAP<STRING, INT>, at TIMESTAMP", event_time="at")
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a INT, b VARIANT", "column b: the type VARIANT is not supported"),
        ("a STRUCT<b: ARRAY<INTERVAL>>", r"column a\.b: the type INTERVAL is not supported"),
        ("a MAP<INT, INT>", "column a: the keys of a map are INT"),
        ("a DECIMAL(39, 0)", r"DECIMAL\(39, 0\) is not supported"),
        ("a DECIMAL(5, 6)", r"DECIMAL\(5, 6\) is not supported"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "nested more than 50 deep"),
        ("", "no columns"),
    ],
)
def test_an_invalid_schema_is_refused(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_of(ddl)


def test_columns_that_do_not_come_from_the_value_are_left_out() -> None:
    schema = schema_of("_key BINARY, a INT", skip={"_key"})
    assert schema.arrow.names == ["a"]


def test_the_event_time_is_a_column_in_any_case() -> None:
    assert schema_of("At TIMESTAMP", event_time="at").event_time == "At"
    with pytest.raises(SchemaError, match="the event time when is not a column"):
        schema_of("at TIMESTAMP", event_time="when")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown timestamp format 'epoch'"):
        schema_of("at TIMESTAMP", timestamp_format="epoch")
    schema = schema_of("a INT")
    with pytest.raises(OptionError, match="unknown format of values 'xml'"):
        make_parser(schema, "xml")
    with pytest.raises(OptionError, match="the schema has no column b"):
        make_parser(schema, only=["b"])
