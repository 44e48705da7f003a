"""Copy the accepted events of a store to a topic, one record each, exactly once.

A raw consumer of a store's own topic sees commits, and void ones among them. The published topic
has one record for each accepted event, for pipelines, consumers of other languages and everything
that reads topics. Events and the position up to which they were copied are in one transaction.
Must not know: the store's inside.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Extract, ExtractReader
from tidemill.confluent.reading import headers_of as record_headers
from tidemill.connect.base.producer import Producer, open_producer
from tidemill.eventstore.errors import EventStoreError
from tidemill.eventstore.events import StoredEvent, some
from tidemill.eventstore.store import Store
from tidemill.kafka_client.producing.transactional import Marker

BATCH = 1000
"""The most events of one transaction."""
_CLIENT = "tidemill-events-publish"
_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Records have the times of their events, which can be old. Users set limits themselves."""
_LOOK_BACK = 64
_READ_S = 30.0
_MAX_BYTES = 1 << 20

POSITION = "event-position"
_log = logging.getLogger("tidemill.eventstore")


class PublishPositionError(EventStoreError):
    """It is not known which events are in the topic already."""


@dataclass
class Publisher:
    """Copies events of one store to one topic. One thread uses it.

    A second publisher with the same store and topic fences this one.

    Attributes:
        store: the store.
        kafka: the cluster of the topic.
        topic: where the events go. It is created if it is missing.
        partitions: the number of its partitions, if it is created. All events of a stream are in
            one, in order.
        position: up to where the events are in the topic; None before ``run`` knows it.
        after: where to start if the topic does not say: behind this position.
    """

    store: Store
    kafka: Kafka
    topic: str
    partitions: int = 1
    after: int | None = None
    position: int | None = field(default=None, init=False)
    _topic_id: str | None = field(default=None, init=False)

    def run(
        self, stop: threading.Event, *, until_end: bool = False, wait_s: float = 0.25
    ) -> Iterator[int]:
        """Copy until ``stop`` is set; yield the position behind each transaction.

        Args:
            until_end: end when all events are copied that the store has now.
            wait_s: how long a stop can take.

        Raises:
            PublishPositionError: see ``after``.
            ProducerFencedError: another publisher has started.
        """
        self.kafka.create_topics(_CLIENT, {self.topic: (self.partitions, _CONFIGS)})
        self._topic_id = self.kafka.topic_id(_CLIENT, self.topic)
        producer = open_producer(self.kafka, f"{_CLIENT}-{self.store.topic}-{self.topic}")
        with contextlib.closing(producer):
            position = self.position = self._start(producer)
            self.store.catch_up()
            if position > self.store.position():
                raise PublishPositionError(
                    f"events up to position {position} are in topic {self.topic}, and store "
                    f"{self.store.topic} ends at {self.store.position()}",
                    hint="The store was restored or replaced: publish to a new topic.",
                )
            end = self.store.position() if until_end else None
            while not stop.is_set():
                batch = some(self.store.read_all(after=position, to=end), BATCH)
                if batch:
                    self._copy(producer, batch)
                    position = self.position = batch[-1].position
                    yield position
                elif until_end:
                    return
                else:
                    next(self.store.follow(after=position, wait_s=wait_s), None)

    def _copy(self, producer: Producer, batch: list[StoredEvent]) -> None:
        producer.begin("publish events")
        for event in batch:
            producer.send(
                self.topic, event.stream.encode(), event.data, event.time_ms, headers_of(event)
            )
        log = json.dumps({"log": self.store.identity.topic_id, "topic": self._topic_id})
        # A marker's offset is a number that only grows: here the position of an event.
        producer.mark(self.topic, Marker(batch[-1].position, log))
        producer.commit("publish events")

    # --- where to start --------------------------------------------------------------------------

    def _start(self, producer: Producer) -> int:
        """Return the position up to which events are in the topic.

        The marker says it; brokers forget markers that were not written for a week. Then the
        last records of the topic say it.
        """
        marker = producer.marker(self.topic, "find where to continue")
        if marker.offset >= 0 and self._is_ours(marker):
            return marker.offset
        admin = self.kafka.admin(_CLIENT)
        found = self._last_in_topic(admin)
        if found is not None:
            return found
        if self.after is not None:
            return self.after
        places = self.kafka.partitions(_CLIENT, self.topic, admin)
        if any(self.kafka.end_offsets(_CLIENT, places, admin=admin).values()):
            raise PublishPositionError(
                f"topic {self.topic} has no events of store {self.store.topic} any more, so the "
                "position to continue at is not known",
                hint="Name it with --after; 0 publishes all events again.",
            )
        return 0

    def _is_ours(self, marker: Marker) -> bool:
        """Return whether a marker is about the topic that exists now, and this store."""
        try:
            written = json.loads(marker.metadata)
            topic_id, log = written["topic"], written["log"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False  # another program has committed it
        if topic_id != self._topic_id:
            return False
        if log != self.store.identity.topic_id:
            raise PublishPositionError(
                f"topic {self.topic} has events of another store that was named {self.store.topic}",
                hint="Publish to a new topic.",
            )
        return True

    def _last_in_topic(self, admin: AdminClient) -> int | None:
        """Return the highest position in the last records of all partitions; None without one."""
        places = self.kafka.partitions(_CLIENT, self.topic, admin)
        starts = self.kafka.start_offsets(_CLIENT, places, admin)
        ends = self.kafka.end_offsets(_CLIENT, places, committed=True, admin=admin)
        found = [
            position
            for place, end in ends.items()
            if (position := self._last_in(place, starts[place], end)) is not None
        ]
        return max(found, default=None)

    def _last_in(self, place: tuple[str, int], start: int, end: int) -> int | None:
        """Return the position of the last event in a partition."""
        back = _LOOK_BACK
        with contextlib.closing(ExtractReader.of(self.kafka, _CLIENT)) as reader:
            while end > start:
                at = offset = max(start, end - back)
                last: int | None = None
                while offset < end:
                    found = self._read(reader, place, offset)
                    positions = [_position(record_headers(each)) for each in found.records]
                    last = next((each for each in reversed(positions) if each is not None), last)
                    offset = found.following
                if last is not None or at == start:
                    return last
                back *= 4  # markers and aborted records only
        return None

    def _read(self, reader: ExtractReader, place: tuple[str, int], offset: int) -> Extract:
        try:
            return reader.read(place, offset, BATCH, _MAX_BYTES, _READ_S)
        except KafkaException as error:
            raise self.kafka.translate(error.args[0], f"read topic {self.topic}") from error


def headers_of(event: StoredEvent) -> list[tuple[str, bytes | None]]:
    """Return the headers of a published event."""
    headers: list[tuple[str, bytes | None]] = [
        (POSITION, str(event.position).encode()),
        ("event-id", str(event.id).encode()),
        ("event-type", event.type.encode()),
        ("event-version", str(event.version).encode()),
        ("event-schema", str(event.schema).encode()),
    ]
    if event.tags:
        headers.append(("event-tags", json.dumps(sorted(event.tags)).encode()))
    if event.metadata:
        headers.append(("event-metadata", event.metadata))
    return headers


def _position(headers: object) -> int | None:
    for name, value in headers or []:  # type: ignore[attr-defined]
        if name == POSITION:
            try:
                return int(value)
            except (TypeError, ValueError):
                return None
    return None
