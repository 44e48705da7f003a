"""The sink's way through librdkafka keeps the contract; columns are checked before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from tests.contracts.deliver import DeliverContract
from tidemill.errors import OptionError
from tidemill.spark import deliver
from tidemill.spark.sink import check_columns
from tidemill.spark.sink_options import SinkOptions


class TestThroughLibrdkafka(DeliverContract):
    @pytest.fixture
    def write(self) -> Callable[..., int]:
        return deliver.write_rows


@pytest.fixture(autouse=True, scope="module")
def close_producers() -> Iterator[None]:
    yield
    deliver.close_idle_producers()


def test_by_default_a_record_is_acknowledged_by_all_and_written_once_per_task() -> None:
    settings = deliver.producer_settings({"bootstrap.servers": "b"})
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] == "true"
    assert deliver.producer_settings({"request.required.acks": "1"})["acks"] == "1"
    assert deliver.producer_settings({"acks": "1"})["enable.idempotence"] == "false"


TO_TOPIC = SinkOptions(topic="out", kafka={"bootstrap.servers": "b"})


def test_columns_of_sparks_sink_are_taken_and_others_left_alone() -> None:
    schema = StructType().add("key", StringType()).add("value", StringType())
    check_columns(schema.add("offset", IntegerType()), TO_TOPIC)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (StructType().add("key", StringType()), TO_TOPIC, "no column value among key"),
        (StructType().add("value", IntegerType()), TO_TOPIC, "value is int"),
        (
            StructType().add("value", StringType()).add("partition", StringType()),
            TO_TOPIC,
            "partition is string; the sink takes int",
        ),
        (
            StructType().add("value", StringType()),
            SinkOptions(topic=None, kafka={}),
            "no topic to write to",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    schema: StructType, options: SinkOptions, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        check_columns(schema, options)
