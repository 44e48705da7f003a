"""Queries that start at the same time do not disturb each other.

All queries share the map of environment variables of the registered data source. Spark's runner of
streaming sources adds variables to it at each start, while another query may be sending the map to
its tasks. A map that grows meanwhile is unreadable, and from then on every task fails with
OptionalDataException.
"""

from __future__ import annotations

import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemill.spark.datasource.data_source import SET_BY_EACH_QUERY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.spark.conftest import Broker

RUNNER = "org/apache/spark/sql/execution/python/streaming/PythonStreamingSourceRunner.class"
QUERIES = 8


def test_the_map_has_all_variables_that_spark_adds() -> None:
    import pyspark

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    constants = zipfile.ZipFile(jar).read(RUNNER)
    # A string constant of a class: its kind (1), its length in two bytes, its text.
    found = {
        text.decode()
        for length, text in re.findall(rb"\x01\x00(.)([A-Z]+_[A-Z_]+)", constants, re.DOTALL)
        if length[0] == len(text)
    }
    assert {name for name in found if name.startswith("SPARK_")} == set(SET_BY_EACH_QUERY)


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["tidemill"], indirect=True)
def test_many_queries_start_at_the_same_time(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = broker.topic()
    broker.produce(topic, ["value"])

    def start(number: int) -> StreamingQuery:
        writer = broker.stream(spark, topic).writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / str(number))).start()

    with ThreadPoolExecutor(QUERIES) as threads:
        queries = list(threads.map(start, range(QUERIES)))
    for each in queries:
        each.awaitTermination(120)
    assert [each.exception() for each in queries] == [None] * QUERIES
    read = [sum(p["numInputRows"] for p in each.recentProgress) for each in queries]
    assert read == [1] * QUERIES
