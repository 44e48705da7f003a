"""Turns bodies of records into numbered batches, ready to be sent.

Must not know: brokers, Arrow. Source: KIP-98 (sequence numbers).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.kafka_client.producing.record_batch import NO_PRODUCER, Batch, compressed
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.native import extension

OPEN_BYTES = 32 * 1024 * 1024
"""Most bytes of records that are encoded and not sent."""

ALL_READ, FULL, TOO_LARGE, UNKNOWN_PARTITION, NULL_HEADER_KEY = range(5)
"""What ended a call of ``RecordEncoder.add`` or ``append``."""

Body = tuple[int, int, int, int, Any]
"""Partition, number of records, first and greatest timestamp in ms, and the records."""
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
    """Makes the batches of one producer."""

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
    """Return an encoder for the records of a topic."""
    start = random.randrange(partitions)
    limits = (settings.batch_bytes, settings.record_bytes, OPEN_BYTES)
    return extension.RecordEncoder(partitions, *limits, settings.method, start)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return headers as ``RecordEncoder.append`` takes them: as they are in a record (KIP-82)."""
    out = bytearray()
    _put_varint(out, len(headers))
    for name, value in headers:
        for part in (name.encode(), value):
            _put_varint(out, -1 if part is None else len(part))
            out += part or b""
    return bytes(out)


def _put_varint(to: bytearray, number: int) -> None:
    left = number << 1 ^ number >> 63
    while left >= 0x80:
        to.append(left & 0x7F | 0x80)
        left >>= 7
    to.append(left)
