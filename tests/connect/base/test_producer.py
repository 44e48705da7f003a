"""The producers of connectors: what a transaction shows, when, and who is fenced."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.committed import read_to_end
from tests.support.hidden_packages import python_without
from tidemill.confluent.clients import Kafka
from tidemill.confluent.producing import TransactionalProducer as LibrdkafkaProducer
from tidemill.confluent.reading import read_to_end as pairs
from tidemill.connect.base.errors import (
    MAX_RECORD_BYTES,
    DeliveryError,
    ProducerFencedError,
    RecordTooLargeError,
)
from tidemill.connect.base.producer import ConnectorErrors, Producer, open_producer
from tidemill.errors import UnreachableError
from tidemill.kafka_client.producing import cluster
from tidemill.kafka_client.producing.transactional import TransactionalProducer

UNKNOWN = {"debug": "msg"}
"""Our own producer leaves this property to librdkafka."""


@pytest.fixture(params=["own", "librdkafka"])
def kafka(request: pytest.FixtureRequest, kafka: Kafka) -> Kafka:
    return replace(kafka, properties=UNKNOWN) if request.param == "librdkafka" else kafka


def opened(kafka: Kafka, name: str) -> Producer:
    made = open_producer(kafka, name)
    assert isinstance(made, LibrdkafkaProducer if kafka.properties else TransactionalProducer)
    return made


def committed_end(kafka: Kafka, topic: str) -> int:
    """Return the last stable offset of partition 0."""
    consumer = kafka.consumer("tests", isolation_level="read_committed")
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1])
    finally:
        consumer.close()


def test_records_are_visible_after_the_commit_and_in_order(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {f"{name}.a": (1, {}), f"{name}.b": (3, {})})
    producer = opened(kafka, name)
    wanted = [(b"%d" % number, b"x" * 500) for number in range(9_000)]  # several batches
    for round_number in (1, 2):
        for key, value in wanted:
            producer.send(f"{name}.a", key, value, 5)
        producer.post()
        producer.send(f"{name}.b", None, b"one", 5)
        producer.send(f"{name}.b", b"gone", None)
        assert producer.is_open
        assert committed_end(kafka, f"{name}.a") == 9_001 * (round_number - 1)  # with the marker
        producer.commit()
        assert not producer.is_open
        assert list(pairs(kafka, "tests", f"{name}.a")) == wanted * round_number
        assert len(list(pairs(kafka, "tests", f"{name}.b"))) == 2 * round_number
    producer.commit()  # nothing is open
    producer.close()


def test_the_time_0_is_written_but_by_librdkafka_which_writes_the_present_time(
    kafka: Kafka, name: str
) -> None:
    kafka.create_topics("tests", {name: (1, {})})
    producer = opened(kafka, name)
    before = time.time_ns() // 1_000_000
    producer.send(name, b"k", b"v", 0)
    producer.commit()
    [message] = read_to_end(kafka.servers, name)
    written = message.timestamp()[1]
    assert written >= before if kafka.properties else written == 0
    producer.close()


def test_closing_aborts_what_is_open(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {})})
    producer = opened(kafka, name)
    for number in range(4_000):
        producer.send(name, b"%d" % number, b"x" * 500)
    producer.post()  # a batch is on its way
    producer.close()
    again = opened(kafka, name)
    again.send(name, b"k", b"v")
    again.commit()
    assert list(pairs(kafka, "tests", name)) == [(b"k", b"v")]
    again.close()


def test_a_new_producer_fences_the_one_before(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {})})
    first = opened(kafka, name)
    first.send(name, b"k", b"first")
    second = opened(kafka, name)
    second.send(name, b"k", b"second")
    second.commit()
    with pytest.raises(ProducerFencedError, match="has started"):
        first.commit()
    first.close()
    second.close()
    assert list(pairs(kafka, "tests", name)) == [(b"k", b"second")]


def test_a_record_that_is_too_large_is_named(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {"max.message.bytes": "100000"})})
    producer = opened(kafka, name)
    with pytest.raises(RecordTooLargeError, match=f"to topic {name}"):
        producer.send(name, b"k", b"x" * (MAX_RECORD_BYTES + 1))
    producer.send(name, b"k", random.Random(1).randbytes(200_000))  # more than the topic allows
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes|too large"):
        producer.commit()
    producer.close()


def test_a_topic_that_does_not_exist_fails_when_the_broker_says_so(kafka: Kafka, name: str) -> None:
    patience = {
        "allow.auto.create.topics": "false",
        "topic.metadata.propagation.max.ms": "2000",
    }
    producer = open_producer(replace(kafka, properties={**kafka.properties, **patience}), name)

    def write() -> None:
        producer.send(f"{name}.missing", b"k", b"v")
        producer.commit()

    with pytest.raises(UnreachableError, match="can't write to topic"):
        write()
    producer.close()


def test_new_partitions_of_a_topic_are_used_from_the_next_transaction_on(
    kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kafka.properties:
        pytest.skip("librdkafka follows partitions by itself, every five minutes")
    monkeypatch.setattr(cluster, "_KNOWN_S", 0.0)
    kafka.create_topics("tests", {name: (1, {})})
    producer, admin = opened(kafka, name), kafka.admin("tests")
    for partitions in (1, 3):
        for number in range(100):
            producer.send(name, b"%d" % number, b"v")
        if partitions == 1:
            admin.create_partitions([NewPartitions(name, 3)])[name].result(60)
        producer.commit()
    producer.close()
    found = [len(read_to_end(kafka.servers, name, each)) for each in range(3)]
    assert sum(found) == 200
    assert min(found) > 0


def test_records_have_headers(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {})})
    producer = opened(kafka, name)
    headers = [("id", b"1"), ("nothing", None), ("id", "ключ".encode() * 40)]
    producer.send(name, b"k", b"v", 5, headers)
    producer.send(name, None, None, 6)
    producer.commit()
    found = read_to_end(kafka.servers, name)
    assert [(each.key(), each.value(), each.headers()) for each in found] == [
        (b"k", b"v", headers),
        (None, None, None),
    ]
    producer.close()


def test_errors_of_brokers_are_told_apart() -> None:
    errors = ConnectorErrors(Kafka("host:1"), "me")
    assert isinstance(errors.refused("commit", "x", 90), ProducerFencedError)
    assert isinstance(errors.refused("commit", "x", 48), DeliveryError)
    assert isinstance(errors.not_accepted(3, "t", "x", 47), ProducerFencedError)
    assert isinstance(errors.not_accepted(3, "t", "x", 10), RecordTooLargeError)
    assert "host:1" in str(errors.not_answered("commit", "x"))
    assert "rejected" in str(errors.rejected("", "x"))


def test_a_worker_needs_the_packages_of_a_plain_installation_only() -> None:
    hidden = ("crc32c", "pyarrow", "pyspark", "kafka", "psycopg", "pymysql")
    code = "import tidemill.connect.cdc.runner, tidemill.connect.base.producer; print('imported')"
    done = python_without(hidden, code)
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr
