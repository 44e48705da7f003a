"""The log of a store: one partition of a topic, written and tailed through confluent-kafka.

Must not know: what commits mean, the index.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection

from tidemill.confluent.clients import REQUEST_S, Kafka, topic_id_text
from tidemill.confluent.errors import RAISED, error_in
from tidemill.confluent.reading import Follower
from tidemill.errors import TidemillError, UnreachableError
from tidemill.eventstore.errors import (
    CommitTooLargeError,
    EventStoreError,
    IndexMismatchError,
    OutcomeUnknownError,
    UnsuitableTopicError,
)

_CLIENT = "tidemill-eventstore"
_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The configs of a topic that loses nothing."""
_LARGEST_RECORD = 64 * 1024 * 1024
"""No commit is larger, whatever the topic takes."""
_QUEUED_KB = 4 * _LARGEST_RECORD // 1024
_DELIVERY_MS = 30_000
"""How long a record can stay under way. A writer that waits less does not know its outcome."""
_IDENTITY_S = 2.0
"""How often it is looked whether the topic is still the same one, while records come."""
RECONNECT_MS = 500
"""The longest pause before another attempt to connect: a broker that restarts is found soon."""
_QUEUED = 100_000
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_MISSING = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class Identity(NamedTuple):
    """The identity of a log."""

    cluster: str
    topic_id: str


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    value: bytes
    time_ms: int


Failed = Callable[[TidemillError], None]


