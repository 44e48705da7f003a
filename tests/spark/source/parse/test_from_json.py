"""Spark's from_json gives the same values, except for the differences that are listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.spark.source.parse.tables import ACCEPTED, REFUSED

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.spark

REFUSED_BY_SPARK: set[tuple[str, str]] = {
    (
        "BIGINT",
        "1" + "0" * 500 + "e-500",
    ),
    ("BIGINT", "9.223372036854775807e18"),
    ("DECIMAL(5, 2)", "1e-999999999999999999999"),
    ("INT", "0.00e99999"),
    ("INT", "1.0"),
    ("INT", "10e-1"),
    ("INT", "12.3400e2"),
    ("INT", "1E+2"),
    ("INT", "1e0"),
    ("TIMESTAMP", '"2013-01-01T05:00Z"'),
}
"""Values that we accept."""

OTHERWISE_IN_SPARK: dict[tuple[str, str], Any] = {
    ("STRING", "1.50"): "1.5",
    ("STRING", "-0"): "0",
    ("STRING", "1e2"): "100.0",
}
"""Values that both accept, and what Spark makes of them."""

ACCEPTED_BY_SPARK: dict[tuple[str, str], str | None] = {
    ("TINYINT", "128"): "-128",
    ("TINYINT", "255"): "-1",
    ("FLOAT", "1e39"): "Infinity",
    ("FLOAT", "3.4028236e38"): "Infinity",
    ("FLOAT", "-3.4028236e38"): "-Infinity",
    ("FLOAT", "340282356779733661637539395458142568448"): "Infinity",
    ("FLOAT", "1e400"): "Infinity",
    ("DOUBLE", "1e309"): "Infinity",
    ("DOUBLE", "1e400"): "Infinity",
    ("DOUBLE", "-1e400"): "-Infinity",
    ("DOUBLE", "1.7976931348623159e308"): "Infinity",
    ("DECIMAL(5, 2)", '"1,0"'): "10.00",
    ("BINARY", '"AQI=AQI="'): "01020102",
    ("DATE", '"2013"'): "2013-01-01",
    ("DATE", '"2013-01"'): "2013-01-01",
    ("DATE", '"+2013-01-01"'): "2013-01-01",
    ("DATE", '"12013-01-01"'): "+12013-01-01",
    ("DATE", '"0000-01-01"'): "0000-01-01",
    ("DATE", '"20130101"'): "+57084-05-06",
    ("DATE", '"2013-01-01 x"'): "2013-01-01",
    ("DATE", '"2013-01-01T"'): "2013-01-01",
    ("TIMESTAMP", '"2013"'): "2013-01-01 00:00:00",
    ("TIMESTAMP", '"2013-01"'): "2013-01-01 00:00:00",
    ("TIMESTAMP", "1357016400"): "2013-01-01 05:00:00",
    ("TIMESTAMP", "1357016400123"): "+44972-02-20 08:02:03",
    ("TIMESTAMP", '"2013-01-01T05:00:00+01:0"'): "2013-01-01 04:00:00",
    ("TIMESTAMP", '"2013-01-01T05:00:00.Z"'): "2013-01-01 05:00:00",
    ("TIMESTAMP", '"2013-01-01T05:00:00 Europe/Berlin"'): "2013-01-01 04:00:00",
    ("TIMESTAMP", '"0001-01-01T00:00:00+00:01"'): "0000-12-31 23:59:00",
    ("TIMESTAMP", '"9999-12-31T23:59:59-00:01"'): "+10000-01-01 00:00:59",
    ("MAP<STRING, INT>", '{"a":1,"a":2}'): "{a -> 1, a -> 2}",
    ("MAP<STRING, INT>", '{"a":1,"b":2,"\\u0061":1}'): "{a -> 1, b -> 2, a -> 1}",
}
"""Values that we refuse, and what Spark makes of them, as text."""


@pytest.fixture(scope="module")
def from_json(spark: SparkSession) -> dict[tuple[str, str], tuple[Any, str | None] | None]:
    """What Spark makes of each value: the value and its text; None if it is refused.

    The value of a text that we refuse is left out, because Python may not have such a value.
    """
    from pyspark.sql import functions as f

    cases = [(ddl, text, True) for ddl, text, _ in ACCEPTED]
    cases += [(ddl, text, False) for ddl, text, _ in REFUSED]
    types = sorted({ddl for ddl, _, _ in cases})
    rows = [(i, f'{{"x": {text}}}', known) for i, (_, text, known) in enumerate(cases)]
    parsed = [
        f.from_json("v", f"x {ddl}, _bad STRING", {"columnNameOfCorruptRecord": "_bad"}).alias(
            f"r{k}"
        )
        for k, ddl in enumerate(types)
    ]
    columns = [
        f.struct(
            f.when(f.col("known"), f.col(f"r{k}.x")).alias("value"),
            (f.hex if ddl == "BINARY" else _text)(f.col(f"r{k}.x")).alias("text"),
            f.col(f"r{k}._bad").isNotNull().alias("bad"),
        ).alias(f"r{k}")
        for k, ddl in enumerate(types)
    ]
    frame = spark.createDataFrame(rows, "i int, v string, known boolean")
    table = frame.select("i", "known", *parsed).select("i", *columns).toArrow()
    assert isinstance(table, pa.Table)
    found: dict[tuple[str, str], tuple[Any, str | None] | None] = {}
    for row, i in enumerate(table.column("i").to_pylist()):
        ddl, text, _ = cases[i]  # the columns of other types can have values that Python has not
        made = table.column(f"r{types.index(ddl)}")[row].as_py()
        found[ddl, text] = None if made["bad"] else (made["value"], made["text"])
    return found


def _text(column: Column) -> Column:
    return column.cast("string")


def test_values_that_are_accepted(
    from_json: dict[tuple[str, str], tuple[Any, str | None] | None],
) -> None:
    refused, other = set(), {}
    for ddl, text, value in ACCEPTED:
        made = from_json[ddl, text]
        if made is None:
            refused.add((ddl, text))
        elif repr(made[0]) != repr(value) and made[0] != value:
            other[ddl, text] = made[0]
    assert refused == REFUSED_BY_SPARK
    assert other == OTHERWISE_IN_SPARK


def test_values_that_are_refused(
    from_json: dict[tuple[str, str], tuple[Any, str | None] | None],
) -> None:
    accepted = {}
    for ddl, text, _ in REFUSED:
        made = from_json[ddl, text]
        if made is not None:
            accepted[ddl, text] = made[1]
    of_today = accepted.pop(("TIMESTAMP", '"T05:00:00Z"'))
    assert str(of_today).endswith(" 05:00:00")
    assert accepted == ACCEPTED_BY_SPARK
