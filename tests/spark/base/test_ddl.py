"""Schemas as DDL, read without Spark."""

from __future__ import annotations

import pytest

from tidemill.spark.base.ddl import Column, columns, struct
from tidemill.spark.errors import SchemaError


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("id BIGINT", [("id", "BIGINT")]),
        ("id bigint, at timestamp", [("id", "BIGINT"), ("at", "TIMESTAMP")]),
        ("id: INT, name: STRING", [("id", "INT"), ("name", "STRING")]),
        ("`flight no` STRING NOT NULL", [("flight no", "STRING")]),
        ("tags ARRAY<STRING>", [("tags", "ARRAY<STRING>")]),
        (
            "a INT, b STRUCT<a: INT, b: STRUCT<a: INT>>",
            [("a", "INT"), ("b", "STRUCT<a: INT, b: STRUCT<a: INT>>")],
        ),
        ("price DECIMAL(10, 2)", [("price", "DECIMAL(10, 2)")]),
        ("who STRUCT<name: STRING>, id INT", [("who", "STRUCT<name: STRING>"), ("id", "INT")]),
        ("a INT COMMENT 'the first'\n, b DOUBLE\n", [("a", "INT"), ("b", "DOUBLE")]),
    ],
)
def test_columns_and_types(ddl: str, expected: list[tuple[str, str]]) -> None:
    assert columns(ddl) == tuple(Column(*each) for each in expected)


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "the schema has no columns"),
        ("  \n", "the schema has no columns"),
        ("id INT, a INT, id STRING", "the schema has more than one column id"),
        ("a INT, A INT", "the schema has columns whose names differ only in case: a, A"),
        ("a: INT, b: INT, A: INT", "the schema has columns whose names differ only in case: a, A"),
        (
            "who STRUCT<id: INT, Id: STRING>",
            "column who of the schema has fields whose names differ only in case: id, Id",
        ),
        (
            "n INT, who: ARRAY<MAP<STRING, STRUCT<a: INT, B: INT, b: INT>>>",
            "column who of the schema has fields whose names differ only in case: B, b",
        ),
        ("w STRUCT<a: INT, a: INT>", "column w of the schema has more than one field a"),
        ("id", "'id' is not a column with a type"),
        ("id INT) -- ", "can't parse the schema"),
        ("id ARRAY<", "can't parse the schema"),
        ("'quoted", "can't parse the schema"),
    ],
)
def test_what_is_no_schema(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        columns(ddl)
    assert message in str(caught.value)


def test_a_schema_as_the_type_of_a_row() -> None:
    assert struct("id INT -- the first") == "STRUCT<id INT -- the first\n>"
    assert columns(f"r {struct('id: INT', 'n INT')}")[0].type == "STRUCT<id: INT, n: INT>"
