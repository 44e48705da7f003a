"""Turns bodies of records into numbered batches, ready to be sent.

Must not know: brokers, Arrow. Source: KIP-98 (sequence numbers).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemill import native
from tidemill.kafka_client.producing.encoder import Body, RecordEncoder
from tidemill.kafka_client.producing.record_batch import NO_PRODUCER, Batch, compressed
from tidemill.kafka_client.producing.settings import ProducerSettings

OPEN_BYTES = 32 * 1024 * 1024
"""Most bytes of records that are encoded and not sent."""

Partition = tuple[str, int]


@dataclass(slots=True)
class Identity:
    """The state of an idempotent producer that a broker knows, too.

    Attributes:
        producer: Id and epoch.
        sequences: The next sequence number of each partition.
    """

    producer: tuple[int, int] = NO_PRODUCER
    sequences: dict[Partition, int] = field(default_factory=dict)

    def number(self, batch: Batch) -> None:
        """Give a batch its sequence number."""
        if self.producer == NO_PRODUCER:
            return
        key = (batch.topic, batch.partition)
        batch.sequence = self.sequences.get(key, 0)
        self.sequences[key] = (batch.sequence + batch.count) & 0x7FFFFFFF


class Batching:
    """Makes the batches of one producer.

    Args:
        settings: The settings.
        identity: Its id, epoch and sequence numbers.
    """

    def __init__(self, settings: ProducerSettings, identity: Identity) -> None:
        self._settings = settings
        self._identity = identity
        self._made = 0

    def batches(self, topic: str, bodies: Iterable[Body]) -> Iterator[Batch]:
        """Yield a batch for each body, compressed and numbered."""
        now = time.monotonic()
        for partition, count, base, most, body in bodies:
            codec = self._settings.codec
            smaller = compressed(body, codec)
            if codec and len(smaller) >= memoryview(body).nbytes:
                smaller, codec = body, 0
            batch = Batch(self._made, topic, partition, count, base, most, smaller, codec, now)
            self._made += 1
            self._identity.number(batch)
            yield batch


def make_encoder(partitions: int, settings: ProducerSettings) -> Any:
    """Return an encoder: the compiled one, or the one in Python where that was not built.

    Raises:
        ValueError: The topic has more partitions than the encoder takes.
    """
    extension = native.load()
    kind = RecordEncoder if extension is None else extension.RecordEncoder
    start = random.randrange(partitions)
    limits = (settings.batch_bytes, settings.record_bytes, OPEN_BYTES)
    return kind(partitions, *limits, settings.method, start)
