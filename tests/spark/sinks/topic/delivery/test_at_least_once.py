"""All editions of the sink keep the contract; columns are checked before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from tests.contracts.deliver import DeliverContract
from tidemill.spark.datasource.writers import check_columns
from tidemill.spark.errors import OptionError
from tidemill.spark.sinks.topic.delivery import at_least_once
from tidemill.spark.sinks.topic.delivery.at_least_once import producer_settings
from tidemill.spark.sinks.topic.options import SinkOptions


class TestThroughLibrdkafka(DeliverContract):
    @pytest.fixture
    def write(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
        monkeypatch.setenv(at_least_once.SWITCH, "librdkafka")
        return at_least_once.write_rows


class TestOwn(DeliverContract):
    @pytest.fixture
    def write(self) -> Callable[..., int]:
        return at_least_once.write_rows


@pytest.fixture(autouse=True, scope="module")
def close_producers() -> Iterator[None]:
    yield
    at_least_once.close_idle_producers()


def test_by_default_a_record_is_acknowledged_by_all_and_written_once_per_task() -> None:
    settings = producer_settings({"bootstrap.servers": "b"})
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] == "true"
    assert producer_settings({"request.required.acks": "1"})["acks"] == "1"
    assert producer_settings({"acks": "1"})["enable.idempotence"] == "false"


TO_TOPIC = SinkOptions(topic="out", kafka={"bootstrap.servers": "b"})


def test_columns_of_sparks_sink_are_taken_and_others_left_alone() -> None:
    schema = StructType().add("key", StringType()).add("value", StringType())
    check_columns(schema.add("offset", IntegerType()), TO_TOPIC)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (
            StructType().add("key", StringType()),
            TO_TOPIC,
            "the column value is missing; the columns are key",
        ),
        (
            StructType().add("value", IntegerType()),
            TO_TOPIC,
            "value has the type int, but must be binary or string",
        ),
        (
            StructType().add("value", StringType()).add("partition", StringType()),
            TO_TOPIC,
            "partition has the type string, but must be int",
        ),
        (
            StructType().add("value", StringType()),
            SinkOptions(topic=None, kafka={}),
            "no topic is named",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    schema: StructType, options: SinkOptions, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        check_columns(schema, options)
