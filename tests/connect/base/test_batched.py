"""Our own producer: what a transaction shows, when, and who is fenced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from tests.support.hidden_packages import python_without
from tidemill import native
from tidemill.connect.base.batched import BatchProducer, Words, open_producer
from tidemill.connect.base.clients import Kafka
from tidemill.connect.base.compacted import read_to_end
from tidemill.connect.base.errors import (
    MAX_RECORD_BYTES,
    DeliveryError,
    ProducerFencedError,
    RecordTooLargeError,
)
from tidemill.connect.base.transactional import TransactionalProducer
from tidemill.errors import UnreachableError

needs_extension = pytest.mark.skipif(native.load() is None, reason="the extension is not built")


def opened(kafka: Kafka, name: str) -> BatchProducer:
    made = open_producer(kafka, name, with_headers=False)
    assert isinstance(made, BatchProducer)
    return made


def committed_end(kafka: Kafka, topic: str) -> int:
    """Return the last stable offset of partition 0."""
    consumer = kafka.consumer("tests", isolation_level="read_committed")
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1])
    finally:
        consumer.close()


@needs_extension
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
        assert list(read_to_end(kafka, "tests", f"{name}.a")) == wanted * round_number
        assert len(list(read_to_end(kafka, "tests", f"{name}.b"))) == 2 * round_number
    producer.commit()  # nothing is open
    producer.close()


@needs_extension
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
    assert list(read_to_end(kafka, "tests", name)) == [(b"k", b"v")]
    again.close()


@needs_extension
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
    assert list(read_to_end(kafka, "tests", name)) == [(b"k", b"second")]


@needs_extension
def test_a_record_that_is_too_large_is_named(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {"max.message.bytes": "100000"})})
    producer = opened(kafka, name)
    with pytest.raises(RecordTooLargeError, match=f"to topic {name}"):
        producer.send(name, b"k", b"x" * (MAX_RECORD_BYTES + 1))
    producer.send(name, b"k", random.Random(1).randbytes(200_000))  # more than the topic allows
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes|too large"):
        producer.commit()
    producer.close()


@needs_extension
def test_a_topic_that_does_not_exist_fails_when_the_broker_says_so(
    kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.connect.base.batched._TOPIC_S", 2.0)
    producer = opened(replace(kafka, properties={"allow.auto.create.topics": "false"}), name)
    with pytest.raises(UnreachableError, match="can't write to topic"):
        producer.send(f"{name}.missing", b"k", b"v")
    producer.close()


def test_librdkafka_does_what_ours_can_not(
    kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = replace(kafka, properties={"sticky.partitioning.linger.ms": "10", "debug": "msg"})
    for number, (given, with_headers) in enumerate([(kafka, True), (unknown, False)]):
        made = open_producer(given, f"{name}{number}", with_headers=with_headers)
        assert isinstance(made, TransactionalProducer)
        made.close()
    monkeypatch.setenv(native.SWITCH, "0")
    made = open_producer(kafka, f"{name}-python", with_headers=False)
    assert isinstance(made, TransactionalProducer)
    made.close()


def test_errors_of_brokers_are_told_apart() -> None:
    words = Words(Kafka("host:1"), "me")
    assert isinstance(words.refused("commit", "x", 90), ProducerFencedError)
    assert isinstance(words.refused("commit", "x", 48), DeliveryError)
    assert isinstance(words.not_accepted(3, "t", "x", 47), ProducerFencedError)
    assert isinstance(words.not_accepted(3, "t", "x", 10), RecordTooLargeError)
    assert "host:1" in str(words.not_answered("commit", "x"))
    assert "rejected" in str(words.rejected("", "x"))


def test_a_worker_needs_the_packages_of_a_plain_installation_only() -> None:
    hidden = ("crc32c", "pyarrow", "pyspark", "kafka", "psycopg", "pymysql")
    code = "import tidemill.connect.cdc.runner, tidemill.connect.base.batched; print('imported')"
    done = python_without(hidden, code)
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr
