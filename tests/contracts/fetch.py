"""The contract of reading a range of offsets. Subclass it and give it ``fetch``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from tests.support.librdkafka import ready_for_id
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.errors import TidemillError
from tidemill.reading.fetch import SCHEMA, SCHEMA_WITH_HEADERS, FetchPlan
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.errors import DataLossError, OptionError

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

Fetch = Callable[[OffsetRange, FetchPlan], Iterator[pa.RecordBatch]]


@dataclass
class Reading:
    """A broker, and what reads from it."""

    broker: Broker
    fetch: Fetch

    def batches(
        self, wanted: OffsetRange, kafka: dict[str, str] | None = None, **fields: Any
    ) -> Iterator[pa.RecordBatch]:
        return self.fetch(wanted, FetchPlan({**self.broker.kafka, **(kafka or {})}, **fields))

    def offsets(self, topic: str, start: int, end: int, **fields: Any) -> list[int]:
        """Return the offsets that a range of partition 0 gives."""
        batches = list(self.batches(OffsetRange(topic, 0, start, end), **fields))
        assert all(batch.num_rows > 0 for batch in batches)
        return [o for batch in batches for o in batch.column("offset").to_pylist()]


class FetchContract:
    """Exactly the readable records of ``[start, end)``, as Arrow, with the source's columns."""

    @pytest.fixture
    def fetch(self) -> Fetch:
        raise NotImplementedError

    @pytest.fixture
    def reading(self, broker: Broker, fetch: Fetch) -> Reading:
        return Reading(broker, fetch)

    def test_each_column_holds_what_was_written(self, reading: Reading) -> None:
        topic = reading.broker.topic(2)
        reading.broker.produce(
            topic,
            [
                {"value": b"v0", "key": b"k0", "timestamp": 1357000000123},
                {"value": None, "key": b"", "timestamp": 2},
                {"value": b"", "key": None, "timestamp": 1},
            ],
            partition=1,
        )
        (batch,) = reading.batches(OffsetRange(topic, 1, 0, 3))
        assert batch.schema == SCHEMA
        columns = batch.to_pydict()
        assert columns["key"] == [b"k0", b"", None]
        assert columns["value"] == [b"v0", None, b""]
        assert columns["topic"] == [topic] * 3
        assert columns["partition"] == [1] * 3
        assert columns["offset"] == [0, 1, 2]
        micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert micros == [1357000000123000, 2000, 1000]
        assert columns["timestampType"] == [0] * 3

    def test_a_time_that_microseconds_cannot_express_is_the_nearest_one(
        self, reading: Reading
    ) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [{"value": b"v", "timestamp": -(2**60)}])
        (batch,) = reading.batches(OffsetRange(topic, 0, 0, 1))
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [-9223372036854775000]

    def test_broker_time_is_told_from_the_producers(self, reading: Reading) -> None:
        topic = reading.broker.topic(message_timestamp_type="LogAppendTime")
        before = time.time_ns() // 1_000_000
        reading.broker.produce(topic, [{"value": b"v", "timestamp": 5}])
        (batch,) = reading.batches(OffsetRange(topic, 0, 0, 1))
        assert batch.column("timestampType").to_pylist() == [1]
        (micros,) = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert before <= micros // 1000 <= time.time_ns() // 1_000_000

    def test_headers_come_in_order_with_repeats_and_nulls(self, reading: Reading) -> None:
        topic = reading.broker.topic()
        headers = [("a", b"1"), ("b", None), ("a", b"")]
        reading.broker.produce(topic, [{"value": b"v", "headers": headers}, {"value": b"w"}])
        (batch,) = reading.batches(OffsetRange(topic, 0, 0, 2), include_headers=True)
        assert batch.schema == SCHEMA_WITH_HEADERS
        assert batch.column("headers").to_pylist() == [
            [{"key": k, "value": v} for k, v in headers],
            None,
        ]

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_a_range_may_begin_and_end_inside_a_batch(self, reading: Reading, codec: str) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [b"x" * 50] * 300, settings={"compression.type": codec})
        assert reading.offsets(topic, 100, 200) == list(range(100, 200))
        assert reading.offsets(topic, 299, 300) == [299]
        assert reading.offsets(topic, 0, 300) == list(range(300))

    def test_an_empty_range_is_no_work(self, reading: Reading) -> None:
        assert reading.offsets("no-such-topic", 7, 7) == []

    def test_many_ranges_one_after_the_other(self, reading: Reading) -> None:
        topics = [reading.broker.topic(), reading.broker.topic()]
        for topic in topics:
            reading.broker.produce(topic, [b"x"] * 20)
        for start in range(0, 20, 5):
            for topic in topics:
                assert reading.offsets(topic, start, start + 5) == list(range(start, start + 5))

    def test_a_reader_that_leaves_early_does_not_disturb_the_next(self, reading: Reading) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [b"x"] * 5000)
        batches = reading.batches(OffsetRange(topic, 0, 0, 5000), batch_rows=10)
        assert next(batches).num_rows == 10
        batches.close()  # type: ignore[attr-defined]  # a generator
        assert reading.offsets(topic, 3, 6) == [3, 4, 5]

    def test_large_records_come_in_small_batches(self, reading: Reading) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [bytes(900_000)] * 40)
        batches = list(reading.batches(OffsetRange(topic, 0, 0, 40)))
        assert sum(batch.num_rows for batch in batches) == 40
        assert max(batch.nbytes for batch in batches) <= 30 * 1024 * 1024

    def test_offsets_that_compaction_removed_are_passed_over(self, reading: Reading) -> None:
        topic = reading.broker.topic(
            cleanup_policy="compact", segment_ms="50", min_cleanable_dirty_ratio="0.001"
        )
        reading.broker.produce(topic, [{"key": b"k", "value": b"%d" % i} for i in range(100)])
        written = [100]

        def compacted() -> bool:
            # An append rolls the segment; only closed segments are cleaned.
            reading.broker.produce(topic, [{"key": b"other", "value": b"x"}])
            written[0] += 1
            time.sleep(0.05)
            return len(reading.offsets(topic, 0, 100)) == 1

        poll_until(compacted, 60, "the topic is compacted", interval=0.05)
        assert reading.offsets(topic, 0, 99) == []
        assert reading.offsets(topic, 10, 60) == []
        assert reading.offsets(topic, 98, 100) == [99]
        assert reading.offsets(topic, 0, written[0])[-1] == written[0] - 1

    def test_transaction_markers_and_aborted_records(self, reading: Reading) -> None:
        topic = reading.broker.topic()
        producer = Producer({**reading.broker.kafka, "transactional.id": topic, "log_level": 2})
        try:
            ready_for_id(producer).init_transactions(3)
        except KafkaException as error:
            pytest.skip(f"{reading.broker.name} has no transactions: {error}")
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for _ in range(3):
                producer.produce(topic, b"x", partition=0)
            producer.flush(60)
            end(60)
        # 0-2 committed, 3 marker, 4-6 aborted, 7 marker: the range ends where no record is.
        assert reading.offsets(topic, 0, 8) == [0, 1, 2, 4, 5, 6]
        committed = {"isolation.level": "read_committed"}
        assert reading.offsets(topic, 0, 8, kafka=committed) == [0, 1, 2]
        assert reading.offsets(topic, 3, 4) == []
        assert reading.offsets(topic, 7, 8) == []

    def test_removed_records_fail_the_read_or_are_passed_over(
        self, reading: Reading, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [b"x"] * 30)
        for future in reading.broker.admin.delete_records([TopicPartition(topic, 0, 20)]).values():
            future.result(60)
        with pytest.raises(DataLossError, match="has offsets 20 to 30, but 5"):
            reading.offsets(topic, 5, 25)
        assert reading.offsets(topic, 5, 25, fail_on_data_loss=False) == [20, 21, 22, 23, 24]
        assert reading.offsets(topic, 5, 15, fail_on_data_loss=False) == []
        assert "continuing without them" in caplog.text

    def test_offsets_beyond_the_logs_end_are_lost_data(self, reading: Reading) -> None:
        topic = reading.broker.topic()
        reading.broker.produce(topic, [b"x"] * 3)
        with pytest.raises(DataLossError, match="has offsets 0 to 3"):
            reading.offsets(topic, 5, 9)

    def test_an_unknown_setting_is_refused(self, reading: Reading) -> None:
        with pytest.raises(OptionError, match=r"no\.such\.thing"):
            list(reading.batches(OffsetRange("t", 0, 0, 1), kafka={"no.such.thing": "1"}))

    def test_no_broker_is_an_error_in_time(self, fetch: Fetch) -> None:
        nowhere = FetchPlan({"bootstrap.servers": f"127.0.0.1:{reserve_port()}"}, timeout_ms=500)
        with pytest.raises(TidemillError, match="within 500 ms"):
            list(fetch(OffsetRange("t", 0, 0, 1), nowhere))
