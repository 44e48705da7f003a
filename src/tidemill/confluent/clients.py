"""Create confluent-kafka's clients, and translate their errors to tidemill's.

``Kafka`` is the address of a cluster with librdkafka's properties. Must not know: who uses it.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from tidemill.errors import SettingsError, TidemillError, UnreachableError
from tidemill.kafka_client.errors import RefusedError
from tidemill.kafka_client.who_answers import explain

REQUEST_S = 15.0
"""How long a request can take."""
CONSUMER = {"fetch_queue_backoff_ms": 10}
"""Settings of consumers. By default, librdkafka waits a second when it has 100,000 messages."""
_LOOK_S = 1.0
"""How often a client that ends looks for a broker, and how long it waits for its answer."""

_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        # "No leaders found": the client knew the brokers, and all are down.
        KafkaError._NOENT,
    }
)
_log = logging.getLogger("tidemill.librdkafka")
_ANSWERED: weakref.WeakSet[AdminClient] = weakref.WeakSet()


@dataclass(frozen=True)
class Kafka:
    """A Kafka-compatible cluster.

    Attributes:
        servers: ``bootstrap.servers``.
        properties: librdkafka's properties, e.g. for TLS and SASL. They are never logged.
        prefix: what a user writes before the name of a property, for hints.
    """

    servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefix: str = "-X "

    def config(self, client: str, **more: Any) -> dict[str, Any]:
        """Return librdkafka's configuration. Keywords have underscores for dots."""
        _log.propagate = False
        if not _log.handlers:
            _log.addHandler(logging.NullHandler())
        own: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": client,
            "log_level": 0,
            "logger": _log,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        return own | dict(self.properties)

    def producer(self, client: str, **more: Any) -> Producer:
        """Return a producer."""
        made: Producer = self.make(Producer, self.config(client, **more))
        return made

    def consumer(self, client: str, **more: Any) -> Consumer:
        """Return a consumer that commits nothing. Its group id is not used."""
        more = {**CONSUMER, **more}
        config = self.config(client, group_id=client, enable_auto_commit=False, **more)
        made: Consumer = self.make(Consumer, config)
        return made

    def admin(self, client: str) -> AdminClient:
        """Return an admin client.

        librdkafka delays a client's first connection by half of the backoff, 50 ms by default. It
        asks again and again for topics that it was asked about, and would create deleted ones.
        """
        config = self.config(client, reconnect_backoff_ms=10, allow_auto_create_topics=False)
        made: AdminClient = self.make(AdminClient, config)
        return made

    def _admin(self, client: str, given: AdminClient | None) -> AdminClient:
        """Return the client that a caller has given, or a new one."""
        return self.admin(client) if given is None else given  # an idle one is false

    def make(self, kind: Any, config: dict[str, Any]) -> Any:
        """Return a client of a class.

        Raises:
            SettingsError: librdkafka rejects a property.
        """
        try:
            return kind(config)
        except KafkaException as error:
            raise SettingsError(f"librdkafka rejects a property: {error.args[0].str()}") from error
        except (TypeError, ValueError) as error:  # a text where it expects a function
            raise SettingsError(f"confluent-kafka rejects a property: {error}") from error

    def translate(self, error: KafkaError, what: str) -> TidemillError:
        """Return librdkafka's error as one of tidemill's types.

        Args:
            what: what failed, as "can't <what>".
        """
        if error.code() not in _UNREACHABLE:
            return RefusedError(error.code(), f"can't {what}", error.str().rstrip("."))
        return self.unreachable(what, error.str())

    def unreachable(self, what: str, cause: str) -> UnreachableError:
        """Return the error if no broker answers, with what can be found out about the cause.

        Args:
            what: what failed, as "can't <what>".
            cause: the client's words.
        """
        found = explain(self.servers, self.properties, self.prefix)
        if found is not None:
            return UnreachableError(f"can't {what}: {found[0]}", hint=found[1])
        return UnreachableError(
            f"can't {what}: no answer from the brokers at {self.servers}: {cause}",
            hint="Check the address, and that the broker runs.",
        )

    def check_reachable(self, what: str, admin: AdminClient, timeout_s: float) -> None:
        """Check that a broker answers soon. A request by itself waits for up to ``REQUEST_S``.

        Args:
            what: what is to be done, as "can't <what>".
            admin: the client to ask with.

        Raises:
            UnreachableError: no broker answers.
        """
        (found,) = _answers({"": admin.describe_cluster(request_timeout=timeout_s)}).values()
        if isinstance(found, KafkaException):
            raise self.translate(found.args[0], what) from found

    def list_topics(self, client: str, admin: AdminClient | None = None) -> set[str]:
        """Return the names of all topics.

        Args:
            admin: the client to ask with; by default a new one.

        Raises:
            UnreachableError: no broker answers.
        """
        admin = self._admin(client, admin)  # a client that is collected gets no answers
        try:
            return set(admin.list_topics(timeout=REQUEST_S).topics)
        except KafkaException as error:
            raise self.translate(error.args[0], "list topics") from error

    def partitions(
        self, client: str, topic: str, admin: AdminClient | None = None
    ) -> list[tuple[str, int]]:
        """Return the partitions of a topic, as (topic, number); none if it does not exist.

        A request for the metadata of one topic could create it; this one does not.

        Args:
            admin: the client to ask with; by default a new one.

        Raises:
            TidemillError: the broker refuses, e.g. because the name is invalid.
            UnreachableError: no broker answers.
        """
        return self.identified(client, topic, admin)[1]

    def topic_id(self, client: str, topic: str, admin: AdminClient | None = None) -> str | None:
        """Return the id of a topic as Kafka's tools print it; None if the topic does not exist.

        Where brokers give no ids (before Apache Kafka 2.8), it is the topic's name. The rest is as
        with ``partitions``.
        """
        return self.identified(client, topic, admin)[0]

    def identified(
        self, client: str, topic: str, admin: AdminClient | None = None
    ) -> tuple[str | None, list[tuple[str, int]]]:
        """Return what ``topic_id`` and ``partitions`` do, both as of one moment."""
        found = self._described(client, topic, admin)
        if found is None:
            return None, []
        id_ = topic_id_text(found)
        places = [(topic, int(each.id)) for each in found.partitions]
        return topic if set(id_) <= {"A"} else id_, places

    def _described(self, client: str, topic: str, admin: AdminClient | None) -> Any | None:
        """Return librdkafka's description of a topic; None if it does not exist."""
        if "\0" in topic:
            return None  # librdkafka would look for what is before it
        admin = self._admin(client, admin)  # a client that is collected gets no answers
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_S)
        found = _answers(asked)[topic]
        if isinstance(found, KafkaException):
            if found.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.translate(found.args[0], f"describe topic {topic}") from found
        return found

    def topic_configs(self, client: str, topic: str) -> dict[str, str]:
        """Return the configs of a topic, also those that have their default.

        Raises:
            TidemillError: the topic does not exist, or the user must not see its configs.
            UnreachableError: no broker answers.
        """
        admin = self.admin(client)  # a client that is collected gets no answers
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        answers = _answers(admin.describe_configs([asked], request_timeout=REQUEST_S))
        (found,) = answers.values()
        if isinstance(found, KafkaException):
            raise self.translate(found.args[0], f"describe topic {topic}") from found
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def create_topics(
        self, client: str, topics: Mapping[str, tuple[int, Mapping[str, str]]]
    ) -> list[str]:
        """Create the topics that are missing.

        Args:
            client: the client id.
            topics: by name, the number of partitions (-1: the broker's default) and the configs.

        Returns:
            The topics that were created.

        Raises:
            TidemillError: a topic can't be created.
            UnreachableError: no broker answers.
        """
        admin = self.admin(client)
        existing = self.list_topics(client, admin)
        new = [
            NewTopic(name, num_partitions=count, replication_factor=-1, config=dict(configs))
            for name, (count, configs) in topics.items()
            if name not in existing
        ]
        if not new:
            return []
        asked = admin.create_topics(new, operation_timeout=REQUEST_S)
        for name, found in _answers(asked).items():
            if isinstance(found, KafkaException) and (
                found.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS
            ):
                raise self.translate(found.args[0], f"create topic {name}") from found
        return [each.topic for each in new]

    def end_offsets(
        self,
        client: str,
        partitions: Iterable[tuple[str, int]],
        *,
        committed: bool = False,
        admin: AdminClient | None = None,
    ) -> dict[tuple[str, int], int]:
        """Return the offset behind the last record of each partition, as (topic, number).

        It is above the last stable offset while a transaction is open; with ``committed``, it is
        that offset.

        Args:
            admin: the client to ask with; by default a new one.

        Raises:
            TidemillError: a partition does not exist.
            UnreachableError: no broker answers.
        """
        specs: Any = OffsetSpec
        return self._list_offsets(client, partitions, specs.latest(), committed, admin)

    def start_offsets(
        self,
        client: str,
        partitions: Iterable[tuple[str, int]],
        admin: AdminClient | None = None,
    ) -> dict[tuple[str, int], int]:
        """Return the first offset that each partition still has, with the errors of the end.

        Args:
            admin: the client to ask with; by default a new one.
        """
        specs: Any = OffsetSpec
        return self._list_offsets(client, partitions, specs.earliest(), admin=admin)

    def offsets_since(
        self,
        client: str,
        partitions: Iterable[tuple[str, int]],
        time_ms: int,
        admin: AdminClient | None = None,
    ) -> dict[tuple[str, int], int]:
        """Return the first offset with a timestamp from a time on, or -1, of each partition.

        Args:
            time_ms: milliseconds since the epoch.
            admin: the client to ask with; by default a new one.

        Raises:
            TidemillError: a partition does not exist.
            UnreachableError: no broker answers.
        """
        specs: Any = OffsetSpec
        return self._list_offsets(client, partitions, specs.for_timestamp(time_ms), admin=admin)

    def _list_offsets(
        self,
        client: str,
        partitions: Iterable[tuple[str, int]],
        spec: Any,
        committed: bool = False,
        admin: AdminClient | None = None,
    ) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(*place): spec for place in partitions}
        levels = IsolationLevel
        isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        if not asked:
            return {}
        admin = self._admin(client, admin)  # a client that is collected gets no answers
        try:
            has_answered(admin)
        except KafkaException as error:
            raise self.translate(error.args[0], "find offsets of topics") from error
        answers = _answers(
            admin.list_offsets(asked, isolation_level=isolation, request_timeout=REQUEST_S)
        )
        for place, found in answers.items():
            if isinstance(found, KafkaException):
                raise self.translate(found.args[0], "find offsets of topics") from found
            if found.offset == OFFSET_INVALID:  # librdkafka's, if the broker ends amid the request
                raise self.unreachable(
                    "find offsets of topics",
                    f"no offset of topic {place.topic} partition {place.partition}",
                )
        return {
            (place.topic, place.partition): int(found.offset) for place, found in answers.items()
        }

    def delete_topics(self, client: str, names: list[str]) -> None:
        """Delete topics. Those that do not exist are left out.

        Raises:
            TidemillError: a topic can't be deleted.
        """
        if not names:
            return
        admin = self.admin(client)
        asked = admin.delete_topics(names, operation_timeout=REQUEST_S)
        for name, found in _answers(asked).items():
            if isinstance(found, KafkaException) and (
                found.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART
            ):
                raise self.translate(found.args[0], f"delete topic {name}") from found


