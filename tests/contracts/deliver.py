"""The contract of writing Arrow rows to a topic. Subclass it and give it ``write``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.ports import reserve_port
from tidemill.reading.fetch import FetchPlan, fetch
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.errors import DeliveryError, OptionError

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

Write = Callable[..., int]
Written = Callable[..., list[dict[str, Any]]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Apache Kafka's own test vectors of murmur2 (UtilsTest.testMurmur2).
MURMUR2 = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


@dataclass
class Delivery:
    """A broker, what writes to it, and what reads exactly so many records of a partition."""

    broker: Broker
    send: Write
    read: Written

    def write(
        self, batches: Any, topic: str | None, settings: Mapping[str, str] | None = None
    ) -> int:
        return self.send(batches, topic, {**self.broker.kafka, **(settings or {})})


class DeliverContract:
    """After ``write`` returns all rows are in the topic. Otherwise it raises an error."""

    @pytest.fixture
    def write(self) -> Write:
        raise NotImplementedError

    @pytest.fixture
    def written(self, broker: Broker) -> Written:
        """Records of a partition, which must be exactly ``count``."""

        def records(topic: str, partition: int, count: int) -> list[dict[str, Any]]:
            plan = FetchPlan(broker.kafka, include_headers=True)
            batches = fetch(OffsetRange(topic, partition, 0, count), plan)
            return [row for found in batches for row in found.to_pylist()]

        return records

    @pytest.fixture
    def delivery(self, broker: Broker, write: Write, written: Written) -> Delivery:
        return Delivery(broker, write, written)

    def test_all_columns_arrive(self, delivery: Delivery) -> None:
        topic = delivery.broker.topic(2)
        headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
        rows = batch(
            value=pa.array([b"v", None, b""]),
            key=pa.array([b"k", b"", None]),
            partition=pa.array([1, 1, 1], pa.int32()),
            headers=pa.array([headers, None, []], HEADERS),
            ignored=pa.array([1, 2, 3]),
        )
        assert delivery.write([rows], topic) == 3
        found = delivery.read(topic, 1, 3)
        assert [(row["key"], row["value"]) for row in found] == [
            (b"k", b"v"),
            (b"", None),
            (None, b""),
        ]
        assert found[0]["headers"] == headers
        assert found[1]["headers"] is None

    def test_texts_are_written_as_utf8(self, delivery: Delivery) -> None:
        topic = delivery.broker.topic()
        rows = batch(value=pa.array(["zwölf"]), key=pa.array(["ключ"]))
        delivery.write([rows], topic)
        (row,) = delivery.read(topic, 0, 1)
        assert row["value"].decode() == "zwölf"
        assert row["key"].decode() == "ключ"

    def test_each_row_may_name_its_topic_and_the_option_wins(self, delivery: Delivery) -> None:
        one, two = delivery.broker.topic(), delivery.broker.topic()
        rows = batch(value=pa.array([b"1", b"2"]), topic=pa.array([one, two]))
        delivery.write([rows], None)
        assert [row["value"] for row in delivery.read(one, 0, 1)] == [b"1"]
        assert [row["value"] for row in delivery.read(two, 0, 1)] == [b"2"]
        delivery.write([rows], two)
        assert [row["value"] for row in delivery.read(two, 0, 3)] == [b"2", b"1", b"2"]

    def test_a_keys_partition_is_the_java_clients(self, delivery: Delivery) -> None:
        topic = delivery.broker.topic(7)
        rows = batch(value=pa.array(list(MURMUR2)), key=pa.array(list(MURMUR2)))
        delivery.write([rows], topic)
        for key, murmur in MURMUR2.items():
            partition = (murmur & 0x7FFFFFFF) % 7
            there = sum((m & 0x7FFFFFFF) % 7 == partition for m in MURMUR2.values())
            assert key in [row["key"] for row in delivery.read(topic, partition, there)]

    def test_more_rows_than_the_queue_holds_keep_their_order(self, delivery: Delivery) -> None:
        topic = delivery.broker.topic()
        values = [b"%d" % i for i in range(5000)]
        rows = batch(value=pa.array(values))
        settings = {"queue.buffering.max.messages": "100", "linger.ms": "0"}
        assert delivery.write([rows, rows.slice(0, 0)], topic, settings) == 5000
        assert [row["value"] for row in delivery.read(topic, 0, 5000)] == values

    def test_no_rows_are_no_error(self, delivery: Delivery) -> None:
        assert delivery.write([], "nowhere") == 0

    def test_a_null_topic_is_refused(self, delivery: Delivery) -> None:
        rows = batch(value=pa.array([b"v"]), topic=pa.array([None], pa.string()))
        with pytest.raises(DeliveryError, match="the topic of a row is null"):
            delivery.write([rows], None)

    def test_a_record_that_the_client_holds_too_large_is_refused(self, delivery: Delivery) -> None:
        rows = batch(value=pa.array([bytes(2_000_000)]))
        with pytest.raises(DeliveryError, match="too large"):
            delivery.write([rows], delivery.broker.topic())

    def test_a_record_that_the_broker_refuses_fails_the_task(self, delivery: Delivery) -> None:
        topic = delivery.broker.topic(max_message_bytes="1000")
        rows = batch(value=pa.array([b"small", bytes(5000)]))
        with pytest.raises(DeliveryError, match=f"not accepted, the first for topic {topic}"):
            delivery.write([rows], topic)
        # ... and leaves the next one a producer that works.
        assert delivery.write([rows.slice(0, 1)], topic) == 1

    def test_a_partition_that_does_not_exist_is_refused(self, delivery: Delivery) -> None:
        rows = batch(value=pa.array([b"v"]), partition=pa.array([9], pa.int32()))
        with pytest.raises(DeliveryError, match="partition"):
            delivery.write([rows], delivery.broker.topic())

    def test_fewer_acknowledgements_may_be_asked_for(self, delivery: Delivery) -> None:
        rows = batch(value=pa.array([b"v"]))
        topic = delivery.broker.topic()
        assert delivery.write([rows], topic, {"acks": "1"}) == 1

    def test_no_broker_fails_the_task_in_time(self, delivery: Delivery) -> None:
        nowhere = {"bootstrap.servers": f"127.0.0.1:{reserve_port()}", "message.timeout.ms": "500"}
        with pytest.raises(DeliveryError, match="not accepted"):
            delivery.write([batch(value=pa.array([b"v"]))], "t", nowhere)

    def test_an_unknown_setting_is_refused(self, delivery: Delivery) -> None:
        with pytest.raises(OptionError, match=r"no\.such\.thing"):
            delivery.write([], "t", {"no.such.thing": "1"})
