"""Both editions of ``fetch`` keep the contract, and the columns are what Spark expects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.fetch import Fetch, FetchContract
from tidemill.reading import fetch as source_fetch
from tidemill.reading import librdkafka
from tidemill.spark.datasource.columns import COLUMNS, HEADERS_COLUMN


class TestThroughLibrdkafka(FetchContract):
    @pytest.fixture
    def fetch(self) -> Fetch:
        return librdkafka.fetch


class TestOwn(FetchContract):
    """Settings and formats that our own client does not understand go to librdkafka."""

    @pytest.fixture
    def fetch(self) -> Fetch:
        return source_fetch.fetch


@pytest.fixture(autouse=True, scope="module")
def close_clients() -> Iterator[None]:
    yield
    source_fetch.close_idle_clients()


def test_the_columns_are_those_that_spark_makes_of_the_declared_ones() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    declared = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    assert ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in declared) == COLUMNS
    assert to_arrow_schema(declared, timezone="UTC") == source_fetch.SCHEMA
    header = StructType().add("key", StringType()).add("value", BinaryType())
    declared = declared.add("headers", ArrayType(header))
    assert declared["headers"].dataType.simpleString() == HEADERS_COLUMN.split(" ", 1)[1].replace(
        ": ", ":"
    ).replace(", ", ",")
    expected = to_arrow_schema(declared, timezone="UTC")
    assert expected == source_fetch.SCHEMA_WITH_HEADERS
