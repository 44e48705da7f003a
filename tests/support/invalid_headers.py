"""Records whose headers have names that are not UTF-8."""

from __future__ import annotations

from kafka import KafkaProducer

from tidemill.confluent.clients import Kafka


class _Invalid(str):
    """A text that is not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"a\xff\xfeb"


def send_with_invalid_name(kafka: Kafka, topic: str) -> None:
    """Write a record with a header whose name is not UTF-8, as brokers store it."""
    producer = KafkaProducer(bootstrap_servers=kafka.servers)
    try:
        producer.send(topic, b"named", b"k", headers=[(_Invalid("x"), b"y")]).get(30)
    finally:
        producer.close()