class Log:
    """Writes and tails one topic. Threads can share ``send``; one thread calls the rest.

    Args:
        kafka: the cluster.
        topic: the name of the topic.
    """

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka = kafka
        self.topic = topic
        self._producer: Any = self._make()
        self._is_fatal = False
        self._admin = kafka.admin(_CLIENT)
        self._follower: Follower | None = None
        self._identity: Identity | None = None
        self._is_unsure = False  # whether records came since the topic's id was asked for
        self._asked: Any = None
        self._asked_at = time.monotonic()

    def _make(self) -> Any:
        return self._kafka.producer(
            _CLIENT,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            reconnect_backoff_max_ms=RECONNECT_MS,
            allow_auto_create_topics=False,
            message_timeout_ms=_DELIVERY_MS,
            message_max_bytes=_LARGEST_RECORD,
            queue_buffering_max_messages=_QUEUED,
            queue_buffering_max_kbytes=_QUEUED_KB,
            # A new topic is unknown to a broker for a moment.
            topic_metadata_propagation_max_ms=5000,
            # The tail reports what is stored; only failures are reported here.
            **{"delivery.report.only.error": True},
        )

    def prepare(self, *, create: bool, configs: dict[str, str] | None = None) -> Identity:
        """Create the topic if it is missing, check that it can't lose commits, and identify it.

        Raises:
            UnsuitableTopicError: it is compacted, has retention limits or several partitions, or
                it is missing and is not to be created.
            UnreachableError: no broker answers.
        """
        topic = self.topic
        if create:
            self._kafka.create_topics(_CLIENT, {topic: (1, {**_CONFIGS, **(configs or {})})})
        partitions = self._kafka.partitions(_CLIENT, topic, self._admin)
        if not partitions:
            raise UnsuitableTopicError(
                f"topic {topic!r} does not exist", hint="The first append of a program creates it."
            )
        if len(partitions) != 1:
            raise UnsuitableTopicError(
                f"topic {topic!r} has {len(partitions)} partitions, and a store has one",
                hint="Let the store create its topic.",
            )
        found = self._kafka.topic_configs(_CLIENT, topic)
        for name, wanted in _CONFIGS.items():
            if found.get(name) != wanted:
                raise UnsuitableTopicError(
                    f"topic {topic!r} can lose commits: {name} is {found.get(name)}, "
                    f"and must be {wanted}",
                    hint=f"tidemill topic alter {topic} --set {name}={wanted}",
                )
        try:
            cluster = str(self._admin.list_topics(topic, timeout=REQUEST_S).cluster_id)
        except KafkaException as error:
            raise self._kafka.translate(error.args[0], f"describe topic {topic}") from error
        topic_id = self._kafka.topic_id(_CLIENT, topic, self._admin) or topic
        self._identity = Identity(cluster, topic_id)
        return self._identity

    def end(self) -> int:
        """Return the offset behind the last record.

        Raises:
            UnreachableError: no broker answers.
        """
        place = (self.topic, 0)
        return self._kafka.end_offsets(_CLIENT, [place], admin=self._admin)[place]

    def send(self, value: bytes, failed: Failed) -> None:
        """Send a record. It comes back in the tail, unless ``failed`` is called.

        Args:
            failed: called in the thread of ``tail`` if the record is not stored, or perhaps not.

        Raises:
            CommitTooLargeError: it has more than 64 MiB. The topic's limit is reported to
                ``failed``.
            OutcomeUnknownError: too many records are under way. This one was not sent.
        """

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._is_fatal |= error.fatal() or error.code() == KafkaError._FATAL
                failed(self._failure(error, len(value)))

        producer = self._producer
        try:
            producer.produce(self.topic, value, partition=0, on_delivery=report)
        except BufferError as error:
            raise OutcomeUnknownError(
                f"{_QUEUED} commits are under way; this one was not sent"
            ) from error
        except RAISED as error:
            found = error_in(error)
            if found is None:
                raise
            self._is_fatal |= found.fatal() or found.code() == KafkaError._FATAL
            raise self._failure(found, len(value)) from error

    def _failure(self, error: KafkaError, size: int) -> TidemillError:
        if error.code() in _TOO_LARGE:
            return CommitTooLargeError(
                f"a commit of {size} bytes is larger than topic {self.topic!r} takes",
                hint="Append fewer events in one commit, keep large content elsewhere, or raise "
                "max.message.bytes of the topic.",
            )
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            return EventStoreError(
                f"the broker rejects the time of a commit: {error.str()}",
                hint="Set the clock of this machine, or of the broker's: they differ by hours.",
            )
        if error.code() in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD}:
            return EventStoreError(f"the broker rejects a commit: {error.str()}")
        return OutcomeUnknownError(
            f"it is not known whether the commit is stored: {error.str()}",
            hint="Append the same events, with the same ids, again.",
        )

    def tail(self, offset: int) -> None:
        """Begin to read at an offset. Where it is missing, ``poll`` raises."""
        self._follower = Follower.of(
            self._kafka,
            _CLIENT,
            [(self.topic, 0)],
            "read_uncommitted",
            {(self.topic, 0): offset},
            "error",
            fetch_queue_backoff_ms=0,
            reconnect_backoff_max_ms=RECONNECT_MS,
            fetch_error_backoff_ms=20,
            fetch_message_max_bytes=4_194_304,
            queued_max_messages_kbytes=16_384,
            check_crcs=True,
        )

    def poll(self, timeout_s: float) -> Iterator[Record]:
        """Yield the records that have arrived. Wait for the first one only.

        Reports failures of records that were sent, too.

        Raises:
            IndexMismatchError: the log does not have the offset to read.
            TidemillError: the log can't be read.
        """
        assert self._follower is not None
        self._producer.poll(0)
        if self._is_fatal:  # an idempotent producer that lost its sequence sends nothing more
            failed, self._producer = self._producer, self._make()
            failed.purge()
            failed.poll(0)
            self._is_fatal = False
        try:
            for message in self._follower.poll(timeout_s):
                yield Record(
                    int(message.offset() or 0), message.value() or b"", message.timestamp()[1]
                )
                self._is_unsure = True
            self._check_identity()
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if found.code() in _MISSING:
                raise IndexMismatchError(
                    f"topic {self.topic!r} does not have the offset that follows: it was shortened "
                    "or replaced",
                    hint="Find out why. Then rebuild the index: tidemill events rebuild "
                    f"{self.topic}. If the log was archived, rebuild takes --checkpoint FILE, and "
                    "events verify --archive FOLDER.",
                ) from error
            raise self._kafka.translate(found, f"read topic {self.topic}") from error

    def _check_identity(self) -> None:
        """Find out from time to time whether the topic is still the same one. Don't wait for it.

        One that was deleted and created again can have more records than the earlier one had: then
        the client continues in the other log, and says nothing.

        Raises:
            IndexMismatchError: the topic is another one.
        """
        if self._asked is None:
            if self._is_unsure and time.monotonic() - self._asked_at >= _IDENTITY_S:
                topics = TopicCollection([self.topic])
                found = self._admin.describe_topics(topics, request_timeout=REQUEST_S)
                self._asked, self._asked_at = found[self.topic], time.monotonic()
                self._is_unsure = False
            return
        if not self._asked.done():
            return
        asked, self._asked = self._asked, None
        if asked.exception() is not None or self._identity is None:
            self._is_unsure = True
            return
        id_ = topic_id_text(asked.result())
        if id_ != self._identity.topic_id and not set(id_) <= {"A"}:
            raise IndexMismatchError(
                f"topic {self.topic!r} was deleted and created again: it has the id {id_}, and had "
                f"{self._identity.topic_id}",
                hint="What was read in the last seconds can be of both. Find out why. Then rebuild "
                f"the index, and what was made of the events: tidemill events rebuild {self.topic}",
            )

    def scan(self, start: int, patience_s: float = 60.0) -> Iterator[Record]:
        """Yield the records from an offset to the present end.

        Raises:
            UnreachableError: nothing came for ``patience_s`` seconds.
        """
        end, deadline = self.end(), time.monotonic() + patience_s
        self.tail(start)
        while self.read() < end:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"topic {self.topic!r} can't be read: nothing came for {patience_s:g} s"
                )
            for record in self.poll(0.5):
                if record.offset >= end:
                    return
                deadline = time.monotonic() + patience_s
                yield record

    def read(self) -> int:
        """Return the offset behind what was read, also of records that are not delivered."""
        assert self._follower is not None
        return self._follower.positions[self.topic, 0]

    def close(self) -> None:
        """Close the clients. What was sent and did not come back stays unknown."""
        with contextlib.suppress(*RAISED):
            self._producer.flush(1.0)
        if self._follower is not None:
            self._follower.close()
