"""Rows as JSON text: no timestamp loses its microseconds, and others keep their text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark.base.json_text import row_text, with_json_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WHOLE, FINE = "2026-03-01T12:00:00.120Z", "2026-03-01T12:00:00.123456Z"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (f"1 AS a, timestamp '{WHOLE}' AS t", f'{{"a":1,"t":"{WHOLE}"}}'),
        (f"1 AS a, timestamp '{FINE}' AS t", f'{{"a":1,"t":"{FINE}"}}'),
        (
            f"timestamp '{FINE}' AS t, timestamp '{WHOLE}' AS w",
            f'{{"t":"{FINE}","w":"2026-03-01T12:00:00.120000Z"}}',
        ),
        (f"named_struct('s', timestamp '{FINE}') AS n", f'{{"n":{{"s":"{FINE}"}}}}'),
        (f"array(null, timestamp '{FINE}') AS n", f'{{"n":[null,"{FINE}"]}}'),
        (f"array(null, timestamp '{WHOLE}') AS n", f'{{"n":[null,"{WHOLE}"]}}'),
        (f"map('k', array(timestamp '{FINE}')) AS n", f'{{"n":{{"k":["{FINE}"]}}}}'),
        (
            "timestamp_ntz '2026-03-01T12:00:00.123456' AS t",
            '{"t":"2026-03-01T12:00:00.123456"}',
        ),
        ("cast(null AS timestamp) AS t, 2 AS b", '{"b":2}'),
        ("cast(null AS array<timestamp>) AS t, cast(null AS struct<t: timestamp>) AS s", "{}"),
        ("timestamp '1969-12-31T23:59:59.999999Z' AS t", '{"t":"1969-12-31T23:59:59.999999Z"}'),
        ("date '2026-03-01' AS d, 'x' AS s", '{"d":"2026-03-01","s":"x"}'),
    ],
)
def test_a_row_is_written_with_all_digits_that_it_needs(
    spark: SparkSession, row: str, text: str
) -> None:
    df = spark.sql(f"SELECT {row}")
    kinds = [field.dataType for field in df.schema.fields]
    [made] = df.select(row_text([df[name] for name in df.columns], kinds)).collect()
    assert made[0] == text


def test_columns_of_nested_types_become_text_in_their_places(spark: SparkSession) -> None:
    df = spark.sql(
        f"SELECT 1 AS a, named_struct('t', timestamp '{FINE}') AS `the n`, array(1) AS b"
    )
    made: Any = with_json_text(df, ["the n", "b"])
    (row,) = made.collect()

    assert made.columns == ["a", "the n", "b"]
    assert json.loads(row["the n"]) == {"t": FINE}
    assert row["b"] == "[1]"
