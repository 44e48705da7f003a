"""What the engine measures: bytes, records, lag in records and seconds, transactions, queues."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.engine import support
from tests.engine.support import query, write
from tests.protocols.kafka.broker import Broker
from tests.support.effort import bound
from tidemill.engine.api import CommitRequest, InitProducer, OffsetToCommit
from tidemill.engine.metrics.bounds import bounded
from tidemill.engine.queues.api import Owner, QueueSpec
from tidemill.metrics import text
from tidemill.metrics.registry import OTHER
from tidemill.metrics.text import PROMETHEUS
from tidemill.settings import Telemetry

LARGE = b"v" * 60_000
"""Values with which ten batches fill more than a segment."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with closing(Broker()) as broker:
        yield broker


def samples(broker: Broker) -> dict[str, dict[tuple[str, ...], float]]:
    """The value of each sample, by name and values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for each in broker.engine.metrics.samples():
        found.setdefault(each.name, {})[tuple(value for _, value in each.labels)] = each.value
    return found


def produce(
    broker: Broker, topic: str, count: int, partition: int = 0, value: bytes = b"v" * 100
) -> int:
    """Write records with the time of the broker's clock; return the bytes of their batch."""
    now_ms = broker.clock.now_ms()
    batch = write(topic, *[value] * count, partition=partition, timestamp_ms=now_ms)
    broker.run(support.produce(broker.engine, batch))
    return len(batch.records)


def read(broker: Broker, topic: str, partition: int = 0) -> int:
    (result,) = broker.run(broker.engine.records.read(query((topic, partition, 0))))
    return len(result.records)


def commit(broker: Broker, group: str, *offsets: OffsetToCommit) -> None:
    errors = broker.run(broker.engine.groups.commit(CommitRequest(group, -1, "", None, offsets)))
    assert set(errors) == {None}


def test_bytes_and_records_of_a_topic_are_counted_over_segments_and_partitions(
    broker: Broker,
) -> None:
    broker.create("t", 2, **{"segment.bytes": "1048576"})
    size = sum(produce(broker, "t", 5, number % 2, LARGE) for number in range(10))
    loaded = read(broker, "t", 0) + read(broker, "t", 1)
    found = samples(broker)
    key = ("t",)
    assert found["tidemill_topic_partitions"][key] == 2
    assert found["tidemill_topic_records_in_total"][key] == 50
    assert found["tidemill_topic_bytes_in_total"][key] == size
    assert found["tidemill_topic_size_bytes"][key] == size
    assert found["tidemill_topic_bytes_out_total"][key] == loaded
    assert found["tidemill_sync_seconds_count"][("journal",)] > 0
    assert found["tidemill_journal_written_bytes_total"][()] > 0


def test_bytes_that_retention_deletes_stay_counted(broker: Broker) -> None:
    broker.create("t", 1, **{"segment.bytes": "1048576"})
    size = sum(produce(broker, "t", 5, value=LARGE) for _ in range(10))
    broker.run(broker.engine.records.delete_before("t", 0, 50))
    found = samples(broker)
    assert found["tidemill_topic_bytes_in_total"][("t",)] == size
    assert found["tidemill_topic_size_bytes"][("t",)] < size


def test_the_lag_of_a_group_without_members_is_known_in_records_and_seconds(broker: Broker) -> None:
    broker.create("t", 2)
    produce(broker, "t", 3)
    broker.clock.advance(10_000)
    produce(broker, "t", 4)
    produce(broker, "t", 2, partition=1)
    broker.clock.advance(5_000)
    commit(broker, "g", OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 2))
    commit(broker, "done", OffsetToCommit("t", 0, 7))
    found = samples(broker)
    assert found["tidemill_group_lag_records"] == {("g", "t"): 6, ("done", "t"): 0}
    assert found["tidemill_group_lag_seconds"] == {("g", "t"): 15, ("done", "t"): 0}
    commit(broker, "g", OffsetToCommit("t", 0, 3))
    assert samples(broker)["tidemill_group_lag_seconds"][("g", "t")] == 5
    broker.clock.advance(60_000)
    assert samples(broker)["tidemill_group_lag_seconds"][("g", "t")] == 65


