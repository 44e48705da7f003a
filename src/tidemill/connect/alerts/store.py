"""The topic of alerts: read it, follow it, and write it in transactions.

The worker's transactional id fences a worker before it, so that one decides. Commands and pages
write silences and acknowledgements without it. Must not know: what the records mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Message

from tidemill.confluent.clients import Kafka, flush_while_reachable
from tidemill.confluent.reading import Follower, end_offsets, read_table
from tidemill.connect.alerts.model import (
    Ack,
    Alert,
    Group,
    OrderedTest,
    Position,
    Silence,
    Stored,
    WorkerState,
)
from tidemill.connect.alerts.topics import (
    ACK,
    ALERT,
    ALERTS,
    ALERTS_CONFIG,
    GROUP,
    POSITION,
    SILENCE,
    TEST,
    TRANSACTIONAL_ID,
    WORKER,
)
from tidemill.errors import UnreachableError

if TYPE_CHECKING:
    from tidemill.connect.base.producer import Producer

_KINDS: Mapping[str, type[Stored]] = {
    ALERT: Alert,
    GROUP: Group,
    SILENCE: Silence,
    ACK: Ack,
    POSITION: Position,
    TEST: OrderedTest,
    WORKER: WorkerState,
}
_OF_OTHERS = (SILENCE, ACK, TEST)
"""Kinds of records that commands and pages write."""
_CLIENT = "tidemill-alerts"
_WRITE_S = 15.0

Record = tuple[str, Stored | None]


def decode(key: bytes, value: bytes | None) -> Record | None:
    """Return what a record has; None if it is of another program, or invalid."""
    name = key.decode(errors="replace")
    kind, slash, rest = name.partition("/")
    if kind not in _KINDS or not slash or not rest:
        return None
    made = _KINDS[kind].decode(value)
    if made is None and value is not None:
        return None
    return name, made


def read_alerts(kafka: Kafka) -> dict[str, Stored]:
    """Return all that the topic has, by key.

    Raises:
        UnreachableError: no broker answers.
    """
    found = (decode(*each) for each in read_table(kafka, _CLIENT, ALERTS).items())
    return {each[0]: each[1] for each in found if each is not None and each[1] is not None}


def _decoded(messages: Iterable[Message]) -> Iterator[Record]:
    found = (decode(message.key() or b"", message.value()) for message in messages)
    return (each for each in found if each is not None)


def create_topic(kafka: Kafka) -> None:
    """Create the topic if it is missing."""
    kafka.create_topics(_CLIENT, {ALERTS: (1, ALERTS_CONFIG)})


def write_orders(kafka: Kafka, orders: Mapping[str, Stored | None]) -> None:
    """Write silences, acknowledgements and tests, as commands and pages do.

    Raises:
        UnreachableError: no broker answers.
    """
    create_topic(kafka)
    producer = kafka.producer(_CLIENT, linger_ms=1, enable_idempotence=True)
    for key, value in orders.items():
        producer.produce(ALERTS, None if value is None else value.encode(), key.encode())
    if not flush_while_reachable(producer, ALERTS, _WRITE_S):
        raise UnreachableError(f"topic {ALERTS} can't be written: no answer from {kafka.servers}")


class AlertTopic:
    """The worker's side of the topic. One thread uses it at a time; ``close`` it.

    Raises:
        ProducerFencedError: another worker has started.
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka) -> None:
        # Imported here: the gateway, which reads the topic, does not need the codecs of batches.
        from tidemill.connect.base.producer import open_producer

        create_topic(kafka)
        self._kafka = kafka
        self._producer: Producer = open_producer(kafka, TRANSACTIONAL_ID)
        self._follower = Follower.of(kafka, _CLIENT, [(ALERTS, 0)], fetch_wait_max_ms=50)

    def read(self) -> Iterator[Record]:
        """Yield all records that the topic has now.

        Raises:
            TidemillError: the topic can't be read.
            UnreachableError: no broker answers.
        """
        ends = end_offsets(self._kafka, _CLIENT, ALERTS)
        try:
            yield from _decoded(self._follower.to_end(ends))
        except KafkaException as error:
            raise self._kafka.translate(error.args[0], f"read topic {ALERTS}") from error

    def orders(self, timeout_s: float) -> list[Record]:
        """Return what commands and pages have written. Wait for the first record only."""
        with contextlib.suppress(KafkaException):  # writing says that a broker is away
            return [
                each
                for each in _decoded(self._follower.poll(timeout_s))
                if each[0].partition("/")[0] in _OF_OTHERS
            ]
        return []

    def write(self, changes: Mapping[str, Stored | None]) -> None:
        """Write records, all of them or none.

        Raises:
            ProducerFencedError: another worker has started.
            TidemillError: they were not written, or it is not known.
        """
        self._producer.begin()
        for key, value in changes.items():
            self._producer.send(ALERTS, key.encode(), None if value is None else value.encode())
        self._producer.commit()

    def close(self) -> None:
        """Close the clients."""
        self._follower.close()
        self._producer.close()
