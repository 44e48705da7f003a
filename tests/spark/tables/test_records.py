"""Records of a changelog as rows, however the table's schema is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemill.spark.tables.records import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "ddl",
    [
        "tail STRING, seats INT",
        "tail: STRING, seats: INT",
        "tail STRING NOT NULL, seats INT COMMENT 'of all classes'",
        "tail STRING, -- its number\n seats INT -- of all classes",
        "`tail` STRING,\n seats: INT\n",
    ],
)
def test_a_schema_may_be_written_as_a_stream_s(spark: SparkSession, ddl: str) -> None:
    from pyspark.sql import functions as f

    table = TableSchema(ddl, ["tail"])
    values = ['(\'{"tail": "a", "seats": 1}\')', "('{\"seats\": null}')", "(NULL)"]
    records = spark.sql(f"SELECT * FROM VALUES {', '.join(values)} AS t(value)")

    read = table.with_row(records, "row", f.col("value"), f.lit("a record"))

    found = [each.row and each.row.asDict() for each in read.collect()]
    assert found == [{"tail": "a", "seats": 1}, {"tail": None, "seats": None}, None]
    bad = spark.sql('SELECT \'{"seats": "many"}\' AS value')
    with pytest.raises(Exception, match="a record is no JSON object of the table's schema"):
        table.with_row(bad, "row", f.col("value"), f.lit("a record")).collect()
