"""librdkafka's producer reports that it was fenced, wherever the client notices it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.producing import TransactionalProducer
from tidemill.connect.base.errors import DeliveryError, ProducerFencedError
from tidemill.connect.base.producer import open_producer


def _is_given_up(client: Any, topic: str) -> bool:
    """Let librdkafka send a record; return whether it refuses to because it is fenced."""
    try:
        client.produce(topic, b"late")
    except KafkaException:
        return True
    return False


def opened(kafka: Kafka, name: str) -> TransactionalProducer:
    made = open_producer(replace(kafka, properties={"debug": "msg"}), name)
    assert isinstance(made, TransactionalProducer)
    return made


@pytest.fixture
def fenced(kafka: Kafka, name: str) -> TransactionalProducer:
    """A producer in a transaction that was aborted by a new one, and whose client knows it."""
    kafka.create_topics("tests", {name: (1, {})})
    producer = opened(kafka, name)
    producer.send(name, b"k", b"v")
    opened(kafka, name).close()
    poll_until(lambda: _is_given_up(producer.records.client, name), 30, "the client notices")
    return producer


def _full_queue(*_: object, **__: object) -> None:
    raise BufferError


def _send_with_a_full_queue(producer: TransactionalProducer, topic: str) -> None:
    producer.records._produce = _full_queue
    producer.send(topic, b"k", b"v")


def _begin(producer: TransactionalProducer, topic: str) -> None:
    producer.is_open = False
    producer.send(topic, b"k", b"v")


@pytest.mark.parametrize(
    "use",
    [
        lambda producer, topic: producer.send(topic, b"k", b"v"),
        lambda producer, topic: producer.send(topic, b"k", b"v", headers=[("h", b"1")]),
        lambda producer, topic: producer.commit(),
        _begin,
        _send_with_a_full_queue,
    ],
    ids=["send", "send with headers", "commit", "begin", "full queue"],
)
def test_a_fenced_producer_is_reported_as_fenced(
    fenced: TransactionalProducer, name: str, use: Callable[[TransactionalProducer, str], None]
) -> None:
    with pytest.raises(ProducerFencedError, match=f"transactional id {name} has started"):
        use(fenced, name)
    fenced.close()


def test_it_is_reported_again_at_a_second_use(fenced: TransactionalProducer, name: str) -> None:
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            fenced.send(name, b"k", b"v")
    fenced.close()


class _Failing:
    """librdkafka's producer after a failed transaction: it holds back what is left of it.

    A call of ``commit_transaction`` that is under way waits for as long as it was told to; only the
    next one reports the failure.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []

    def flush(self, _: float) -> int:
        return 0

    def poll(self, _: float) -> int:
        return 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        if len(self.waits) == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not all sent", retriable=True))
        raise KafkaException(
            KafkaError(KafkaError.INVALID_TXN_STATE, "failed", txn_requires_abort=True)
        )


def test_a_commit_reports_soon_that_the_transaction_has_failed(kafka: Kafka, name: str) -> None:
    kafka.create_topics("tests", {name: (1, {})})
    producer = opened(kafka, name)
    producer.send(name, b"k", b"v")
    real, failing = producer.records.client, _Failing()
    producer.records.client = failing
    with pytest.raises(DeliveryError, match="can't commit a transaction: failed"):
        producer.commit()
    assert sum(failing.waits) <= 2, failing.waits
    producer.records.client = real
    producer.close()