def flush_while_reachable(client: Producer, topic: str, timeout_s: float) -> bool:
    """Wait until a producer's records are written, as long as a broker answers.

    For a process that ends: it does not wait for a broker that is gone.

    Args:
        client: the producer.
        topic: a topic that exists, to ask a broker for.
        timeout_s: the longest wait, in seconds.

    Returns:
        Whether all records are written.
    """
    deadline = time.monotonic() + timeout_s
    while client.flush(_LOOK_S):
        if time.monotonic() > deadline:
            return False
        try:
            client.list_topics(topic, timeout=_LOOK_S)
        except KafkaException:
            return False
    return True


def _answers(asked: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    """Wait for answers. Those of requests that failed are the exceptions themselves.

    A future keeps its exception. Raised, it would have the variables of the caller, with the
    client, in its traceback: a circle that keeps connections and threads until Python looks for
    circles.

    Raises:
        TimeoutError: librdkafka did not even report a failure.
    """
    answers = {}
    for key, future in asked.items():
        error = future.exception(2 * REQUEST_S)
        if error is not None and not isinstance(error, KafkaException):
            raise error
        answers[key] = error or future.result()
    return answers


def has_answered(admin: AdminClient, timeout_s: float = REQUEST_S) -> None:
    """Wait until an admin client has had an answer: it lists offsets without a pause then.

    librdkafka looks for the leaders of partitions over the connection to the bootstrap address. It
    closes that connection as soon as it knows the brokers. If it closes it amid the question, it
    asks again after three seconds (librdkafka 2.11 to 2.16). A description of the cluster comes
    from a broker that it knows, so it is connected to one then. An answer about topics does not
    show that. A client that has had the answer is not asked again.

    Raises:
        KafkaException: no broker answers.
    """
    if admin not in _ANSWERED:
        admin.describe_cluster(request_timeout=timeout_s).result(2 * timeout_s)
        _ANSWERED.add(admin)


def topic_id_text(described: Any) -> str:
    """Return a topic's id as Kafka's tools print it: librdkafka has other base64 characters.

    Args:
        described: what librdkafka says of the topic.
    """
    return str(described.topic_id or "").replace("+", "-").replace("/", "_")
