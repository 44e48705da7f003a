"""Read a topic to its present end, as a table by key or record by record.

Must not know: what the records mean.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tidemill.connect.base.clients import REQUEST_S, Kafka
from tidemill.errors import UnreachableError

READ_S = 60.0
"""How long a read can go without a record before it fails."""


def read_table(
    kafka: Kafka, client: str, topic: str, *, committed: bool = True
) -> dict[bytes, bytes]:
    """Return the last value of each key of a topic. Deleted keys are left out.

    Args:
        kafka: the cluster.
        client: the client id.
        topic: the topic; if it does not exist, the result is empty.
        committed: whether to leave out records of transactions that are not committed.

    Raises:
        UnreachableError: the topic can't be read to its end.
    """
    latest: dict[bytes, bytes] = {}
    for key, value in read_to_end(kafka, client, topic, committed=committed):
        if value is None:
            latest.pop(key, None)
        else:
            latest[key] = value
    return latest


def read_to_end(
    kafka: Kafka, client: str, topic: str, *, committed: bool = True
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield (key, value) of each record up to the end that the topic has now.

    With ``committed``, it waits until open transactions below that end are decided.

    Raises:
        UnreachableError: the topic can't be read to its end.
    """
    consumer = kafka.consumer(
        client,
        isolation_level="read_committed" if committed else "read_uncommitted",
        enable_partition_eof=True,
        auto_offset_reset="earliest",
    )
    with contextlib.closing(consumer):
        try:
            found = consumer.list_topics(topic, timeout=REQUEST_S).topics[topic]
            if found.error is not None or not found.partitions:
                return
            ends = _ends(kafka, client, topic, list(found.partitions))
        except KafkaException as error:
            raise kafka.translate(error.args[0], f"read topic {topic}") from error
        missing = {number: end for number, end in ends.items() if end > 0}
        if missing:
            yield from _records(kafka, consumer, topic, missing)


def _ends(kafka: Kafka, client: str, topic: str, partitions: list[int]) -> dict[int, int]:
    """Return the high watermarks, which are above the last stable offsets of open transactions."""
    reader = kafka.consumer(client, isolation_level="read_uncommitted")
    with contextlib.closing(reader):
        return {
            number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=REQUEST_S)[
                1
            ]
            for number in partitions
        }


def _records(
    kafka: Kafka, consumer: Consumer, topic: str, missing: dict[int, int]
) -> Iterator[tuple[bytes, bytes | None]]:
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in missing])
    deadline = time.monotonic() + READ_S
    while missing:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"topic {topic} can't be read to its end within {READ_S:g} s",
                hint="A transaction that is still open holds readers back: tidemill transaction "
                "find",
            )
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is None:
                deadline = time.monotonic() + READ_S
                yield message.key() or b"", message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                # The end of what is committed, behind the control records.
                number, offset = message.partition() or 0, message.offset() or 0
                if offset >= missing.get(number, 0):
                    missing.pop(number, None)
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise kafka.translate(error, f"read topic {topic}")