def test_a_committed_offset_outside_of_the_log_is_no_negative_lag(broker: Broker) -> None:
    broker.create("t")
    produce(broker, "t", 3)
    commit(broker, "ahead", OffsetToCommit("t", 0, 1_000_000))
    broker.run(broker.engine.records.delete_before("t", 0, 2))
    commit(broker, "behind", OffsetToCommit("t", 0, 0))
    assert samples(broker)["tidemill_group_lag_records"] == {("ahead", "t"): 0, ("behind", "t"): 1}


def test_open_transactions_have_an_age(broker: Broker) -> None:
    broker.create("t")
    assert samples(broker)["tidemill_transactions_oldest_seconds"][()] == 0
    identity = broker.run(broker.engine.transactions.init(InitProducer("tx", 60_000)))
    broker.run(broker.engine.transactions.add_partitions("tx", identity, [("t", 0)]))
    broker.clock.advance(7_000)
    found = samples(broker)
    assert found["tidemill_transactions_open"][()] == 1
    assert found["tidemill_transactions_oldest_seconds"][()] == 7
    assert found["tidemill_transactional_ids"][()] == 1


def test_a_queue_has_its_depth(broker: Broker) -> None:
    async def declare() -> None:
        await broker.engine.queues.declare_queue("q", QueueSpec(), Owner("test"))

    broker.run(declare())
    found = samples(broker)
    assert found["tidemill_queues"][()] == 1
    assert found["tidemill_queue_messages_ready"][("q",)] == 0


def test_topics_behind_the_first_ones_are_counted_together() -> None:
    with closing(Broker(telemetry={"metrics_series": 2})) as broker:
        for name in ("c", "a", "b"):
            broker.create(name)
            produce(broker, name, 2)
            commit(broker, f"group {name}", OffsetToCommit(name, 0, 0))
        found = samples(broker)
        records = found["tidemill_topic_records_in_total"]
        assert records[("a",)] == records[("b",)] == 2
        assert set(records) == {("a",), ("b",), (OTHER,)}
        assert records[(OTHER,)] >= 2
        lags = found["tidemill_group_lag_records"]
        assert len(lags) == 3
        assert sum(lags.values()) == 6


def test_the_own_topics_of_the_broker_come_last() -> None:
    label = bounded(["__a", "z", "y"], 2)
    assert [label(name) for name in ("__a", "y", "z")] == [OTHER, "y", "z"]


PARTITIONS = 5_000


@pytest.mark.timing
def test_a_scrape_at_five_thousand_partitions_holds_the_loop_for_a_few_milliseconds() -> None:
    with closing(Broker(limits={"partitions": 2 * PARTITIONS})) as broker:
        for number in range(10):
            broker.create(f"topic-{number}", PARTITIONS // 10)
        for number in range(10):
            name = f"topic-{number}"
            offsets = (OffsetToCommit(name, each, 0) for each in range(PARTITIONS // 10))
            commit(broker, f"group-{number}", *offsets)
        for detailed in (False, True):
            steps: list[float] = []
            pieces = text.write(broker.engine.metrics.families(detailed=detailed), PROMETHEUS)
            gc.collect()  # what the tests before have left is no part of a scrape
            before = time.thread_time()  # without what other processes do
            for _ in pieces:
                now = time.thread_time()
                steps.append(now - before)
                before = now
            assert max(steps) < bound(0.005, 0.02)
            assert sum(steps) < bound(0.1, 0.4)


def test_partitions_are_shown_under_the_names_of_kafka_exporter_if_asked_for() -> None:
    with closing(Broker(telemetry={"metrics_names": "kafka_exporter"})) as broker:
        broker.create("t", 2)
        produce(broker, "t", 3, partition=1)
        commit(broker, "g", OffsetToCommit("t", 1, 1))
        found = {
            (metric.name, labels): value
            for metric, rows in broker.engine.metrics.families(detailed=True)
            for labels, value in rows
        }
        assert found["kafka_topic_partitions", ("t",)] == 2
        assert found["kafka_topic_partition_current_offset", ("t", "1")] == 3
        assert found["kafka_consumergroup_current_offset", ("g", "t", "1")] == 1
        assert found["kafka_consumergroup_lag", ("g", "t", "1")] == 2


def test_names_of_a_project_that_is_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="use kafka_exporter or rabbitmq"):
        Telemetry(metrics_names="rabbitmq,burrow")
    assert not Telemetry().shows_names_of("rabbitmq")
    assert not Telemetry(metrics_names="kafka_exporter").shows_names_of("kafka")
